//! What a look-up is asked, and its sequence hashes, computed no further than the search reaches.

use kvatlas_hashing::sequence_step;

use crate::filter::SlotFilter;

/// A prompt, as hashes, head first. The byte forms take a packed `fixed64` field as it came in, at
/// any alignment; a trailing part of a hash is no hash.
#[derive(Clone, Copy, Debug)]
pub enum Query<'a> {
    /// Hash of each block's tokens. Sequence hashes are computed from them as far as needed.
    ChunkHashes(&'a [u64]),
    /// Hash of each prefix.
    SequenceHashes(&'a [u64]),
    /// Chunk hashes as little-endian bytes.
    ChunkHashesLe(&'a [u8]),
    /// Sequence hashes as little-endian bytes.
    SequenceHashesLe(&'a [u8]),
}

/// How to look up.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FindOptions<'a> {
    /// Most workers to report; 0 for all.
    pub limit: usize,
    /// Verify every depth, for sets that may have holes. Otherwise a set that has a block counts as
    /// having all blocks before it; whether that block is looked at, and so how deep a set with holes seems to be, then
    /// depends on the other sets and on what was asked with the same buffers before.
    pub exact: bool,
    /// Fewest leading blocks a worker must hold to be reported; 0 and 1 for any. The search begins there, so what
    /// matches less costs nothing and takes no one's place under the limit.
    pub min_depth: usize,
    /// Whom to report; all if none is given. Who is left out takes no one's place under the limit.
    pub filter: Option<&'a SlotFilter>,
}

/// A sequence of hashes in whatever form it came.
pub(crate) trait Words {
    fn count(&self) -> usize;
    fn get(&self, at: usize) -> u64;
}

impl Words for &[u64] {
    fn count(&self) -> usize {
        self.len()
    }

    #[inline]
    fn get(&self, at: usize) -> u64 {
        self[at]
    }
}

/// Hashes as packed little-endian bytes.
pub(crate) struct LeBytes<'a>(pub &'a [u8]);

impl Words for LeBytes<'_> {
    fn count(&self) -> usize {
        self.0.len() / 8
    }

    #[inline]
    fn get(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.0[8 * at..8 * at + 8]);
        u64::from_le_bytes(word)
    }
}

/// Sequence hashes of a query.
pub(crate) trait Hashes {
    /// Whether reaching further costs time, so that the search should feel its way.
    const LAZY: bool;

    fn count(&self) -> usize;

    /// Makes the first `count` hashes ready for [`Self::at`].
    fn reach(&mut self, count: usize);

    fn at(&self, place: usize) -> u64;
}

/// Sequence hashes that came ready.
pub(crate) struct Given<W>(pub W);

impl<W: Words> Hashes for Given<W> {
    const LAZY: bool = false;

    fn count(&self) -> usize {
        self.0.count()
    }

    fn reach(&mut self, _count: usize) {}

    #[inline]
    fn at(&self, place: usize) -> u64 {
        self.0.get(place)
    }
}

/// Sequence hashes chained from chunk hashes.
pub(crate) struct Chained<'a, W> {
    pub chunks: W,
    /// As far as chained yet; empty at first.
    pub chain: &'a mut Vec<u64>,
}

impl<W: Words> Hashes for Chained<'_, W> {
    const LAZY: bool = true;

    fn count(&self) -> usize {
        self.chunks.count()
    }

    #[inline]
    fn reach(&mut self, count: usize) {
        let mut from = self.chain.len();
        if from >= count {
            return;
        }
        if from == 0 {
            self.chain.push(self.chunks.get(0));
            from = 1;
        }
        let mut last = self.chain[from - 1];
        self.chain.resize(count, 0);
        // A step waits for the one before it, so that one's hash must stay in a register: no closure that keeps it.
        for (hash, place) in self.chain[from..].iter_mut().zip(from..) {
            last = sequence_step(last, self.chunks.get(place));
            *hash = last;
        }
    }

    #[inline]
    fn at(&self, place: usize) -> u64 {
        self.chain[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chained_hashes_do_not_depend_on_the_steps_in_which_they_are_reached() {
        let chunks: Vec<u64> = (0..40).map(|i| i * 31).collect();
        let (mut at_once, mut in_steps) = (Vec::new(), Vec::new());
        Chained {
            chunks: chunks.as_slice(),
            chain: &mut at_once,
        }
        .reach(40);
        let mut lazy = Chained {
            chunks: chunks.as_slice(),
            chain: &mut in_steps,
        };
        for count in [1, 0, 7, 7, 8, 40] {
            lazy.reach(count);
        }
        assert_eq!(at_once, in_steps);
        assert_eq!(at_once[0], chunks[0]);
        assert_eq!(at_once[1], sequence_step(chunks[0], chunks[1]));
    }
}
