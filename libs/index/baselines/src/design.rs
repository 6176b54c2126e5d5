//! What an index of prefixes is, whatever it is made of.

use kvatlas_index::Matches;

/// One worker of an answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Match {
    /// The worker.
    pub worker: u32,
    /// How many leading blocks of the prompt it holds; never 0.
    pub depth: u32,
}

/// The answer to a look-up, in no order. Keep it and hand it to the next look-up: its buffers are used
/// again.
#[derive(Default)]
pub struct Answer {
    /// Every worker that holds at least the first block.
    pub matches: Vec<Match>,
    /// Workers that hold every block looked at so far.
    pub(crate) active: Vec<u32>,
    /// Sequence hashes of the prompt, as far as computed.
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

    /// Reports the workers that are active and not kept, as holding `depth` blocks.
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

    /// Reports one worker; not if it holds nothing.
    pub(crate) fn report(&mut self, worker: u32, depth: usize) {
        push(&mut self.matches, worker, depth);
    }

    /// Reports all that are still active, as holding `depth` blocks.
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

/// Whether a block that was found by its chunk hash is checked to be that of the prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Matching {
    /// As the design was published: a block of another sequence with the same tokens counts as a hit
    /// where the design does not look closer.
    Published,
    /// Every hit is compared with the prompt's own sequence hash.
    Verified,
}

/// Which workers hold the leading blocks of a prompt, and how many of them.
///
/// Workers are small consecutive numbers. The calls about one worker come in order, from one thread at
/// a time; those about several may come from several threads, and look-ups at any time. What a worker
/// holds is prefix-closed between calls: it holds a block's parent whenever it holds the block.
///
/// All calls are idempotent. A look-up that runs beside a call sees some of its effect; one that starts
/// after [`PrefixIndex::settle`] sees all of it.
pub trait PrefixIndex: Send + Sync {
    /// `worker` now holds these blocks: the first follows the block whose sequence hash is `parent`, or
    /// begins a prompt. A design that finds its place by the parent refuses blocks whose parent the
    /// worker does not hold, and counts that in [`Self::refused`].
    fn store(&self, worker: u32, parent: Option<u64>, chunks: &[u64]);

    /// `worker` no longer holds the blocks of these sequence hashes; tails come before their heads.
    fn remove(&self, worker: u32, hashes: &[u64]);

    /// `worker` holds nothing any more. It may store again.
    fn clear(&self, worker: u32);

    /// Writes to `answer` who holds how many leading blocks of the prompt with these chunk hashes.
    fn find(&self, chunks: &[u64], answer: &mut Answer);

    /// Returns when every call that has returned is applied, and clean-up put off till later is done.
    fn settle(&self) {}

    /// How many calls of `store` were refused.
    fn refused(&self) -> u64 {
        0
    }

    /// Bytes in use by the design's own account, if it takes memory past the global allocator, where
    /// [`crate::counting`] cannot see it.
    fn accounted_bytes(&self) -> Option<usize> {
        None
    }
}
