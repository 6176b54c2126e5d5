//! SGLang's events, from 0.5.17 (arrays) to 0.5.23 (maps); the reference is
//! `kvatlas_engines.sglang`, where it is said what bigram tokens mean.

use crate::engine::{Reader, blind, stored_by_hash, wrong_block_size};
use crate::fields as f;
use crate::model::{Batch, Event, Refusal, Stored};
use crate::msgpack::Head;
use crate::payload::{Field, RawEvent};
use crate::vllm::named_adapter;

const CACHE_SALT_POSITION: u32 = 6;

/// Reads a `BlockStored`; what it appends to the columns before it refuses is the caller's to undo.
pub fn read_stored(
    reader: &mut Reader,
    event: &RawEvent<'_>,
    batch: &mut Batch,
) -> Result<(), Refusal> {
    let first = batch.hashes.len();
    let blocks = f::block_hashes(event, &mut batch.hashes)?;
    let list = f::token_list(event)?;
    let size = f::block_size(event)?;
    let tier = f::tier(event)?;
    if list.0 == 0 {
        stored_by_hash(first, tier, batch);
        return Ok(());
    }
    if size != reader.block_size as u64 {
        return Err(wrong_block_size("pages", size, reader.block_size));
    }
    if event
        .positions
        .is_some_and(|count| count <= CACHE_SALT_POSITION)
    {
        reader.blind_spots |= blind::ADAPTERS | blind::CACHE_SALTS;
    }
    let lora_name = named_adapter(event)?;
    let mut peeked = list.1;
    let tokens = if matches!(peeked.head()?, Head::Array(_)) {
        f::bigrams_u32(list, &mut batch.tokens)?
    } else {
        f::token_ids(event, list, &mut batch.tokens)?
    };
    let parent = f::parent_hash(event)?;
    f::in_blocks(tokens.len(), blocks, reader.block_size)?;
    let cache_salt = f::optional_text(event, Field::CacheSalt)?;
    batch.events.push(Event::Stored(Stored {
        hashes: first..batch.hashes.len(),
        parent,
        tokens,
        tier,
        lora_name: lora_name.map(Box::from),
        cache_salt: cache_salt.map(Box::from),
        items: Vec::new(),
    }));
    Ok(())
}
