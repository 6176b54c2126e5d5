//! vLLM's events, from 0.10.2 (arrays) to 0.33 (maps).
//!
//! Beside its tokens, three things identify a vLLM block: `lora_name` (from 0.14), `extra_keys`
//! (from 0.17.1, see `extra_keys`), and its parent, since a salt stands in a prompt's first block
//! alone.
//!
//! `lookahead_token_ids` (from 0.33, speculative decoding) means that a block's engine hash also
//! covers the token after it. We index the block's plain tokens. Two blocks that differ only in the
//! token after them become one sequence hash, held as long as either is. A look-up may then promise
//! one block more than the engine can use, never two: the next block holds the differing token
//! itself.
//!
//! `ownership` (from 0.29) names the secondary offloading tier that an event is about
//! (<https://github.com/vllm-project/vllm/pull/52067>); the engine's own events have none. The reader
//! ignores it, since the store beside the device that holds a block does not change which worker is
//! asked for it. Where two stores on one tier hold the same block, the first removal takes it out:
//! the index then promises less than is there, never more.

mod extra_keys;

use crate::event::{Event, EventBatch, Refusal, Stored};
use crate::fields as f;
use crate::payload::{Field, RawEvent};
use crate::reader_state::{BlindSpots, ReaderState};
use extra_keys::{ChainKeys, read_chain_keys};

/// Place of `extra_keys` in an array; shorter arrays come from releases without it.
const EXTRA_KEYS_POSITION: u32 = 7;

/// The order of an array's fields after its type.
pub fn array_fields(kind: &str) -> &'static [Field] {
    use Field::{
        BlockHashes, BlockSize, ExtraKeys, GroupIdx, LoraId, LoraName, Medium, ParentBlockHash,
        SpecKind, TokenIds,
    };
    match kind {
        "BlockStored" => &[
            BlockHashes,
            ParentBlockHash,
            TokenIds,
            BlockSize,
            LoraId,
            Medium,
            LoraName,
            ExtraKeys,
            GroupIdx,
            SpecKind,
        ],
        "BlockRemoved" => &[BlockHashes, Medium, GroupIdx],
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
    let group = f::group(event)?;
    let list = f::token_list(event)?;
    let size = f::block_size(event)?;
    let tier = f::tier(event)?;
    if list.0 == 0 {
        if blocks > 0 {
            state.group.admit_hash_only(group)?;
        }
        batch.push_stored_by_hash(first, tier);
        return Ok(());
    }
    let kind = f::optional_text(event, Field::SpecKind)?;
    if state.group.admit_store(group, kind)? {
        // The blocks of the other group no longer count, even if this event is refused below.
        batch.events.push(Event::Cleared(None));
    }
    if size != state.block_size as u64 {
        return Err(Refusal::block_size("blocks", size, state.block_size));
    }
    if event
        .positions
        .is_some_and(|count| count <= EXTRA_KEYS_POSITION)
    {
        let unseen = BlindSpots::CACHE_SALTS.union(BlindSpots::MULTIMODAL_ITEMS);
        state.blind_spots = state.blind_spots.union(unseen);
    }
    let lora_name = f::lora_name(event)?;
    let parent = f::parent_hash(event)?;
    let tokens = f::token_ids(event, list, &mut batch.tokens)?;
    f::in_blocks(tokens.len(), blocks, state.block_size)?;
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
            tokens: tokens.start..tokens.start + understood * state.block_size,
            tier,
            lora_name: lora_name.map(Box::from),
            cache_salt,
            items,
        }));
    }
    if let Some(refusal) = refusal {
        batch.refuse(refusal, blocks - understood, false);
    }
    Ok(())
}
