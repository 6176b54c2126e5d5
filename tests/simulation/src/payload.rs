//! Encodes an engine's messages in msgpack, like vLLM.
//!
//! A chain of blocks is one event, and engines name blocks by hashes of their own.

use crate::engine::CacheEvent;
use crate::record::BLOCK_SIZE;
use crate::tree::Tree;

const MEDIA: [&str; 2] = ["GPU", "CPU"];
/// Engine hashes differ from sequence hashes; any injective function will do.
const ENGINE_HASH_FIRST: u64 = 0x5eed_0000_0000;

/// One message with these events, in order.
#[must_use]
pub fn payload(changes: &[CacheEvent], tree: &Tree) -> Vec<u8> {
    let mut events = Vec::new();
    let mut count = 0;
    let mut rest = changes;
    while let [first, ..] = rest {
        let length = match *first {
            CacheEvent::Stored(_) => chain_length(rest, tree),
            _ => 1,
        };
        let (these, after) = rest.split_at(length);
        event(these, tree, &mut events);
        rest = after;
        count += 1;
    }
    let mut out = vec![0x93, 0xcb];
    out.extend(1.0_f64.to_be_bytes());
    array(count, &mut out);
    out.extend(events);
    out.push(0x00); // the rank
    out
}

/// Number of leading events that are stored as one chain.
fn chain_length(changes: &[CacheEvent], tree: &Tree) -> usize {
    let follows = |pair: &[CacheEvent]| match pair {
        [CacheEvent::Stored(above), CacheEvent::Stored(block)] => {
            tree.parent(*block) == Some(*above)
        }
        _ => false,
    };
    1 + changes.windows(2).take_while(|pair| follows(pair)).count()
}

fn event(changes: &[CacheEvent], tree: &Tree, out: &mut Vec<u8>) {
    match changes[0] {
        CacheEvent::Stored(first) => {
            let blocks = || {
                changes.iter().filter_map(|changes| match changes {
                    CacheEvent::Stored(block) => Some(*block),
                    _ => None,
                })
            };
            let tokens: Vec<u64> = blocks()
                .flat_map(|block| tree.tokens[block])
                .map(u64::from)
                .collect();
            let hashes: Vec<u64> = blocks().map(engine_hash).collect();
            stored(&hashes, tree.parent(first), &tokens, 0, out);
        }
        CacheEvent::Offloaded(block) => stored(&[engine_hash(block)], None, &[], 1, out),
        CacheEvent::Removed(block, tier) => {
            out.push(0x83);
            text("type", out);
            text("BlockRemoved", out);
            text("block_hashes", out);
            numbers(&[engine_hash(block)], out);
            text("medium", out);
            text(MEDIA[tier], out);
        }
        CacheEvent::Cleared => {
            out.push(0x81);
            text("type", out);
            text("AllBlocksCleared", out);
        }
    }
}

fn stored(hashes: &[u64], parent: Option<usize>, tokens: &[u64], tier: usize, out: &mut Vec<u8>) {
    out.push(0x86);
    text("type", out);
    text("BlockStored", out);
    text("block_hashes", out);
    numbers(hashes, out);
    text("parent_block_hash", out);
    match parent {
        Some(block) => number(engine_hash(block), out),
        None => out.push(0xc0),
    }
    text("token_ids", out);
    numbers(tokens, out);
    text("block_size", out);
    number(u64::from(BLOCK_SIZE), out);
    text("medium", out);
    text(MEDIA[tier], out);
}

fn engine_hash(block: usize) -> u64 {
    ENGINE_HASH_FIRST + block as u64
}

fn array(length: usize, out: &mut Vec<u8>) {
    out.push(0xdd);
    out.extend((length as u32).to_be_bytes());
}

fn numbers(values: &[u64], out: &mut Vec<u8>) {
    array(values.len(), out);
    for &value in values {
        number(value, out);
    }
}

fn number(value: u64, out: &mut Vec<u8>) {
    out.push(0xcf);
    out.extend(value.to_be_bytes());
}

/// Writes a short text.
fn text(value: &str, out: &mut Vec<u8>) {
    out.push(0xa0 | value.len() as u8);
    out.extend(value.as_bytes());
}
