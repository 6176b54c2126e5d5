//! Cells: set words that do not fit the half word that a table slot has for them.
//!
//! A cell has a number of 30 bits by which a slot names it. Their memory is one row of blocks, each twice as large as the one before, so a
//! handful of pointers leads from any number to its cell. Tables take chunks of them and cut those up for themselves
//! ([`Own`]), so the lock here is for the rare chunk. A block whose last chunk comes back is freed.
//!
//! `unsafe` here: reading a cell by its number. Sound because a block is only freed when all its chunks are back, a
//! chunk comes back only with the arena that took it, one grace period after its table was replaced, and within an
//! arena a cell is used again only one grace period after no slot names it any more; pins ([`crate::grace`]) span every read. A
//! block's address is stored before any of its numbers is, in a slot, by `Release`.
//! Checked by `cells::tests`, the models, `tests/differential.rs` and `tests/stress.rs`.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::brief;
use crate::grace::Grace;
use crate::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use crate::sync::{Mutex, sized, tally};
use crate::zeroed::Zeroed;

/// Cells of the first block.
const FIRST_BLOCK: usize = sized(1024, 2);
/// Cells that a table takes at a time.
const CHUNK: usize = sized(32, 1);
/// All blocks have fewer than 2^30 cells.
const BLOCKS: usize = 20;

/// A block, and which of its chunks are taken.
struct Block {
    memory: Zeroed<AtomicU64>,
    /// Chunks from this one on were never taken.
    fresh: usize,
    /// Chunks that came back.
    returned: Vec<u32>,
}

impl Block {
    fn new(place: usize) -> Self {
        Self {
            memory: Zeroed::new(FIRST_BLOCK << place),
            fresh: 0,
            returned: Vec::new(),
        }
    }

    fn take(&mut self) -> Option<u32> {
        self.returned.pop().or_else(|| {
            let chunk = self.fresh;
            let is_left = chunk < self.memory.len() / CHUNK;
            self.fresh += usize::from(is_left);
            // There are fewer cells than an u32 can say.
            is_left.then_some(chunk as u32)
        })
    }

    fn is_unused(&self) -> bool {
        self.returned.len() == self.fresh
    }
}

/// All cells of an index.
#[derive(Default)]
pub(crate) struct Cells {
    blocks: [AtomicPtr<AtomicU64>; BLOCKS],
    owners: Mutex<[Option<Block>; BLOCKS]>,
    bytes: tally::AtomicUsize,
}

/// The first cell of a block.
fn first_of(place: usize) -> usize {
    (FIRST_BLOCK << place) - FIRST_BLOCK
}

/// The block that a cell is in, and its place there.
#[inline(always)]
fn place_of(cell: u32) -> (usize, usize) {
    let from_one = cell as usize + FIRST_BLOCK;
    let block = (from_one.ilog2() - FIRST_BLOCK.ilog2()) as usize;
    (block, from_one - (FIRST_BLOCK << block))
}

impl Cells {
    /// # Safety
    /// For as long as it is used, the cell is one of a chunk that is taken.
    #[inline(always)]
    unsafe fn cell(&self, cell: u32) -> &AtomicU64 {
        let (block, place) = place_of(cell);
        let first = self.blocks[block].load(Ordering::Relaxed);
        // SAFETY: its chunk is taken, so the block is there, and has that place.
        unsafe { &*first.add(place) }
    }

    /// The set word of a slot that keeps `brief`.
    ///
    /// # Safety
    /// It was loaded with `Acquire`, or under the writer's lock, from a slot that is protected for as long as the word is used.
    #[inline(always)]
    pub unsafe fn word(&self, brief: u32) -> u64 {
        match brief::cell(brief) {
            None => brief::word(brief),
            // SAFETY: the slot's table has taken it, and neither is given up while the slot is protected.
            Some(cell) => unsafe { self.cell(cell) }.load(Ordering::Acquire),
        }
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.bytes.load(tally::Ordering::Relaxed)
    }

    fn take(self: &Arc<Self>) -> Chunk {
        let mut owners = self.owners.lock();
        for (place, owner) in owners.iter_mut().enumerate() {
            let block = owner.get_or_insert_with(|| {
                let block = Block::new(place);
                let bytes = block.memory.bytes();
                self.bytes.fetch_add(bytes, tally::Ordering::Relaxed);
                self.blocks[place].store(block.memory.first().as_ptr(), Ordering::Release);
                block
            });
            if let Some(chunk) = block.take() {
                return Chunk {
                    cells: Arc::clone(self),
                    first: (first_of(place) + chunk as usize * CHUNK) as u32,
                };
            }
        }
        panic!("sets of more than 2^30 blocks with many holders have no room in an index");
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
            self.bytes.fetch_sub(bytes, tally::Ordering::Relaxed);
            self.blocks[place].store(std::ptr::null_mut(), Ordering::Relaxed);
            owners[place] = None;
        }
    }
}

/// Cells that are one table's until it is freed.
struct Chunk {
    cells: Arc<Cells>,
    first: u32,
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.cells.give_back(self.first);
    }
}

/// The cells of one generation of a shard's table.
#[derive(Default)]
pub(crate) struct Own {
    chunks: Vec<Chunk>,
    used_of_last: usize,
    free: Vec<u32>,
    limbo: VecDeque<(u64, u32)>,
}

impl Own {
    /// Puts a set word into a cell that no reader can be at.
    pub fn put(&mut self, cells: &Arc<Cells>, word: u64, grace: &Grace) -> u32 {
        let cell = self.reuse(grace).unwrap_or_else(|| self.cut(cells));
        // SAFETY: of a chunk that this has taken.
        unsafe { cells.cell(cell) }.store(word, Ordering::Relaxed);
        cell
    }

    /// Puts another set word, for the same block, into a cell of these.
    pub fn replace(&self, cells: &Cells, cell: u32, word: u64) {
        debug_assert!(self.has(cell), "another table's");
        // SAFETY: of a chunk that this has taken.
        unsafe { cells.cell(cell) }.store(word, Ordering::Release);
    }

    /// Takes back a cell that no slot names any more.
    pub fn retire(&mut self, cell: u32, grace: &Grace) {
        debug_assert!(self.has(cell), "another table's");
        self.limbo.push_back((grace.stamp(), cell));
    }

    fn has(&self, cell: u32) -> bool {
        let first = cell - cell % CHUNK as u32;
        self.chunks.iter().any(|chunk| chunk.first == first)
    }

    fn reuse(&mut self, grace: &Grace) -> Option<u32> {
        while self.free.is_empty()
            && let Some(&(stamp, cell)) = self.limbo.front()
            && grace.passed_or_steps(stamp)
        {
            self.limbo.pop_front();
            self.free.push(cell);
        }
        self.free.pop()
    }

    fn cut(&mut self, cells: &Arc<Cells>) -> u32 {
        if self.chunks.is_empty() || self.used_of_last == CHUNK {
            self.chunks.push(cells.take());
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

    fn word(cells: &Cells, cell: u32) -> u64 {
        // SAFETY: every test reads while it has what it took.
        unsafe { cells.word(brief::in_cell(cell)) }
    }

    #[test]
    fn every_cell_keeps_its_word_over_many_blocks_and_all_memory_comes_back() {
        const EACH: u64 = if cfg!(miri) { 300 } else { 3_000 };
        let (cells, grace) = (Arc::<Cells>::default(), Grace::new());
        let mut tables: Vec<Own> = (0..7).map(|_| Own::default()).collect();
        let put: Vec<Vec<u32>> = (0..7u64)
            .map(|table| {
                let own = &mut tables[table as usize];
                let words = 0..EACH;
                words
                    .map(|at| own.put(&cells, table << 32 | at, &grace))
                    .collect()
            })
            .collect();
        for (table, numbers) in (0..).zip(&put) {
            for (at, &cell) in (0..).zip(numbers) {
                assert_eq!(word(&cells, cell), table << 32 | at);
            }
        }
        let bytes = 7 * EACH as usize * 8;
        assert!(cells.bytes() >= bytes && cells.bytes() <= 2 * bytes + 8192);
        tables.truncate(3);
        assert_eq!(
            word(&cells, put[2][EACH as usize - 1]),
            2 << 32 | (EACH - 1)
        );
        tables.clear();
        assert_eq!(cells.bytes(), 0);
    }

    #[test]
    fn a_cell_is_used_again_only_after_its_grace_period() {
        let (cells, grace) = (Arc::<Cells>::default(), Grace::new());
        let mut own = Own::default();
        let first = own.put(&cells, 5, &grace);
        let pin = grace.pin();
        own.retire(first, &grace);
        for at in 0..100 {
            assert_ne!(own.put(&cells, at, &grace), first);
        }
        assert_eq!(word(&cells, first), 5, "a pinned reader still sees it");
        drop(pin);
        let now = grace.stamp();
        while !grace.passed(now) {
            assert!(grace.step(), "nobody is pinned");
        }
        assert_eq!(own.put(&cells, 6, &grace), first);
        assert_eq!(word(&cells, first), 6);
    }

    #[test]
    fn numbers_go_through_all_blocks_in_turn() {
        let mut expected = (0, 0);
        for cell in 0..if cfg!(miri) { 3_000 } else { 100_000 } {
            assert_eq!(place_of(cell), expected);
            expected.1 += 1;
            if expected.1 == FIRST_BLOCK << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(first_of(BLOCKS) <= 1 << 30);
        assert_eq!(place_of(first_of(BLOCKS) as u32 - 1).0, BLOCKS - 1);
    }
}
