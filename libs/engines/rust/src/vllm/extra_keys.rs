//! A vLLM block's `extra_keys`: the part of its identity that is not tokens.
//!
//! The field holds, per block, null or an array in this order: the LoRA name; `[identifier, offset]`
//! of every multimodal item that overlaps the block; the cache salt, a bare string, in a prompt's
//! first block only; digests of prompt embeddings, as bytes. So the salt is the bare string of the
//! first block that is left after the LoRA name. `""` is nothing.
//!
//! Releases 0.24 to 0.30 have been seen to name an item by its bare identifier, so a bare string after
//! the first block is an item. In the first block such an item cannot be told from a salt: two bare
//! strings there are refused rather than guessed.

use kvatlas_hashing::{Items, item_hash};

use crate::event::{Refusal, RefusalReason};
use crate::msgpack::{Cursor, Head, Malformed};

/// The keys of a chain's blocks, up to the first block that cannot be indexed.
#[derive(Default, Debug)]
pub struct ChainKeys {
    /// The number of blocks that can be indexed.
    pub blocks: usize,
    /// The first block's salt.
    pub cache_salt: Option<Box<str>>,
    /// The items of the blocks that hold some.
    pub items: Vec<Items>,
    /// The refusal of the block after them.
    pub refusal: Option<Refusal>,
}

/// Reads the keys of a chain of `blocks`. The blocks before one that cannot be indexed are held by the
/// engine like any other prefix, so they count.
pub fn read_chain_keys(
    (head, mut cursor): (Head<'_>, Cursor<'_>),
    blocks: usize,
    lora_name: Option<&str>,
    begins_prompt: bool,
) -> Result<ChainKeys, Refusal> {
    let listed = match head {
        Head::Nil | Head::Array(0) => {
            return Ok(ChainKeys {
                blocks,
                ..ChainKeys::default()
            });
        }
        Head::Array(listed) => listed as usize,
        other => {
            let detail = format!("extra_keys of type {}", other.type_name());
            return Err(Refusal::malformed(detail));
        }
    };
    if listed != blocks {
        let detail = format!("extra keys of {listed} blocks for {blocks} blocks");
        return Err(Refusal::new(RefusalReason::LengthMismatch, detail));
    }
    let mut keys = ChainKeys::default();
    for index in 0..blocks {
        if cursor.skip_nil() {
            keys.blocks += 1; // nearly always
            continue;
        }
        let mut of_block = cursor;
        cursor.skip(0)?;
        let first_of_prompt = begins_prompt && index == 0;
        let mut items = Vec::new();
        match read_block_keys(&mut of_block, lora_name, first_of_prompt, &mut items) {
            Ok(salt) => {
                if index == 0 {
                    keys.cache_salt = salt.map(Box::from);
                }
                if !items.is_empty() {
                    keys.items.push((index, items));
                }
                keys.blocks += 1;
            }
            Err(refusal) => {
                keys.refusal = Some(refusal);
                break;
            }
        }
    }
    Ok(keys)
}

/// Reads one block's keys; returns the salt.
fn read_block_keys<'a>(
    cursor: &mut Cursor<'a>,
    lora_name: Option<&str>,
    first_of_prompt: bool,
    items: &mut Vec<u64>,
) -> Result<Option<&'a str>, Refusal> {
    let count = match cursor.head()? {
        Head::Nil => return Ok(None),
        Head::Array(count) => count,
        other => {
            let detail = format!("extra keys of type {}", other.type_name());
            return Err(Refusal::malformed(detail));
        }
    };
    let mut salt = None;
    for index in 0..count {
        let mut key = *cursor;
        cursor.skip(0)?;
        match key.head()? {
            Head::Text(name) if index == 0 && lora_name == Some(name) => (),
            Head::Text("") => (),
            Head::Text(identifier) if !first_of_prompt => items.push(item_hash(identifier)),
            Head::Text(text) if salt.is_none() => salt = Some(text),
            Head::Array(2) => items.push(item_hash(
                item_identifier(&mut key)?.ok_or_else(|| unknown_key("array"))?,
            )),
            Head::Bytes(_) => {
                return Err(Refusal::new(RefusalReason::Embeds, "prompt embeddings"));
            }
            other => return Err(unknown_key(other.type_name())),
        }
    }
    Ok(salt)
}

/// The identifier of `[identifier, offset]`.
fn item_identifier<'a>(pair: &mut Cursor<'a>) -> Result<Option<&'a str>, Malformed> {
    let identifier = pair.head()?;
    if let Head::Text(identifier) = identifier {
        let offset = pair.head()?;
        return Ok(matches!(offset, Head::Int(_) | Head::Bool(_)).then_some(identifier));
    }
    Ok(None)
}

fn unknown_key(type_name: &str) -> Refusal {
    let detail = format!("an extra key of type {type_name}");
    Refusal::new(RefusalReason::UnknownExtraKeys, detail)
}
