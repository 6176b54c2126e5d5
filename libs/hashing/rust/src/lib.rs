//! The hash contract of kvatlas: chunk hashes and sequence hashes.
//!
//! The pure-Python module `kvatlas_hashing.reference` is the specification; the golden vectors that
//! come from it are this crate's tests. The definitions are those of NVIDIA Dynamo's router, so its
//! PyPI package is an independent check of both.
//!
//! Tokens are `u32`, hashed as little-endian bytes. The crate is pure: no I/O, no clock, no protobuf.

mod bytes;
mod chain;
mod chunk;
mod seed;
mod stripes;

pub use chain::{sequence_hashes_into, sequence_step};
pub use chunk::{Items, chunk_hash, chunk_hashes_into, chunk_hashes_with_items_into};
pub use seed::{BASE_SEED, item_hash, seed};

/// The name of these definitions, as queries and batches carry it.
pub const CONTRACT: &str = "xxh3-1337-v1";
