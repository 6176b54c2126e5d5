//! A line: five entries in one cache line, which a search reads together.
//!
//! An entry's key is written before the compact set that ends "vacant" or "tombstone". The key is replaced only if the set
//! has been a tombstone for a grace period. So a pinned reader sees at most one change of an entry's key, and that one from
//! a tombstone. The reader loads the set (`Acquire`), then the key. If the set has holders, it belongs to the key that was
//! read. If it has none, the reader may have either key, and neither had a holder then.
//!
//! A key that finds its line full goes on to another, and is first added to the line's [`ProbeFilter`]. So a search
//! that finds neither the key nor its bit in the filter has ended: the block was neither on this line nor beyond it when the
//! keys were read. Else the bit would have been set. A store that finds no bit need not read on to know that it may take the
//! tombstone which it has passed.
//!
//! `unsafe` here: lines made of zero bytes. Sound because a line is atomics alone. Checked by the models, `tests/stress.rs`
//! and `tests/differential.rs`.

use crate::memory::zeroed_array::Zeroable;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::table::compact_set::CompactSet;
use crate::table::entry::Entry;
use crate::table::probe_filter::ProbeFilter;
use crate::table::spilled_sets::SpilledSets;

/// Entries of a line. They get their keys from the first to the last.
pub(crate) const ENTRIES_PER_LINE: usize = 5;

/// A cache line of entries: their keys, then in the same order their compact sets, then the filter.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Line {
    keys: [AtomicU64; ENTRIES_PER_LINE],
    sets: [AtomicU32; ENTRIES_PER_LINE],
    /// The keys that found no entry here, and went on to another line.
    pub probe_filter: ProbeFilter,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == 64);

// SAFETY: atomics; zero bytes are five vacant entries.
unsafe impl Zeroable for Line {
    #[cfg(loom)]
    fn zero() -> Self {
        Self::default()
    }
    #[cfg(loom)]
    fn mark_freed(&mut self) {
        self.keys.iter_mut().for_each(AtomicU64::mark_freed);
        self.sets.iter_mut().for_each(AtomicU32::mark_freed);
        self.probe_filter.mark_freed();
    }
}

impl Line {
    #[inline(always)]
    pub fn entry<'p>(&'p self, at: usize, spilled: &'p SpilledSets) -> Entry<'p> {
        Entry {
            key: &self.keys[at],
            set: &self.sets[at],
            spilled,
        }
    }

    /// The compact set of the key, or "vacant" if a search for it ends here; none if the search goes on.
    #[inline(always)]
    pub fn find(&self, hash: u64, fraction: u64) -> Option<CompactSet> {
        let sets: [u32; ENTRIES_PER_LINE] =
            std::array::from_fn(|at| self.sets[at].load(Ordering::Acquire));
        // The sets are loaded before the keys in any case, and before the filter.
        let found = self.entries_with_key(hash);
        if found != 0 {
            let at = found.trailing_zeros() as usize % ENTRIES_PER_LINE;
            return Some(CompactSet::from_bits(sets[at]));
        }
        (!self.may_be_passed(fraction)).then_some(CompactSet::VACANT)
    }

    /// Whether the search for a key with this home goes on beyond this line.
    #[inline(always)]
    pub fn may_be_passed(&self, fraction: u64) -> bool {
        if cfg!(feature = "without-probe-filter") {
            return !self.has_vacancy();
        }
        self.probe_filter.may_contain(fraction)
    }

    /// Writer only, before the line is published.
    #[inline(always)]
    pub fn fill(&self, at: usize, key: u64, set: CompactSet) {
        self.keys[at].store(key, Ordering::Relaxed);
        self.sets[at].store(set.bits(), Ordering::Relaxed);
    }

    /// Entries with that key, one bit each, the first in the lowest. For key 0 they may be vacant.
    #[inline(always)]
    pub fn entries_with_key(&self, hash: u64) -> u32 {
        // No short circuit: which entry of a line it is cannot be predicted, so no branch should depend on it.
        bit_per_entry(|at| self.keys[at].load(Ordering::Relaxed) == hash)
    }

    /// Writer only: entries that may take a key in epoch `now`, one bit each.
    #[inline(always)]
    pub fn free_entries(&self, now: u64) -> u32 {
        bit_per_entry(|at| self.set_at(at).takes_key(now))
    }

    /// Whether it has an entry that was never used, so that no key ever went past.
    #[inline(always)]
    pub fn has_vacancy(&self) -> bool {
        self.set_at(ENTRIES_PER_LINE - 1) == CompactSet::VACANT
    }

    /// Writer only: writes to the line, without changing it, so that the system gives it memory.
    pub fn touch(&self) {
        self.sets[0].store(self.sets[0].load(Ordering::Relaxed), Ordering::Release);
    }

    #[inline(always)]
    fn set_at(&self, at: usize) -> CompactSet {
        CompactSet::from_bits(self.sets[at].load(Ordering::Relaxed))
    }
}

/// One bit for each entry of a line, the first in the lowest.
#[inline(always)]
fn bit_per_entry(is_set: impl Fn(usize) -> bool) -> u32 {
    let mut bits = 0;
    for at in 0..ENTRIES_PER_LINE {
        bits |= u32::from(is_set(at)) << at;
    }
    bits
}
