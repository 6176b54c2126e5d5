//! vLLM's events, from 0.10.2 (arrays) to 0.33 (maps); the reference is `kvatlas_engines.vllm`.

use crate::engine::{Reader, blind, stored_by_hash, wrong_block_size};
use crate::extra_keys::{ChainKeys, read_chain_keys};
use crate::fields as f;
use crate::model::{Batch, Event, Reason, Refusal, Stored};
use crate::msgpack::Head;
use crate::payload::{Field, RawEvent};

const EXTRA_KEYS_POSITION: u32 = 7;

/// Reads a `BlockStored`; what it appends to the columns before it refuses is the caller's to undo.
pub fn read_stored(
    reader: &mut Reader,
    event: &RawEvent<'_>,
    batch: &mut Batch,
) -> Result<(), Refusal> {
    let first = batch.hashes.len();
    let blocks = f::block_hashes(event, &mut batch.hashes)?;
    let group = f::group(event)?;
    let list = f::token_list(event)?;
    let size = f::block_size(event)?;
    let tier = f::tier(event)?;
    if list.0 == 0 {
        if blocks > 0 {
            reader.groups.admit_hash_only(group)?;
        }
        stored_by_hash(first, tier, batch);
        return Ok(());
    }
    let kind = f::optional_text(event, Field::SpecKind)?;
    if reader.groups.admit_store(group, kind)? {
        // Whatever else is wrong with this event: what the other group stored counts no more.
        batch.events.push(Event::Cleared(None));
    }
    if size != reader.block_size as u64 {
        return Err(wrong_block_size("blocks", size, reader.block_size));
    }
    let lora_name = lora_name(reader, event)?;
    let parent = f::parent_hash(event)?;
    let tokens = f::token_ids(event, list, &mut batch.tokens)?;
    f::in_blocks(tokens.len(), blocks, reader.block_size)?;
    let extra_keys = event.field(Field::ExtraKeys)?;
    let ChainKeys {
        blocks: understood,
        cache_salt,
        items,
        refusal,
    } = read_chain_keys(extra_keys, blocks, lora_name, parent.is_none())?;
    if understood > 0 {
        batch.events.push(Event::Stored(Stored {
            hashes: first..first + understood,
            parent,
            tokens: tokens.start..tokens.start + understood * reader.block_size,
            tier,
            lora_name: lora_name.map(Box::from),
            cache_salt,
            items,
        }));
    }
    if let Some(refusal) = refusal {
        batch.events.push(Event::Unindexable {
            reason: refusal.reason,
            blocks: blocks - understood,
            may_hide_removal: false,
        });
        batch.refusals.push(refusal);
    }
    Ok(())
}

fn lora_name<'a>(reader: &mut Reader, event: &RawEvent<'a>) -> Result<Option<&'a str>, Refusal> {
    if event
        .positions
        .is_some_and(|count| count <= EXTRA_KEYS_POSITION)
    {
        reader.blind_spots |= blind::CACHE_SALTS | blind::MULTIMODAL_ITEMS;
    }
    named_adapter(event)
}

/// The adapter's name; its number alone says nothing outside of the engine.
pub fn named_adapter<'a>(event: &RawEvent<'a>) -> Result<Option<&'a str>, Refusal> {
    let name = f::optional_text(event, Field::LoraName)?;
    let id = event.field(Field::LoraId)?.0;
    if name.is_none() && id != Head::Nil {
        let detail = match id {
            Head::Int(number) => number.wide().to_string(),
            other => format!("of type {}", other.type_name()),
        };
        return Err(Refusal::new(Reason::LoraIdWithoutName, detail));
    }
    Ok(name)
}
