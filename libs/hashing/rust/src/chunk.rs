//! Chunk hashes: one per full block of a prompt's tokens.
//!
//! Which path is taken is decided once for a prompt, by the block size. For the usual small blocks
//! the length is a constant, so that the plain function shrinks to its few multiplications with the
//! seed's share hoisted out of the loop; long blocks go to `stripes`.

use std::num::NonZeroUsize;

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::bytes::le_bytes;
use crate::stripes;

/// The item hashes of one block, by the block's place in the prompt.
pub type Items = (usize, Vec<u64>);

/// The hash of one block's tokens and of the multimodal items that it holds, in any order.
#[must_use]
pub fn chunk_hash(tokens: &[u32], seed: u64, items: &[u64]) -> u64 {
    if items.is_empty() {
        return xxh3_64_with_seed(&le_bytes(tokens), seed);
    }
    let mut sorted = items.to_vec();
    sorted.sort_unstable();
    let mut hasher = Xxh3::with_seed(seed);
    hasher.update(&le_bytes(tokens));
    for item in sorted {
        hasher.update(&item.to_le_bytes());
    }
    hasher.digest()
}

/// Writes the chunk hash of every full block of `tokens`; the partial tail has none.
///
/// # Panics
/// If `out` is not as long as there are full blocks.
pub fn chunk_hashes_into(tokens: &[u32], block_size: NonZeroUsize, seed: u64, out: &mut [u64]) {
    assert_eq!(
        out.len(),
        tokens.len() / block_size,
        "one hash per full block"
    );
    let bytes = le_bytes(tokens);
    match block_size.get() {
        8 => each_of::<32>(&bytes, seed, out),
        16 => each_of::<64>(&bytes, seed, out),
        // A block size beyond any prompt has no full block, and no number of bytes either.
        size if size > tokens.len() => (),
        size if size * 4 > stripes::SHORT_BYTES_MAX => {
            stripes::hash_blocks(&bytes, size * 4, seed, out);
        }
        size => {
            for (slot, block) in out.iter_mut().zip(bytes.chunks_exact(size * 4)) {
                *slot = xxh3_64_with_seed(block, seed);
            }
        }
    }
}

/// As [`chunk_hashes_into`], with the items of those blocks that hold some.
///
/// # Panics
/// If `out` is not as long as there are full blocks, or an item's block is not one of them.
pub fn chunk_hashes_with_items_into(
    tokens: &[u32],
    block_size: NonZeroUsize,
    seed: u64,
    items: &[Items],
    out: &mut [u64],
) {
    chunk_hashes_into(tokens, block_size, seed, out);
    for (block, hashes) in items {
        let start = block * block_size.get();
        out[*block] = chunk_hash(&tokens[start..start + block_size.get()], seed, hashes);
    }
}

fn each_of<const BLOCK_BYTES: usize>(bytes: &[u8], seed: u64, out: &mut [u64]) {
    for (slot, block) in out.iter_mut().zip(bytes.chunks_exact(BLOCK_BYTES)) {
        *slot = xxh3_64_with_seed(&block[..BLOCK_BYTES], seed);
    }
}
