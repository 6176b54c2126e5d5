//! The hash contract of kvatlas: chunk hashes and sequence hashes.
//!
//! The pure-Python module `kvatlas_hashing.reference` is the specification; the golden vectors that
//! come from it are this crate's tests. The definitions are those of NVIDIA Dynamo's router, so its
//! PyPI package is an independent check of both.
//!
//! Tokens are `u32`, hashed as little-endian bytes. The crate is pure: no I/O, no clock, no protobuf.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Seed of the chain, and of chunk hashes before the adapter's and the salt's share is added.
pub const BASE_SEED: u64 = 1337;

/// One step of the chain: the sequence hash of a prefix from its parent's and its last block's.
#[inline(always)]
pub fn sequence_step(parent: u64, chunk: u64) -> u64 {
    let mut bytes = [0u8; 16];
    bytes[..8].copy_from_slice(&parent.to_le_bytes());
    bytes[8..].copy_from_slice(&chunk.to_le_bytes());
    xxh3_64_with_seed(&bytes, BASE_SEED)
}
