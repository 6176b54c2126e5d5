//! An engine's messages as its publisher gets them: msgpack, as vLLM encodes it.
//!
//! A chain of blocks is one event, as engines tell it, and engines name blocks by hashes of their own.

use crate::engine::Told;
use crate::record::BLOCK_SIZE;
use crate::tree::Tree;

const MEDIA: [&str; 2] = ["GPU", "CPU"];
/// Engine hashes are not ours: any injection will do.
const ENGINE_HASH_FIRST: u64 = 0x5eed_0000_0000;

/// One message that tells this, in order.
#[must_use]
pub fn payload(told: &[Told], tree: &Tree) -> Vec<u8> {
    let mut events = Vec::new();
    let mut count = 0;
    let mut rest = told;
    while let [first, ..] = rest {
        let length = match *first {
            Told::Stored(_) => chain_length(rest, tree),
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

/// How many of these, from the first on, are stored as one chain.
fn chain_length(told: &[Told], tree: &Tree) -> usize {
    let follows = |pair: &[Told]| match pair {
        [Told::Stored(above), Told::Stored(block)] => tree.parent(*block) == Some(*above),
        _ => false,
    };
    1 + told.windows(2).take_while(|pair| follows(pair)).count()
}

fn event(told: &[Told], tree: &Tree, out: &mut Vec<u8>) {
    match told[0] {
        Told::Stored(first) => {
            let blocks = || {
                told.iter().filter_map(|told| match told {
                    Told::Stored(block) => Some(*block),
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
        Told::Offloaded(block) => stored(&[engine_hash(block)], None, &[], 1, out),
        Told::Removed(block, tier) => {
            out.push(0x83);
            text("type", out);
            text("BlockRemoved", out);
            text("block_hashes", out);
            numbers(&[engine_hash(block)], out);
            text("medium", out);
            text(MEDIA[tier], out);
        }
        Told::Cleared => {
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

/// All our texts are short.
fn text(value: &str, out: &mut Vec<u8>) {
    out.push(0xa0 | value.len() as u8);
    out.extend(value.as_bytes());
}
