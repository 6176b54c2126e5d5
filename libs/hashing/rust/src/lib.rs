//! The hash contract of kvatlas: chunk hashes and sequence hashes.
//!
//! The pure-Python module `kvatlas_hashing.reference` is the specification, and its golden vectors are
//! this crate's tests. NVIDIA Dynamo's router uses the same definitions, so its PyPI package checks
//! both independently.
//!
//! Tokens are `u32`, hashed as little-endian bytes. The crate has no I/O, no clock and no protobuf.

mod chain;
mod chunk;
mod long_blocks;
mod seed;
mod token_bytes;

pub use chain::{sequence_hashes_into, sequence_step};
pub use chunk::{Items, chunk_hash, chunk_hashes_into, chunk_hashes_with_items_into};
pub use seed::{BASE_SEED, item_hash, seed};

/// Name of the hash contract, in queries and batches.
pub const CONTRACT: &str = "xxh3-1337-v1";
