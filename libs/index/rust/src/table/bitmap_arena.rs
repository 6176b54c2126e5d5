//! The memory of bitmaps: one arena for each table of a shard.
//!
//! Bitmaps are cut from chunks. A bitmap that was replaced waits for a grace period and is then reused. When the table is
//! resized, its bitmaps are copied into a new arena, without gaps and as wide as the worker slots in use, and the old arena
//! is retired as a whole. So memory of earlier widths never piles up.
//!
//! `unsafe` here: reading bitmaps by the address in a set word. Sound because a word is stored only after its bitmap is
//! filled; a bitmap lies in a chunk that is freed one grace period after its table; and a bitmap is reused only one grace
//! period after its word was replaced. Pins ([`crate::memory::reclamation`]) span every read. Checked by
//! `bitmap_arena::tests`, `tests/differential.rs` (reuse against a model) and `tests/stress.rs` (reuse under readers).

use std::collections::{BTreeMap, VecDeque};
use std::ptr::NonNull;

use crate::counters::{Counters, count};
use crate::memory::reclamation::Reclaimer;
use crate::memory::zeroed_array::ZeroedArray;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::sized_for_models;
use crate::table::bitmap;
use crate::table::set_word::SetWord;
use crate::types::WorkerSlot;

const FIRST_CHUNK_WORDS: usize = sized_for_models(64, 2);
const LARGEST_CHUNK_WORDS: usize = 1 << 16;

/// Memory for one bitmap.
#[derive(Clone, Copy)]
struct Piece {
    first: NonNull<AtomicU64>,
    width: u16,
}

// SAFETY: a piece is a pointer into a chunk of the arena that has it, and moves only with it.
unsafe impl Send for Piece {}

impl Piece {
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: a piece lies within a chunk of its arena, which outlives it.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), usize::from(self.width)) }
    }
}

#[derive(Default)]
pub(crate) struct BitmapArena {
    chunks: Vec<ZeroedArray<AtomicU64>>,
    used_of_last: usize,
    /// Reusable pieces, by width.
    free: BTreeMap<u16, Vec<Piece>>,
    /// Replaced bitmaps that readers may still see, each with its stamp.
    limbo: VecDeque<(u64, Piece)>,
    /// Words in bitmaps that set words name.
    live_words: usize,
    /// Words in bitmaps that were replaced, reusable or not.
    idle_words: usize,
}

impl BitmapArena {
    /// A new bitmap with exactly the bits of `members`; returns the set word that names it.
    pub fn make(
        &mut self,
        width: u16,
        members: impl Iterator<Item = WorkerSlot>,
        reclaimer: &Reclaimer,
        counters: &Counters,
    ) -> SetWord {
        let piece = self
            .reuse(width, reclaimer, counters)
            .unwrap_or_else(|| self.cut(width, counters));
        self.live_words += usize::from(width);
        let words = piece.words();
        for slot in members {
            bitmap::assign(words, slot, true);
        }
        SetWord::of_bitmap(piece.first.as_ptr().expose_provenance(), width)
    }

    /// Takes back the bitmap of a set word that has just been replaced.
    pub fn retire(&mut self, word: SetWord, reclaimer: &Reclaimer) {
        let (address, width) = word.bitmap_parts();
        let first = std::ptr::with_exposed_provenance_mut::<AtomicU64>(address);
        let Some(first) = NonNull::new(first) else {
            return;
        };
        self.live_words -= usize::from(width);
        self.idle_words += usize::from(width);
        self.limbo
            .push_back((reclaimer.stamp(), Piece { first, width }));
    }

    /// Whether replaced bitmaps outweigh those in use by more than `slack` words, so that copying the table pays.
    pub fn wants_packing(&self, slack: usize) -> bool {
        self.idle_words > self.live_words + slack
    }

    pub fn bytes(&self) -> usize {
        self.chunks.iter().map(ZeroedArray::bytes).sum()
    }

    fn reuse(&mut self, width: u16, reclaimer: &Reclaimer, counters: &Counters) -> Option<Piece> {
        if !self.free.contains_key(&width) {
            self.free_limbo(reclaimer);
        }
        let pieces = self.free.get_mut(&width)?;
        let piece = pieces.pop()?;
        if pieces.is_empty() {
            self.free.remove(&width);
        }
        self.idle_words -= usize::from(width);
        for word in piece.words() {
            word.store(0, Ordering::Relaxed);
        }
        count(&counters.events.bitmap_reuses);
        Some(piece)
    }

    /// Moves the pieces that no reader can see any more from the limbo to the free lists.
    fn free_limbo(&mut self, reclaimer: &Reclaimer) {
        while let Some(&(stamp, piece)) = self.limbo.front() {
            if !reclaimer.advance_until_safe(stamp) {
                break;
            }
            self.limbo.pop_front();
            self.free.entry(piece.width).or_default().push(piece);
        }
    }

    /// Cuts a piece from the last chunk, or from a new one.
    fn cut(&mut self, width: u16, counters: &Counters) -> Piece {
        let need = usize::from(width);
        let left = self
            .chunks
            .last()
            .map_or(0, |chunk| chunk.len() - self.used_of_last);
        if left < need {
            // Each chunk is a quarter of all before it: few chunks, little of the last one unused.
            let have: usize = self.chunks.iter().map(ZeroedArray::len).sum();
            let len = (have / 4)
                .clamp(FIRST_CHUNK_WORDS, LARGEST_CHUNK_WORDS)
                .max(need);
            let chunk = ZeroedArray::new(len);
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
    use crate::table::set_word::bitmap_at;

    fn slots<const N: usize>(numbers: [u16; N]) -> impl Iterator<Item = WorkerSlot> {
        numbers.into_iter().map(WorkerSlot::new)
    }

    fn read(word: SetWord) -> Vec<u16> {
        let (address, width) = word.bitmap_parts();
        // SAFETY: every test reads while the arena lives and nothing is reused.
        let words = unsafe { bitmap_at(address, width) };
        bitmap::slots(words).map(WorkerSlot::number).collect()
    }

    #[test]
    fn a_bitmap_is_reused_only_after_its_grace_period() {
        let (reclaimer, counters) = (Reclaimer::new(), Counters::default());
        let mut arena = BitmapArena::default();
        let first = arena.make(2, slots([1, 64, 127]), &reclaimer, &counters);
        assert_eq!(read(first), [1, 64, 127]);
        let pin = reclaimer.pin();
        arena.retire(first, &reclaimer);
        for slot in 0..20 {
            assert_ne!(arena.make(2, slots([slot]), &reclaimer, &counters), first);
        }
        assert_eq!(
            read(first),
            [1, 64, 127],
            "a pinned reader still sees the old bits"
        );
        drop(pin);
        let now = reclaimer.stamp();
        while !reclaimer.is_safe(now) {
            assert!(reclaimer.try_advance(), "nobody is pinned");
        }
        assert_eq!(arena.make(2, slots([5]), &reclaimer, &counters), first);
        assert_eq!(read(first), [5]);
        assert_eq!(counters.events.read().bitmap_reuses, 1);
    }

    #[test]
    fn packing_is_wanted_once_idle_words_outweigh_the_live_ones() {
        let (reclaimer, counters) = (Reclaimer::new(), Counters::default());
        let mut arena = BitmapArena::default();
        let words: Vec<SetWord> = (0..10)
            .map(|slot| arena.make(3, slots([slot]), &reclaimer, &counters))
            .collect();
        for &word in &words[..5] {
            arena.retire(word, &reclaimer);
        }
        assert!(!arena.wants_packing(0));
        arena.retire(words[5], &reclaimer);
        assert!(arena.wants_packing(0) && !arena.wants_packing(100));
    }
}
