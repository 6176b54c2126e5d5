//! Brings the buckets of coming look-ups into the cache, so that the waits for memory of many look-ups
//! overlap.

use std::hint::black_box;

use hashbrown::HashTable;
use kvatlas_pages::Memory;

/// More look-ups than this would evict each other from the cache.
const PREFETCHED_MAX: usize = 1_024;

/// Brings the buckets of the first of these hashes into the cache.
pub fn prefetch(table: &HashTable<u32, Memory>, hashes: impl Iterator<Item = u64>) {
    for hash in hashes.take(PREFETCHED_MAX) {
        // Any entry will do: comparing would wait for the memory behind it.
        black_box(table.find(hash, |_| true));
    }
}
