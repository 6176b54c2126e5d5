//! Spilled sets: the set words that do not fit the 32 bits which an entry has for them.
//!
//! An entry names its spilled word by a number of 30 bits. The words lie in one row of blocks, each twice as large as the
//! one before, so a handful of pointers leads from any number to its word. A table takes chunks of the row and hands out
//! their words by itself ([`SpilledSetArena`]), so the lock here is taken only for a chunk. A block is freed when its last
//! chunk comes back.
//!
//! `unsafe` here: reading a word by its number. Sound for four reasons. A block is freed only when all its chunks are back.
//! A chunk comes back only with the arena that took it, one grace period after its table was replaced. An arena reuses a
//! number only one grace period after no entry names it any more; pins ([`crate::memory::reclamation`]) span every read. And
//! a block's address is stored before any of its numbers is stored, in an entry, by `Release`.
//! Checked by `spilled_sets::tests`, the models, `tests/differential.rs` and `tests/stress.rs`.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::memory::reclamation::Reclaimer;
use crate::memory::zeroed_array::ZeroedArray;
use crate::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use crate::sync::{Mutex, relaxed, sized_for_models};
use crate::table::compact_set::CompactSet;
use crate::table::set_word::SetWord;

/// Words of the first block.
const FIRST_BLOCK: usize = sized_for_models(1024, 2);
/// Words that a table takes at a time.
const CHUNK: usize = sized_for_models(32, 1);
/// All blocks together have fewer than 2^30 words.
const BLOCKS: usize = 20;

/// A block, and which of its chunks are taken.
struct Block {
    memory: ZeroedArray<AtomicU64>,
    /// Chunks from this one on were never taken.
    fresh: usize,
    /// Chunks that came back.
    returned: Vec<u32>,
}

impl Block {
    fn new(place: usize) -> Self {
        Self {
            memory: ZeroedArray::new(FIRST_BLOCK << place),
            fresh: 0,
            returned: Vec::new(),
        }
    }

    fn take(&mut self) -> Option<u32> {
        self.returned.pop().or_else(|| {
            let chunk = self.fresh;
            let is_left = chunk < self.memory.len() / CHUNK;
            self.fresh += usize::from(is_left);
            // There are fewer than 2^32 chunks.
            is_left.then_some(chunk as u32)
        })
    }

    fn is_unused(&self) -> bool {
        self.returned.len() == self.fresh
    }
}

/// All spilled set words of an index.
#[derive(Default)]
pub(crate) struct SpilledSets {
    blocks: [AtomicPtr<AtomicU64>; BLOCKS],
    owners: Mutex<[Option<Block>; BLOCKS]>,
    bytes: relaxed::AtomicUsize,
}

/// The number of a block's first word.
fn first_of(block: usize) -> usize {
    (FIRST_BLOCK << block) - FIRST_BLOCK
}

/// The block of a word, and its place there.
#[inline(always)]
fn place_of(number: u32) -> (usize, usize) {
    let from_one = number as usize + FIRST_BLOCK;
    let block = (from_one.ilog2() - FIRST_BLOCK.ilog2()) as usize;
    (block, from_one - (FIRST_BLOCK << block))
}

impl SpilledSets {
    /// # Safety
    /// As long as the reference is used, the number is of a chunk that is taken.
    #[inline(always)]
    unsafe fn at(&self, number: u32) -> &AtomicU64 {
        let (block, place) = place_of(number);
        let first = self.blocks[block].load(Ordering::Relaxed);
        // SAFETY: its chunk is taken, so the block is there, and has that place.
        unsafe { &*first.add(place) }
    }

    /// The set word of an entry that has this compact set.
    ///
    /// # Safety
    /// `set` was loaded with `Acquire`, or under the writer's lock, from an entry that is protected as long as the word is
    /// used.
    #[inline(always)]
    pub unsafe fn word_of(&self, set: CompactSet) -> SetWord {
        match set.spilled_number() {
            None => set.word(),
            // SAFETY: the entry's table has taken the number, and neither is given up while the entry is protected.
            Some(number) => SetWord::from_bits(unsafe { self.at(number) }.load(Ordering::Acquire)),
        }
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.bytes.load(relaxed::Ordering::Relaxed)
    }

    fn take(self: &Arc<Self>) -> Chunk {
        let mut owners = self.owners.lock();
        for (place, owner) in owners.iter_mut().enumerate() {
            let block = owner.get_or_insert_with(|| {
                let block = Block::new(place);
                let bytes = block.memory.bytes();
                self.bytes.fetch_add(bytes, relaxed::Ordering::Relaxed);
                self.blocks[place].store(block.memory.first().as_ptr(), Ordering::Release);
                block
            });
            if let Some(chunk) = block.take() {
                return Chunk {
                    sets: Arc::clone(self),
                    first: (first_of(place) + chunk as usize * CHUNK) as u32,
                };
            }
        }
        panic!("an index has no room for more than 2^30 blocks with spilled sets");
    }

    fn give_back(&self, first: u32) {
        let (place, at) = place_of(first);
        let mut owners = self.owners.lock();
        let Some(block) = &mut owners[place] else {
            return;
        };
        block.returned.push((at / CHUNK) as u32);
        if block.is_unused() {
            let bytes = block.memory.bytes();
            self.bytes.fetch_sub(bytes, relaxed::Ordering::Relaxed);
            self.blocks[place].store(std::ptr::null_mut(), Ordering::Relaxed);
            owners[place] = None;
        }
    }
}

/// Consecutive words that belong to one table until it is freed.
struct Chunk {
    sets: Arc<SpilledSets>,
    first: u32,
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.sets.give_back(self.first);
    }
}

/// The spilled set words of one table of a shard.
#[derive(Default)]
pub(crate) struct SpilledSetArena {
    chunks: Vec<Chunk>,
    used_of_last: usize,
    free: Vec<u32>,
    /// Numbers that readers may still see, each with its stamp.
    limbo: VecDeque<(u64, u32)>,
}

impl SpilledSetArena {
    /// Stores a set word under a number that no reader can see; returns the number.
    pub fn add(&mut self, sets: &Arc<SpilledSets>, word: SetWord, reclaimer: &Reclaimer) -> u32 {
        let number = self.reuse(reclaimer).unwrap_or_else(|| self.cut(sets));
        // SAFETY: of a chunk that this arena has taken.
        unsafe { sets.at(number) }.store(word.bits(), Ordering::Relaxed);
        number
    }

    /// Stores another set word, for the same block, under a number of this arena.
    pub fn replace(&self, sets: &SpilledSets, number: u32, word: SetWord) {
        debug_assert!(self.has(number), "another table's");
        // SAFETY: of a chunk that this arena has taken.
        unsafe { sets.at(number) }.store(word.bits(), Ordering::Release);
    }

    /// Takes back a number that no entry names any more.
    pub fn retire(&mut self, number: u32, reclaimer: &Reclaimer) {
        debug_assert!(self.has(number), "another table's");
        self.limbo.push_back((reclaimer.stamp(), number));
    }

    fn has(&self, number: u32) -> bool {
        let first = number - number % CHUNK as u32;
        self.chunks.iter().any(|chunk| chunk.first == first)
    }

    fn reuse(&mut self, reclaimer: &Reclaimer) -> Option<u32> {
        while self.free.is_empty()
            && let Some(&(stamp, number)) = self.limbo.front()
            && reclaimer.advance_until_safe(stamp)
        {
            self.limbo.pop_front();
            self.free.push(number);
        }
        self.free.pop()
    }

    fn cut(&mut self, sets: &Arc<SpilledSets>) -> u32 {
        if self.chunks.is_empty() || self.used_of_last == CHUNK {
            self.chunks.push(sets.take());
            self.used_of_last = 0;
        }
        let last = &self.chunks[self.chunks.len() - 1];
        self.used_of_last += 1;
        last.first + self.used_of_last as u32 - 1
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn bits(sets: &SpilledSets, number: u32) -> u64 {
        // SAFETY: every test reads while it has what it took.
        unsafe { sets.word_of(CompactSet::spilled(number)) }.bits()
    }

    fn add(
        arena: &mut SpilledSetArena,
        sets: &Arc<SpilledSets>,
        bits: u64,
        reclaimer: &Reclaimer,
    ) -> u32 {
        arena.add(sets, SetWord::from_bits(bits), reclaimer)
    }

    #[test]
    fn every_number_keeps_its_word_over_many_blocks_and_all_memory_comes_back() {
        const EACH: u64 = if cfg!(miri) { 300 } else { 3_000 };
        let (sets, reclaimer) = (Arc::<SpilledSets>::default(), Reclaimer::new());
        let mut arenas: Vec<SpilledSetArena> = (0..7).map(|_| SpilledSetArena::default()).collect();
        let added: Vec<Vec<u32>> = (0..7u64)
            .map(|table| {
                let arena = &mut arenas[table as usize];
                let words = 0..EACH;
                words
                    .map(|at| add(arena, &sets, table << 32 | at, &reclaimer))
                    .collect()
            })
            .collect();
        for (table, numbers) in (0..).zip(&added) {
            for (at, &number) in (0..).zip(numbers) {
                assert_eq!(bits(&sets, number), table << 32 | at);
            }
        }
        let bytes = 7 * EACH as usize * 8;
        assert!(sets.bytes() >= bytes && sets.bytes() <= 2 * bytes + 8192);
        arenas.truncate(3);
        let last = added[2][EACH as usize - 1];
        assert_eq!(bits(&sets, last), 2 << 32 | (EACH - 1));
        arenas.clear();
        assert_eq!(sets.bytes(), 0);
    }

    #[test]
    fn a_number_is_reused_only_after_its_grace_period() {
        let (sets, reclaimer) = (Arc::<SpilledSets>::default(), Reclaimer::new());
        let mut arena = SpilledSetArena::default();
        let first = add(&mut arena, &sets, 5, &reclaimer);
        let pin = reclaimer.pin();
        arena.retire(first, &reclaimer);
        for at in 0..100 {
            assert_ne!(add(&mut arena, &sets, at, &reclaimer), first);
        }
        assert_eq!(bits(&sets, first), 5, "a pinned reader still sees it");
        drop(pin);
        let now = reclaimer.stamp();
        while !reclaimer.is_safe(now) {
            assert!(reclaimer.try_advance(), "nobody is pinned");
        }
        assert_eq!(add(&mut arena, &sets, 6, &reclaimer), first);
        assert_eq!(bits(&sets, first), 6);
    }

    #[test]
    fn numbers_go_through_all_blocks_in_turn() {
        let mut expected = (0, 0);
        for number in 0..if cfg!(miri) { 3_000 } else { 100_000 } {
            assert_eq!(place_of(number), expected);
            expected.1 += 1;
            if expected.1 == FIRST_BLOCK << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(first_of(BLOCKS) <= 1 << 30);
        assert_eq!(place_of(first_of(BLOCKS) as u32 - 1).0, BLOCKS - 1);
    }
}
