//! An index of a given size, made of prompts that can be made again from their numbers.

use kvatlas_baselines::catalogue::Design;
use kvatlas_baselines::counting::Counting;
use kvatlas_hashing::sequence_hashes_into;

use crate::index::engine::mix;
use crate::index::target::{Options, Scratch, Target, make};

/// Blocks of a prompt that one worker alone holds.
pub const OWN: usize = 64;

/// A prompt, by number.
#[derive(Default)]
pub struct Prompt {
    /// Chunk hashes.
    pub chunks: Vec<u64>,
    /// Sequence hashes.
    pub hashes: Vec<u64>,
}

impl Prompt {
    /// The prompt of that number; those of different numbers share no block.
    pub fn new(number: u64, blocks: usize) -> Self {
        let mut prompt = Self::default();
        prompt.become_(number, blocks);
        prompt
    }

    /// Its sequence hashes in the order in which they are removed.
    pub fn tail_first(&self) -> Vec<u64> {
        self.hashes.iter().rev().copied().collect()
    }

    /// Turns into that prompt, in the same memory.
    pub fn become_(&mut self, number: u64, blocks: usize) {
        let first = mix(number + 1);
        self.chunks.clear();
        let chunks = (0..blocks as u64).map(|at| mix(first.wrapping_add(at)));
        self.chunks.extend(chunks);
        self.hashes.resize(blocks, 0);
        sequence_hashes_into(&self.chunks, &mut self.hashes);
    }
}

/// An index, and the memory that it takes.
pub struct Filled {
    /// The index.
    pub target: Box<dyn Target>,
    /// Workers that hold something.
    pub fleet: u32,
    /// Memberships of blocks with one holder.
    pub memberships: u64,
    /// For calls.
    pub scratch: Scratch,
    allocator: &'static Counting,
    before: usize,
    next_prompt: u64,
}

impl Filled {
    /// `memberships` spread evenly over the workers, each block held by one.
    ///
    /// # Errors
    /// If the index has no room for so many workers.
    pub fn new(
        design: &Design,
        fleet: u32,
        memberships: u64,
        allocator: &'static Counting,
    ) -> Result<Self, String> {
        let before = allocator.bytes();
        let plain = Options {
            limit: 0,
            exact: false,
            pairs: false,
            kept_for: None,
            sized_for: None,
        };
        let mut filled = Self {
            target: make(design, &plain, fleet)?,
            fleet,
            memberships,
            scratch: Scratch::default(),
            allocator,
            before,
            next_prompt: 0,
        };
        filled.add_holder(0);
        filled.next_prompt = 1 << 40;
        Ok(filled)
    }

    /// Every prompt that one worker alone holds.
    fn each_own(&mut self, mut call: impl FnMut(&mut Self, u32, &Prompt)) {
        let mut prompt = Prompt::default();
        let mut left = self.memberships;
        let mut number = 0;
        while left > 0 {
            let blocks = left.min(OWN as u64);
            prompt.become_(number, blocks as usize);
            call(self, (number % u64::from(self.fleet)) as u32, &prompt);
            left -= blocks;
            number += 1;
        }
    }

    /// Every block is now held, too, by the worker so many places after its own.
    pub fn add_holder(&mut self, further: u32) {
        self.each_own(|filled, worker, prompt| {
            filled.store((worker + further) % filled.fleet, prompt);
        });
        self.target.settle();
    }

    /// None of those workers holds any of those blocks; removed tails first.
    pub fn empty(&mut self, further: u32) {
        self.each_own(|filled, worker, prompt| {
            let worker = (worker + further) % filled.fleet;
            filled.target.remove(worker, &prompt.tail_first());
        });
        self.target.settle();
    }

    /// One worker now holds a prompt.
    pub fn store(&mut self, worker: u32, prompt: &Prompt) {
        self.target
            .store(&mut self.scratch, worker, None, &prompt.chunks);
    }

    /// A prompt that nobody holds.
    pub fn fresh(&mut self, blocks: usize) -> Prompt {
        self.next_prompt += 1;
        Prompt::new(self.next_prompt, blocks)
    }

    /// A prompt that so many workers hold, spread over the fleet.
    pub fn shared(&mut self, blocks: usize, holders: u32) -> Prompt {
        let prompt = self.fresh(blocks);
        for holder in 0..holders {
            self.store(self.holder(holder, holders), &prompt);
        }
        self.target.settle();
        prompt
    }

    /// None of those workers holds it any more.
    pub fn unshare(&mut self, prompt: &Prompt, holders: u32) {
        for holder in 0..holders {
            self.target
                .remove(self.holder(holder, holders), &prompt.tail_first());
        }
    }

    fn holder(&self, holder: u32, holders: u32) -> u32 {
        // Below the number of workers, of which there are no fewer than holders.
        (u64::from(holder) * u64::from(self.fleet) / u64::from(holders)) as u32
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        let counted = || self.allocator.bytes().saturating_sub(self.before);
        self.target.accounted_bytes().unwrap_or_else(counted)
    }
}
