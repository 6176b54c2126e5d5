//! Sequence hashes from chunk hashes, computed no further than needed.

use kvatlas_hashing::sequence_step;

/// The sequence hash of the block `chunk` that follows `parent`.
#[inline]
pub(crate) fn next_hash(parent: Option<u64>, chunk: u64) -> u64 {
    parent.map_or(chunk, |parent| sequence_step(parent, chunk))
}

/// Chunk and sequence hashes of blocks that follow `parent`.
pub(crate) fn chained(
    mut parent: Option<u64>,
    chunks: &[u64],
) -> impl Iterator<Item = (u64, u64)> + '_ {
    chunks.iter().map(move |&chunk| {
        let hash = next_hash(parent, chunk);
        parent = Some(hash);
        (chunk, hash)
    })
}

/// The sequence hash of block `at` of a prompt; `hashes` keeps those computed so far.
#[inline]
pub(crate) fn hash_at(chunks: &[u64], hashes: &mut Vec<u64>, at: usize) -> u64 {
    while hashes.len() <= at {
        let hash = next_hash(hashes.last().copied(), chunks[hashes.len()]);
        hashes.push(hash);
    }
    hashes[at]
}
