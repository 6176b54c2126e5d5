//! SGLang's events, from 0.5.17 (arrays) to 0.5.23 (maps).
//!
//! Adapter and salt are fields of their own (`lora_name`, `cache_salt`); images are part of the token
//! ids. SGLang calls a block a page.
//!
//! With EAGLE speculative decoding `token_ids` are bigrams `[[t0, t1], [t1, t2], …]`: a page's engine
//! hash also covers the token after the page. We index the plain tokens, the first of each pair. Two
//! pages that differ only in the token after them become one sequence hash, held as long as either
//! is. A look-up may then promise one page more than the engine can use, never two: the next page
//! holds the differing token itself. (The engine matches floor((n - 1) / page) pages of n tokens,
//! which is what a frontend counts anyway, since the last token is always computed again.)

use crate::event::{Event, EventBatch, Refusal, Stored};
use crate::fields as f;
use crate::msgpack::Head;
use crate::payload::{Field, RawEvent};
use crate::reader_state::{BlindSpots, ReaderState};

/// Place of `cache_salt` in an array; shorter arrays come from releases without it.
const CACHE_SALT_POSITION: u32 = 6;

/// The order of an array's fields after its type.
pub fn array_fields(kind: &str) -> &'static [Field] {
    use Field::{
        BlockHashes, BlockSize, CacheSalt, LoraId, LoraName, Medium, ParentBlockHash, TokenIds,
        Unused,
    };
    match kind {
        "BlockStored" => &[
            BlockHashes,
            ParentBlockHash,
            TokenIds,
            BlockSize,
            LoraId,
            Medium,
            CacheSalt,
            Unused, // session_id
            LoraName,
        ],
        "BlockRemoved" => &[BlockHashes, Medium],
        _ => &[],
    }
}

/// Reads a `BlockStored`. The caller undoes what a refused event has appended.
pub fn read_stored(
    state: &mut ReaderState,
    event: &RawEvent<'_>,
    batch: &mut EventBatch,
) -> Result<(), Refusal> {
    let first = batch.hashes.len();
    let blocks = f::block_hashes(event, &mut batch.hashes)?;
    let list = f::token_list(event)?;
    let size = f::block_size(event)?;
    let tier = f::tier(event)?;
    if list.0 == 0 {
        batch.push_stored_by_hash(first, tier);
        return Ok(());
    }
    if size != state.block_size as u64 {
        return Err(Refusal::block_size("pages", size, state.block_size));
    }
    if event
        .positions
        .is_some_and(|count| count <= CACHE_SALT_POSITION)
    {
        let unseen = BlindSpots::ADAPTERS.union(BlindSpots::CACHE_SALTS);
        state.blind_spots = state.blind_spots.union(unseen);
    }
    let lora_name = f::lora_name(event)?;
    let mut peeked = list.1;
    let tokens = if matches!(peeked.head()?, Head::Array(_)) {
        f::bigrams_u32(list, &mut batch.tokens)?
    } else {
        f::token_ids(event, list, &mut batch.tokens)?
    };
    let parent = f::parent_hash(event)?;
    f::in_blocks(tokens.len(), blocks, state.block_size)?;
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
