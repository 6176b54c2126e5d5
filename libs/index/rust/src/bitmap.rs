//! Bitmaps of the blocks with many holders, and the arena they come from, together with the cells that name them.
//!
//! Each generation of a shard's table has an arena of its own: bitmaps are cut from chunks, a
//! bitmap that is replaced waits in the arena's limbo for its grace period and is then used again,
//! and when the table is published anew the arena is copied with it, packed and as wide as the live
//! worker slots, and retired whole. So memory of earlier widths never piles up.
//!
//! `unsafe` here: reading bitmaps by the address in a set word. Sound because a word is published
//! only after its bitmap is filled, the bitmap's memory belongs to a chunk that is freed one grace
//! period after its table, and a bitmap is handed out again only one grace period after its word
//! was replaced; pins ([`crate::grace`]) span every read. Checked by `bitmap::tests`,
//! `tests/differential.rs` (reuse against a model) and `tests/stress.rs` (reuse under readers).

use crate::sync::atomic::{AtomicU64, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::ptr::NonNull;

use crate::cells;
use crate::counters::{Counters, count};
use crate::grace::Grace;
use crate::set::{spilled_parts, spilled_word};
use crate::zeroed::Zeroed;

const FIRST_CHUNK_WORDS: usize = crate::sync::sized(64, 2);
const LARGEST_CHUNK_WORDS: usize = 1 << 16;

/// The bits of a bitmap: worker slot `s` is bit `s % 64` of word `s / 64`.
///
/// # Safety
/// `address` and `width` come from a set word whose bitmap stays protected for `'p`.
pub(crate) unsafe fn bits<'p>(address: usize, width: u16) -> &'p [AtomicU64] {
    let first = std::ptr::with_exposed_provenance::<AtomicU64>(address);
    // SAFETY: the caller vouches that the bitmap, `width` words of atomics, lives through `'p`.
    unsafe { std::slice::from_raw_parts(first, usize::from(width)) }
}

pub(crate) fn contains(bits: &[AtomicU64], slot: u16) -> bool {
    let word = bits
        .get(usize::from(slot / 64))
        .map_or(0, |word| word.load(Ordering::Relaxed));
    word >> (slot % 64) & 1 == 1
}

/// Sets or clears one bit. Only the shard's writer changes bits, so a load and a store suffice.
pub(crate) fn assign(bits: &[AtomicU64], slot: u16, value: bool) {
    let word = &bits[usize::from(slot / 64)];
    let bit = 1 << (slot % 64);
    let old = word.load(Ordering::Relaxed);
    word.store(
        if value { old | bit } else { old & !bit },
        Ordering::Release,
    );
}

/// Clears every bit that is in `gone`; returns how many were set.
pub(crate) fn subtract(bits: &[AtomicU64], gone: &[u64]) -> usize {
    let mut removed = 0;
    for (word, gone) in bits.iter().zip(gone) {
        let old = word.load(Ordering::Relaxed);
        if old & gone != 0 {
            word.store(old & !gone, Ordering::Release);
            removed += (old & gone).count_ones() as usize;
        }
    }
    removed
}

/// The worker slots whose bits are set, ascending.
pub(crate) fn slots(bits: &[AtomicU64]) -> impl Iterator<Item = u16> + Clone {
    bits.iter().enumerate().flat_map(|(place, word)| {
        Ones(word.load(Ordering::Relaxed)).map(move |bit| (place * 64) as u16 + bit)
    })
}

/// The places of the ones in a word, ascending.
#[derive(Clone)]
pub(crate) struct Ones(pub u64);

impl Iterator for Ones {
    type Item = u16;

    #[inline]
    fn next(&mut self) -> Option<u16> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as u16;
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

#[derive(Clone, Copy)]
struct Piece {
    first: NonNull<AtomicU64>,
    width: u16,
}

// SAFETY: a piece is a pointer into a chunk of the arena it is kept in, and moves only with it.
unsafe impl Send for Piece {}

impl Piece {
    fn bits(&self) -> &[AtomicU64] {
        // SAFETY: a piece lies within a chunk of its arena, which outlives it.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), usize::from(self.width)) }
    }
}

#[derive(Default)]
pub(crate) struct Arena {
    chunks: Vec<Zeroed<AtomicU64>>,
    used_of_last: usize,
    free: BTreeMap<u16, Vec<Piece>>,
    limbo: VecDeque<(u64, Piece)>,
    /// Words in bitmaps that set words name.
    live_words: usize,
    /// Words in bitmaps that were replaced, be they reusable yet or not.
    idle_words: usize,
    /// For the words of sets that a slot cannot say in short.
    pub cells: cells::Own,
}

impl Arena {
    /// A new bitmap with exactly the bits of `members`; returns the set word to publish.
    pub fn make(
        &mut self,
        width: u16,
        members: impl Iterator<Item = u16>,
        grace: &Grace,
        counters: &Counters,
    ) -> u64 {
        let piece = self
            .reuse(width, grace, counters)
            .unwrap_or_else(|| self.cut(width, counters));
        self.live_words += usize::from(width);
        let bits = piece.bits();
        for slot in members {
            assign(bits, slot, true);
        }
        spilled_word(piece.first.as_ptr().expose_provenance(), width)
    }

    /// Takes back the bitmap of a set word that has just been replaced.
    pub fn retire(&mut self, word: u64, grace: &Grace) {
        let (address, width) = spilled_parts(word);
        let first = std::ptr::with_exposed_provenance_mut::<AtomicU64>(address);
        let Some(first) = NonNull::new(first) else {
            return;
        };
        self.live_words -= usize::from(width);
        self.idle_words += usize::from(width);
        self.limbo
            .push_back((grace.stamp(), Piece { first, width }));
    }

    /// Whether idle memory outweighs what is in use plus `slack` words, so that packing pays.
    pub fn wants_packing(&self, slack: usize) -> bool {
        self.idle_words > self.live_words + slack
    }

    pub fn bytes(&self) -> usize {
        self.chunks.iter().map(Zeroed::bytes).sum()
    }

    fn reuse(&mut self, width: u16, grace: &Grace, counters: &Counters) -> Option<Piece> {
        if !self.free.contains_key(&width) {
            self.settle(grace);
        }
        let pieces = self.free.get_mut(&width)?;
        let piece = pieces.pop()?;
        if pieces.is_empty() {
            self.free.remove(&width);
        }
        self.idle_words -= usize::from(width);
        for word in piece.bits() {
            word.store(0, Ordering::Relaxed);
        }
        count(&counters.events.bitmap_reuses);
        Some(piece)
    }

    /// Moves what has passed its grace period from the limbo to the free lists.
    fn settle(&mut self, grace: &Grace) {
        while let Some(&(stamp, piece)) = self.limbo.front() {
            if !grace.passed_or_steps(stamp) {
                break;
            }
            self.limbo.pop_front();
            self.free.entry(piece.width).or_default().push(piece);
        }
    }

    fn cut(&mut self, width: u16, counters: &Counters) -> Piece {
        let need = usize::from(width);
        let room = self
            .chunks
            .last()
            .map_or(0, |chunk| chunk.len() - self.used_of_last);
        if room < need {
            // Each chunk is a quarter of all before it: few chunks, little of the last one unused.
            let have: usize = self.chunks.iter().map(Zeroed::len).sum();
            let len = (have / 4)
                .clamp(FIRST_CHUNK_WORDS, LARGEST_CHUNK_WORDS)
                .max(need);
            let chunk = Zeroed::new(len);
            counters
                .bitmap_bytes
                .fetch_add(chunk.bytes(), Ordering::Relaxed);
            self.chunks.push(chunk);
            self.used_of_last = 0;
        }
        let at = self.used_of_last;
        self.used_of_last += need;
        let chunk = &self.chunks[self.chunks.len() - 1];
        debug_assert!(self.used_of_last <= chunk.len());
        // SAFETY: `at + width <= chunk.len()`, so the piece lies within the chunk.
        let first = unsafe { chunk.first().add(at) };
        Piece { first, width }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(word: u64) -> Vec<u16> {
        let (address, width) = spilled_parts(word);
        // SAFETY: every test reads while the arena lives and nothing is used again.
        slots(unsafe { bits(address, width) }).collect()
    }

    #[test]
    fn a_bitmap_is_used_again_only_after_its_grace_period() {
        let (grace, counters) = (Grace::new(), Counters::default());
        let mut arena = Arena::default();
        let first = arena.make(2, [1, 64, 127].into_iter(), &grace, &counters);
        assert_eq!(read(first), vec![1, 64, 127]);
        let pin = grace.pin();
        arena.retire(first, &grace);
        for slot in 0..20 {
            assert_ne!(arena.make(2, [slot].into_iter(), &grace, &counters), first);
        }
        assert_eq!(
            read(first),
            vec![1, 64, 127],
            "a pinned reader still sees the old bits"
        );
        drop(pin);
        let now = grace.stamp();
        while !grace.passed(now) {
            assert!(grace.step(), "nobody is pinned");
        }
        assert_eq!(arena.make(2, [5].into_iter(), &grace, &counters), first);
        assert_eq!(read(first), vec![5]);
        assert_eq!(counters.events.read().bitmap_reuses, 1);
    }

    #[test]
    fn packing_is_wanted_once_idle_words_outweigh_the_live_ones() {
        let (grace, counters) = (Grace::new(), Counters::default());
        let mut arena = Arena::default();
        let words: Vec<u64> = (0..10)
            .map(|s| arena.make(3, [s].into_iter(), &grace, &counters))
            .collect();
        for &word in &words[..5] {
            arena.retire(word, &grace);
        }
        assert!(!arena.wants_packing(0));
        arena.retire(words[5], &grace);
        assert!(arena.wants_packing(0) && !arena.wants_packing(100));
    }
}
