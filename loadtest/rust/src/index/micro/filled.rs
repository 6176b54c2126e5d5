//! Fills an index to a given size with prompts that can be made again from their numbers.

use kvatlas_baselines::catalogue::Design;
use kvatlas_hashing::sequence_hashes_into;

use crate::allocator::COUNTING;
use crate::index::engine::mix;
use crate::index::target::{Options, Scratch, Target, make};

/// Blocks of a prompt that only one worker holds.
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
    /// The prompt with that number; two numbers never share a block.
    pub fn new(number: u64, blocks: usize) -> Self {
        let mut prompt = Self::default();
        prompt.remake(number, blocks);
        prompt
    }

    /// Its sequence hashes in the order of removal: the last one first.
    pub fn tail_first(&self) -> Vec<u64> {
        self.hashes.iter().rev().copied().collect()
    }

    /// Makes the prompt with that number in the same memory.
    pub fn remake(&mut self, number: u64, blocks: usize) {
        let first = mix(number + 1);
        self.chunks.clear();
        let chunks = (0..blocks as u64).map(|at| mix(first.wrapping_add(at)));
        self.chunks.extend(chunks);
        self.hashes.resize(blocks, 0);
        sequence_hashes_into(&self.chunks, &mut self.hashes);
    }
}

/// An index with a given number of memberships.
pub struct Filled {
    /// The index.
    pub target: Box<dyn Target>,
    /// Workers that hold something.
    pub fleet: u32,
    /// Memberships of blocks with one holder.
    pub memberships: u64,
    /// Buffers for calls.
    pub scratch: Scratch,
    before: usize,
    next_prompt: u64,
}

impl Filled {
    /// `memberships` spread evenly over the workers, each block held by one.
    ///
    /// # Errors
    /// If the index has no room for so many workers.
    pub fn new(design: &Design, fleet: u32, memberships: u64) -> Result<Self, String> {
        let before = COUNTING.bytes();
        let mut filled = Self {
            target: make(design, &Options::default(), fleet)?,
            fleet,
            memberships,
            scratch: Scratch::default(),
            before,
            next_prompt: 0,
        };
        filled.add_holder(0);
        filled.next_prompt = 1 << 40;
        Ok(filled)
    }

    /// Calls `call` with every prompt that only one worker holds, and that worker.
    fn each_own(&mut self, mut call: impl FnMut(&mut Self, u32, &Prompt)) {
        let mut prompt = Prompt::default();
        let mut left = self.memberships;
        let mut number = 0;
        while left > 0 {
            let blocks = left.min(OWN as u64);
            prompt.remake(number, blocks as usize);
            call(self, (number % u64::from(self.fleet)) as u32, &prompt);
            left -= blocks;
            number += 1;
        }
    }

    /// Stores every block also on the worker so many places after its own.
    pub fn add_holder(&mut self, further: u32) {
        self.each_own(|filled, worker, prompt| {
            filled.store((worker + further) % filled.fleet, prompt);
        });
        self.target.settle();
    }

    /// Removes every block from the worker so many places after its own, tails first.
    pub fn empty(&mut self, further: u32) {
        self.each_own(|filled, worker, prompt| {
            let worker = (worker + further) % filled.fleet;
            filled.target.remove(worker, &prompt.tail_first());
        });
        self.target.settle();
    }

    /// Stores a prompt on one worker.
    pub fn store(&mut self, worker: u32, prompt: &Prompt) {
        self.target
            .store(&mut self.scratch, worker, None, &prompt.chunks);
    }

    /// A prompt that no worker holds.
    pub fn fresh(&mut self, blocks: usize) -> Prompt {
        self.next_prompt += 1;
        Prompt::new(self.next_prompt, blocks)
    }

    /// A prompt that this many workers hold, spread over the fleet.
    pub fn shared(&mut self, blocks: usize, holders: u32) -> Prompt {
        let prompt = self.fresh(blocks);
        for holder in 0..holders {
            self.store(self.holder(holder, holders), &prompt);
        }
        self.target.settle();
        prompt
    }

    /// Removes it from those workers.
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
        let counted = || COUNTING.bytes().saturating_sub(self.before);
        self.target.accounted_bytes().unwrap_or_else(counted)
    }
}
