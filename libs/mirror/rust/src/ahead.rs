//! Look-ups ahead of their turn: one alone waits for memory, many wait together, and what they bring
//! into the cache is still there when their turn comes.

use std::hint::black_box;

use hashbrown::HashTable;
use kvatlas_pages::Memory;

/// More would push each other out of the cache.
const TOUCHED_MAX: usize = 1_024;

/// Brings the places of the first of these hashes in a table into the cache.
pub fn touch(table: &HashTable<u32, Memory>, hashes: impl Iterator<Item = u64>) {
    for hash in hashes.take(TOUCHED_MAX) {
        // Which number stands there is asked later: comparing would wait for what it stands for.
        black_box(table.find(hash, |_| true));
    }
}
