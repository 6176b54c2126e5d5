//! Sequence hashes of a prompt's prefixes, as a chain over its chunk hashes.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::seed::BASE_SEED;

/// Returns the sequence hash of a prefix from its parent's and the chunk hash of its last block.
#[inline(always)]
#[must_use]
pub fn sequence_step(parent: u64, chunk: u64) -> u64 {
    let mut bytes = [0u8; 16];
    bytes[..8].copy_from_slice(&parent.to_le_bytes());
    bytes[8..].copy_from_slice(&chunk.to_le_bytes());
    xxh3_64_with_seed(&bytes, BASE_SEED)
}

/// Writes the sequence hash of every prefix of `chunks`; the first is the first chunk hash itself.
///
/// # Panics
/// If `out` is not as long as `chunks`.
pub fn sequence_hashes_into(chunks: &[u64], out: &mut [u64]) {
    assert_eq!(chunks.len(), out.len(), "one sequence hash per chunk hash");
    let Some((&first, rest)) = chunks.split_first() else {
        return;
    };
    let mut sequence = first;
    out[0] = first;
    for (hash, &chunk) in out[1..].iter_mut().zip(rest) {
        sequence = sequence_step(sequence, chunk);
        *hash = sequence;
    }
}
