//! Checked access to the fields of raw events; the same for all engines.
//!
//! Each function returns a field in the model's types, or a [`Refusal`], which becomes one
//! `Event::Unindexable`.

use std::ops::Range;

use crate::event::{EngineHash, Refusal, RefusalReason, Tier};
use crate::msgpack::{Cursor, Head, Integer, Malformed};
use crate::payload::{Field, RawEvent};

impl From<Malformed> for Refusal {
    /// Never happens: fields are read from messages that were checked throughout.
    fn from(error: Malformed) -> Self {
        Self::malformed(error.0)
    }
}

/// The number of blocks in the event, if it can be read; otherwise 0.
pub fn announced_blocks(event: &RawEvent<'_>) -> usize {
    match event.field(Field::BlockHashes) {
        Ok((Head::Array(count), _)) => count as usize,
        _ => 0,
    }
}

/// Appends the normalised `block_hashes` and returns their number.
pub fn block_hashes(event: &RawEvent<'_>, into: &mut Vec<EngineHash>) -> Result<usize, Refusal> {
    let (Head::Array(count), mut cursor) = event.field(Field::BlockHashes)? else {
        return Err(Refusal::malformed("block_hashes is no array"));
    };
    into.reserve(count as usize); // not more than the message has bytes: it has been skipped over
    for _ in 0..count {
        into.push(match cursor.number_u64() {
            Some(hash) => EngineHash::from_int(hash), // nearly always
            None => engine_hash(cursor.head()?)?,
        });
    }
    Ok(count as usize)
}

/// The normalised `parent_block_hash`.
pub fn parent_hash(event: &RawEvent<'_>) -> Result<Option<EngineHash>, Refusal> {
    match event.field(Field::ParentBlockHash)?.0 {
        Head::Nil => Ok(None),
        head => engine_hash(head).map(Some),
    }
}

/// One block hash: an integer modulo 2^64, or a digest.
fn engine_hash(head: Head<'_>) -> Result<EngineHash, Refusal> {
    match head {
        Head::Int(Integer::Unsigned(hash)) => Ok(EngineHash::from_int(hash)),
        Head::Int(Integer::Negative(hash)) => Ok(EngineHash::from_int(hash as u64)),
        Head::Bytes(digest) if !digest.is_empty() => Ok(EngineHash::from_bytes(digest)),
        other => Err(Refusal::malformed(format!(
            "a block hash of type {}",
            other.type_name()
        ))),
    }
}

/// A string field; the empty string means none, as absence does.
pub fn optional_text<'a>(event: &RawEvent<'a>, field: Field) -> Result<Option<&'a str>, Refusal> {
    match event.field(field)?.0 {
        Head::Nil | Head::Text("") => Ok(None),
        Head::Text(text) => Ok(Some(text)),
        other => Err(mistyped(field, other)),
    }
}

/// An integer field.
fn optional_number(event: &RawEvent<'_>, field: Field) -> Result<Option<Integer>, Refusal> {
    match event.field(field)?.0 {
        Head::Nil => Ok(None),
        Head::Int(number) => Ok(Some(number)),
        other => Err(mistyped(field, other)),
    }
}

fn mistyped(field: Field, head: Head<'_>) -> Refusal {
    Refusal::malformed(format!("{} is of type {}", field.name(), head.type_name()))
}

/// The adapter's name. Its number alone means nothing outside the engine.
pub fn lora_name<'a>(event: &RawEvent<'a>) -> Result<Option<&'a str>, Refusal> {
    let name = optional_text(event, Field::LoraName)?;
    let id = event.field(Field::LoraId)?.0;
    if name.is_none() && id != Head::Nil {
        let detail = match id {
            Head::Int(number) => number.wide().to_string(),
            other => format!("of type {}", other.type_name()),
        };
        return Err(Refusal::new(RefusalReason::LoraIdWithoutName, detail));
    }
    Ok(name)
}

/// The event's cache group.
pub fn group(event: &RawEvent<'_>) -> Result<Option<i128>, Refusal> {
    Ok(optional_number(event, Field::GroupIdx)?.map(Integer::wide))
}

/// The event's `block_size`; 0 stands in placeholders.
pub fn block_size(event: &RawEvent<'_>) -> Result<u64, Refusal> {
    match optional_number(event, Field::BlockSize)? {
        Some(Integer::Unsigned(size)) => Ok(size),
        _ => Err(Refusal::malformed("block_size is no size")),
    }
}

/// The number of `token_ids`, and where they begin in the message.
pub fn token_list<'a>(event: &RawEvent<'a>) -> Result<(usize, Cursor<'a>), Refusal> {
    match event.field(Field::TokenIds)? {
        (Head::Array(count), cursor) => Ok((count as usize, cursor)),
        _ => Err(Refusal::malformed("token_ids is no array")),
    }
}

/// The tier that `medium` and `locality` name; no medium means the device.
pub fn tier(event: &RawEvent<'_>) -> Result<Tier, Refusal> {
    let medium = optional_text(event, Field::Medium)?;
    let locality = optional_text(event, Field::Locality)?;
    let Some(named) = medium.map_or(Some(Tier::Device), named_tier) else {
        let detail = format!("medium {:?}", medium.unwrap_or_default());
        return Err(Refusal::new(RefusalReason::UnknownTier, detail));
    };
    if locality.is_some_and(|locality| locality.to_uppercase() == "REMOTE") {
        return Ok(Tier::Remote);
    }
    Ok(named)
}

fn named_tier(medium: &str) -> Option<Tier> {
    Some(match medium {
        "GPU" => Tier::Device, // nearly always
        _ => match medium.to_lowercase().as_str() {
            "gpu" => Tier::Device,
            "cpu" => Tier::Host, // vLLM's connectors, LMCache, Mooncake (in lower case)
            "cpu_pinned" => Tier::Host, // SGLang
            "disk" => Tier::Disk, // SGLang, LMCache
            "storage" => Tier::Disk, // vLLM
            "fs" => Tier::Disk,  // vLLM, older
            "obj" => Tier::Remote, // vLLM, older: an object store
            "external" => Tier::Remote, // SGLang: a storage backend
            _ => return None,
        },
    })
}

/// The range of plain token ids in their column. They are appended now, unless they were when the
/// message was skipped over.
pub fn token_ids(
    event: &RawEvent<'_>,
    (count, list): (usize, Cursor<'_>),
    column: &mut Vec<u32>,
) -> Result<Range<usize>, Refusal> {
    if let Some(read) = &event.tokens {
        return Ok(read.clone());
    }
    let start = column.len();
    tokens_u32(count, list, column)?;
    Ok(start..column.len())
}

/// Appends plain token ids.
fn tokens_u32(count: usize, mut cursor: Cursor<'_>, into: &mut Vec<u32>) -> Result<(), Refusal> {
    let mut read = 0;
    loop {
        read += cursor.numbers_u32(count - read, into);
        if read == count {
            return Ok(());
        }
        into.push(odd_token(cursor.head()?)?);
        read += 1;
    }
}

/// A token that is not encoded in the shortest way, or is none.
fn odd_token(head: Head<'_>) -> Result<u32, Refusal> {
    match head {
        Head::Int(token) => u32::try_from(token.wide()).ok(),
        Head::Bool(token) => Some(u32::from(token)), // a bool is an integer in Python
        _ => None,
    }
    .ok_or_else(|| {
        let detail = format!("token ids: {} of no 32 bits", head.type_name());
        Refusal::new(RefusalReason::BadTokens, detail)
    })
}

/// Appends the plain tokens of bigram ids `[[t0, t1], [t1, t2], …]`: the first of each pair.
pub fn bigrams_u32(
    (count, cursor): (usize, Cursor<'_>),
    column: &mut Vec<u32>,
) -> Result<Range<usize>, Refusal> {
    let broken = |detail: &str| Refusal::new(RefusalReason::BrokenBigrams, detail);
    let mut pairs = cursor;
    for _ in 0..count {
        let mut pair = pairs;
        if pair.head()? != Head::Array(2) {
            return Err(broken("a bigram that is no pair"));
        }
        pairs.skip(0)?;
    }
    let mut flat = Vec::with_capacity(2 * count);
    let mut pairs = cursor;
    for _ in 0..count {
        pairs.head()?;
        tokens_u32(2, pairs, &mut flat)?;
        pairs.skip(0)?;
        pairs.skip(0)?;
    }
    if flat.windows(3).step_by(2).any(|run| run[1] != run[2]) {
        return Err(broken("bigrams that do not follow one another"));
    }
    let start = column.len();
    column.extend(flat.iter().step_by(2));
    Ok(start..column.len())
}

/// Refuses a number of tokens that does not fill `blocks` blocks of `size`.
pub fn in_blocks(tokens: usize, blocks: usize, size: usize) -> Result<(), Refusal> {
    if Some(tokens) == blocks.checked_mul(size) {
        return Ok(());
    }
    Err(Refusal::new(
        RefusalReason::LengthMismatch,
        format!("{tokens} tokens for {blocks} blocks of {size}"),
    ))
}
