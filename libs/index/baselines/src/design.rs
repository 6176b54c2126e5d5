//! The trait of every design: an index of prefixes, whatever it is made of.

use kvatlas_index::Matches;

/// One row of an answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Match {
    /// The worker.
    pub worker: u32,
    /// Number of leading blocks of the prompt that it holds; never 0.
    pub depth: u32,
}

/// The answer to a look-up, in no order. Keep it and pass it to the next look-up, which reuses its buffers.
#[derive(Default)]
pub struct Answer {
    /// Every worker that holds at least the first block.
    pub matches: Vec<Match>,
    /// Workers that hold every block looked at so far.
    pub(crate) active: Vec<u32>,
    /// Sequence hashes of the prompt, computed so far.
    pub(crate) hashes: Vec<u64>,
    /// The flat index's own buffers.
    pub(crate) flat: Matches,
}

impl Answer {
    /// Empties it for the next look-up.
    pub(crate) fn begin(&mut self) {
        self.matches.clear();
        self.active.clear();
        self.hashes.clear();
    }

    /// Reports the active workers for which `keep` is false, at `depth` blocks.
    pub(crate) fn retain(&mut self, depth: usize, keep: impl Fn(u32) -> bool) {
        let Self {
            matches, active, ..
        } = self;
        active.retain(|&worker| {
            let stays = keep(worker);
            if !stays {
                push(matches, worker, depth);
            }
            stays
        });
    }

    /// Reports one worker, unless `depth` is 0.
    pub(crate) fn report(&mut self, worker: u32, depth: usize) {
        push(&mut self.matches, worker, depth);
    }

    /// Reports all workers that are still active, at `depth` blocks.
    pub(crate) fn finish(&mut self, depth: usize) {
        self.retain(depth, |_| false);
    }
}

fn push(matches: &mut Vec<Match>, worker: u32, depth: usize) {
    if depth > 0 {
        matches.push(Match {
            worker,
            // Prompts have fewer than 2^32 blocks.
            depth: depth as u32,
        });
    }
}

/// Whether a block found by its chunk hash is verified to be that of the prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Matching {
    /// As the design was published: a block of another sequence with the same tokens counts as a hit where the design does
    /// not verify it.
    Published,
    /// Every hit is compared with the prompt's own sequence hash.
    Verified,
}

/// An index of which workers hold the leading blocks of a prompt, and how many.
///
/// Workers are small consecutive numbers. Calls about one worker come in order, from one thread at a time; calls about
/// different workers may come from several threads, and look-ups at any time. A worker's set is prefix-closed between calls:
/// it holds a block's parent whenever it holds the block.
///
/// All calls are idempotent. A look-up that runs beside a call sees some of its effect; one that starts
/// after [`PrefixIndex::settle`] sees all of it.
pub trait PrefixIndex: Send + Sync {
    /// Adds blocks to those that `worker` holds. The first follows the block whose sequence hash is `parent`, or begins a
    /// prompt. A design that finds its place by the parent refuses blocks whose parent the worker does not hold, and counts
    /// that in [`Self::refused`].
    fn store(&self, worker: u32, parent: Option<u64>, chunks: &[u64]);

    /// Removes the blocks of these sequence hashes from `worker`; a block comes before its parent.
    fn remove(&self, worker: u32, hashes: &[u64]);

    /// Removes all blocks of `worker`, which may store again.
    fn clear(&self, worker: u32);

    /// Writes to `answer` the workers that hold leading blocks of the prompt with these chunk hashes, and how many.
    fn find(&self, chunks: &[u64], answer: &mut Answer);

    /// Returns when the effect of all earlier calls is visible, and deferred clean-up is done.
    fn settle(&self) {}

    /// Number of calls of `store` that were refused.
    fn refused(&self) -> u64 {
        0
    }

    /// Bytes in use by the design's own account, if it takes memory without the global allocator, where
    /// [`crate::counting_allocator`] cannot see it.
    fn accounted_bytes(&self) -> Option<usize> {
        None
    }
}
