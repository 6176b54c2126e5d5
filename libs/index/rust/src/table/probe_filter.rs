//! A Bloom filter of 32 bits and one hash function on each line: the keys that found the line full and went on.
//!
//! A look-up searches for many blocks that nobody holds, to tell where matches end. Without the filter such a search reads
//! on for as long as lines are full; with it, nearly all of them end on their first line. A key is added before it is
//! written to another line, and is never taken out while the array lives. So a search that does not find its key in the
//! filter has ended. A false positive costs a line more.

use crate::sync::atomic::{AtomicU32, Ordering};

/// The keys that have gone past a line.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct ProbeFilter(AtomicU32);

impl ProbeFilter {
    /// Whether a key with this home may have gone past. Never true of a line that has a vacant entry.
    #[inline(always)]
    pub fn may_contain(&self, fraction: u64) -> bool {
        self.0.load(Ordering::Relaxed) & bit_of(fraction) != 0
    }

    /// Writer only: adds a key, before it is written anywhere else.
    #[inline(always)]
    pub fn insert(&self, fraction: u64) {
        let bits = self.0.load(Ordering::Relaxed);
        self.0.store(bits | bit_of(fraction), Ordering::Relaxed);
    }

    #[cfg(loom)]
    pub fn mark_freed(&mut self) {
        self.0.mark_freed();
    }
}

/// The bit of a key. It is taken from bits of the hash that say neither the home line nor the leap from it.
#[inline(always)]
fn bit_of(fraction: u64) -> u32 {
    1 << bit_number(fraction)
}

/// The number of a key's bit in the filter.
#[inline(always)]
pub(crate) fn bit_number(fraction: u64) -> u64 {
    fraction >> 32 & 31
}
