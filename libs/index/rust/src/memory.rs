//! Memory: when it may be reused, arrays that readers may hold while their owner moves, and prefetching.
//!
//! 1. [`reclamation`] – epoch-based reclamation
//! 2. [`zeroed_array`] – arrays of atomics on large pages
//! 3. [`prefetch`] – asks for a cache line before it is read

pub(crate) mod prefetch;
pub(crate) mod reclamation;
pub(crate) mod zeroed_array;
