//! One entry of the table: a block's hash, and the set of workers that hold it. 12 bytes, five on a line.
//!
//! `unsafe` here: turning a compact set into the stored set. Sound because an entry is only borrowed from a table that is
//! protected. Checked by the models, `tests/stress.rs` and `tests/differential.rs`.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::table::compact_set::CompactSet;
use crate::table::set_word::StoredSet;
use crate::table::spilled_sets::SpilledSets;

/// An entry, borrowed from its line.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'p> {
    pub(super) key: &'p AtomicU64,
    pub(super) set: &'p AtomicU32,
    pub(super) spilled: &'p SpilledSets,
}

impl<'p> Entry<'p> {
    #[inline]
    pub fn set(self) -> StoredSet<'p> {
        // SAFETY: loaded with `Acquire` from an entry that is protected as long as it is borrowed.
        unsafe { StoredSet::from_word(self.spilled.word_of(self.compact_set())) }
    }

    /// The key; meaningful once the entry is not vacant.
    #[inline]
    pub fn key(self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub fn compact_set(self) -> CompactSet {
        CompactSet::from_bits(self.set.load(Ordering::Acquire))
    }

    /// Writer only: gives an entry that [`CompactSet::takes_key`] its key and first set.
    #[inline(always)]
    pub fn claim(self, key: u64, set: CompactSet) {
        self.key.store(key, Ordering::Relaxed);
        self.set.store(set.bits(), Ordering::Release);
    }

    /// Writer only: stores another set for the same key.
    #[inline(always)]
    pub fn store_set(self, set: CompactSet) {
        self.set.store(set.bits(), Ordering::Release);
    }
}
