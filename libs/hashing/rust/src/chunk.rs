//! Chunk hashes: one per full block of a prompt's tokens.
//!
//! The block size chooses the code once per prompt. For the usual small blocks the length is a constant,
//! so the compiler reduces the plain function to a few multiplications and moves the seed's part out
//! of the loop. Long blocks go to `long_blocks`.

use std::num::NonZeroUsize;

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::long_blocks;
use crate::token_bytes::le_bytes;

/// Index of a block in the prompt, and its item hashes.
pub type Items = (usize, Vec<u64>);

/// Returns the hash of one block's tokens and of its multimodal items, which may be in any order.
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
        8 => hash_fixed::<32>(&bytes, seed, out),
        16 => hash_fixed::<64>(&bytes, seed, out),
        // No full block; the size in bytes could overflow.
        size if size > tokens.len() => (),
        size if size * 4 > long_blocks::SHORT_BYTES_MAX => {
            long_blocks::hash_blocks(&bytes, size * 4, seed, out);
        }
        size => {
            for (hash, block) in out.iter_mut().zip(bytes.chunks_exact(size * 4)) {
                *hash = xxh3_64_with_seed(block, seed);
            }
        }
    }
}

/// Like [`chunk_hashes_into`], with the items of the blocks that have some.
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

fn hash_fixed<const BLOCK_BYTES: usize>(bytes: &[u8], seed: u64, out: &mut [u64]) {
    for (hash, block) in out.iter_mut().zip(bytes.chunks_exact(BLOCK_BYTES)) {
        *hash = xxh3_64_with_seed(&block[..BLOCK_BYTES], seed);
    }
}
