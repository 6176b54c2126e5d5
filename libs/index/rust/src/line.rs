//! A cache line of the table: slots, each a key and its set in short.
//!
//! A slot's key is written before the brief ([`crate::brief`]) that leaves "vacant" or "empty"; it is replaced only if
//! the brief has been "empty" for a grace period. So a reader sees at most one change of a slot's key while it is pinned,
//! and that one from a brief that was empty already: one that loads the brief (`Acquire`), then the key, and finds the set
//! not empty, has the key that the set belongs to; one that finds it empty may have either key, and neither had a holder then.
//!
//! A key that finds its line full goes past it, and is marked there before it is written anywhere else; marks stay for as
//! long as the generation. So a reader that finds neither key nor mark has ended: when it read the keys, the block was not
//! on this line, and not beyond it either, or the mark would have been there. Look-ups search for many blocks that nobody
//! holds, to tell where matches end, and nearly all of those searches end on their first line. And a store that finds no
//! mark need not read on to know that it may take the emptied slot it has passed.
//!
//! `unsafe` here: lines made of zero bytes, and turning a brief into its set. Sound because a line is atomics alone, and a slot is only
//! borrowed from a table that is protected. Checked by the models, `tests/stress.rs` and `tests/differential.rs`.

use crate::brief;
use crate::cells::Cells;
use crate::set::Set;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::zeroed::Zeroable;

/// Slots in a cache line, the unit of probing. They get their keys from the first to the last.
pub(crate) const SLOTS_PER_LINE: usize = 5;

/// A cache line of slots: their keys, then in the same order what they keep of their sets, then who went past.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Line {
    keys: [AtomicU64; SLOTS_PER_LINE],
    briefs: [AtomicU32; SLOTS_PER_LINE],
    /// A bit for each kind of hash ([`kind`]) of which a key found no slot here, and went on to another line.
    passed: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == 64);

// SAFETY: atomics; zero bytes are five vacant slots.
unsafe impl Zeroable for Line {
    #[cfg(loom)]
    fn zero() -> Self {
        Self::default()
    }
    #[cfg(loom)]
    fn end(&mut self) {
        self.keys.iter_mut().for_each(AtomicU64::end);
        self.briefs.iter_mut().for_each(AtomicU32::end);
        self.passed.end();
    }
}

impl Line {
    #[inline(always)]
    pub fn slot<'p>(&'p self, at: usize, cells: &'p Cells) -> Slot<'p> {
        Slot {
            key: &self.keys[at],
            brief: &self.briefs[at],
            cells,
        }
    }

    /// What the slot with that key keeps of its set, or "vacant" if a search for it ends here; none if it goes on.
    #[inline(always)]
    pub fn brief_of(&self, hash: u64, scaled: u64) -> Option<u32> {
        let briefs: [u32; SLOTS_PER_LINE] =
            std::array::from_fn(|at| self.briefs[at].load(Ordering::Acquire));
        // They are loaded before the keys in any case, and before who went past.
        let found = self.with_key(hash);
        if found != 0 {
            return Some(briefs[found.trailing_zeros() as usize % SLOTS_PER_LINE]);
        }
        (!self.was_passed(scaled)).then_some(brief::VACANT)
    }

    /// Whether a key whose hash is of the same kind as that of `scaled` (see [`crate::table::Place`]) went past. If none
    /// did, neither did this one, and a search for it ends here. Never of a line that has a vacant slot.
    #[inline(always)]
    pub fn was_passed(&self, scaled: u64) -> bool {
        self.passed.load(Ordering::Relaxed) & kind(scaled) != 0
    }

    /// Writer only: lets a key go past, before it is written anywhere else.
    #[inline(always)]
    pub fn let_pass(&self, scaled: u64) {
        let passed = self.passed.load(Ordering::Relaxed);
        self.passed.store(passed | kind(scaled), Ordering::Relaxed);
    }

    /// Writer only, before the line is announced.
    #[inline(always)]
    pub fn fill(&self, at: usize, key: u64, brief: u32) {
        self.keys[at].store(key, Ordering::Relaxed);
        self.briefs[at].store(brief, Ordering::Relaxed);
    }

    /// Slots with that key, a bit for each, the first in the lowest. For key 0 that may be vacant ones.
    #[inline(always)]
    pub fn with_key(&self, hash: u64) -> u32 {
        // No short circuit: which of a line's slots it is cannot be foreseen, so no branch should depend on it.
        marks(|at| self.keys[at].load(Ordering::Relaxed) == hash)
    }

    /// Writer only: slots that may be given a key in epoch `now`, a bit for each.
    #[inline(always)]
    pub fn free(&self, now: u64) -> u32 {
        marks(|at| brief::takes_key(self.briefs[at].load(Ordering::Relaxed), now))
    }

    /// Whether it has a slot that was never used, so that no key ever went past.
    #[inline(always)]
    pub fn has_vacancy(&self) -> bool {
        self.briefs[SLOTS_PER_LINE - 1].load(Ordering::Relaxed) == brief::VACANT
    }

    /// Writer only: writes to the line what it says already.
    pub fn touch(&self) {
        self.briefs[0].store(self.briefs[0].load(Ordering::Relaxed), Ordering::Release);
    }
}

/// One of 32 kinds of hashes, as a bit: by bits of the place that say neither the home line nor the leap from it.
#[inline(always)]
fn kind(scaled: u64) -> u32 {
    1 << (scaled >> 32 & 31)
}

/// A bit for each slot of a line, the first in the lowest.
#[inline(always)]
fn marks(is_marked: impl Fn(usize) -> bool) -> u32 {
    let mut marks = 0;
    for at in 0..SLOTS_PER_LINE {
        marks |= u32::from(is_marked(at)) << at;
    }
    marks
}

/// One slot.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'p> {
    key: &'p AtomicU64,
    brief: &'p AtomicU32,
    cells: &'p Cells,
}

impl<'p> Slot<'p> {
    #[inline]
    pub fn set(self) -> Set<'p> {
        // SAFETY: loaded with `Acquire` from a slot that is protected as long as it is borrowed.
        unsafe { Set::from_word(self.cells.word(self.brief())) }
    }

    /// The key; meaningful once the slot is not vacant.
    #[inline]
    pub fn key(self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }

    /// What it keeps of its set word.
    #[inline(always)]
    pub fn brief(self) -> u32 {
        self.brief.load(Ordering::Acquire)
    }

    /// Writer only: gives a vacant slot, or one that [`brief::takes_key`], its key and first set.
    #[inline(always)]
    pub fn claim(self, key: u64, brief: u32) {
        self.key.store(key, Ordering::Relaxed);
        self.brief.store(brief, Ordering::Release);
    }

    /// Writer only: another set for the same key.
    #[inline(always)]
    pub fn publish(self, brief: u32) {
        self.brief.store(brief, Ordering::Release);
    }
}
