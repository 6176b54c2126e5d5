//! The question of a look-up: a prompt as hashes, and options. Sequence hashes are computed no further than the search
//! reaches.

use kvatlas_hashing::sequence_step;

use crate::lookup::worker_filter::WorkerFilter;

/// A prompt, as hashes of its blocks, first block first. The byte forms take a packed `fixed64` field as it came in, at any
/// alignment; an incomplete hash at the end is left out.
#[derive(Clone, Copy, Debug)]
pub enum Query<'a> {
    /// Hash of each block's own tokens. Sequence hashes are computed from them as far as needed.
    ChunkHashes(&'a [u64]),
    /// Hash of each prefix.
    SequenceHashes(&'a [u64]),
    /// Chunk hashes as little-endian bytes.
    ChunkHashesLe(&'a [u8]),
    /// Sequence hashes as little-endian bytes.
    SequenceHashesLe(&'a [u8]),
}

/// Options of a look-up.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FindOptions<'a> {
    /// Most workers to report; 0 for all.
    pub limit: usize,
    /// Whether to verify every depth, for sets that may have holes. Otherwise a worker that holds a block counts as holding
    /// all blocks before it. Which blocks are looked at then depends on the other workers' sets and on earlier queries with
    /// the same buffers. So the reported depth of a set with holes may vary.
    pub exact: bool,
    /// Fewest leading blocks that a reported worker holds; 0 and 1 for any. The search begins at this depth, so shorter
    /// matches cost nothing and do not count toward the limit.
    pub min_depth: usize,
    /// Workers that may be reported; all if none is given. Others do not count toward the limit.
    pub filter: Option<&'a WorkerFilter>,
}

/// An array of hashes in whatever form it came.
pub(crate) trait HashArray {
    fn len(&self) -> usize;
    fn get(&self, at: usize) -> u64;
}

impl HashArray for &[u64] {
    fn len(&self) -> usize {
        <[u64]>::len(self)
    }

    #[inline]
    fn get(&self, at: usize) -> u64 {
        self[at]
    }
}

/// Hashes as packed little-endian bytes.
pub(crate) struct LeBytes<'a>(pub &'a [u8]);

impl HashArray for LeBytes<'_> {
    fn len(&self) -> usize {
        self.0.len() / 8
    }

    #[inline]
    fn get(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.0[8 * at..8 * at + 8]);
        u64::from_le_bytes(word)
    }
}

/// The sequence hashes of a query.
pub(crate) trait SequenceHashes {
    /// Whether later hashes cost time, so that the search should gallop.
    const CHAINED: bool;

    fn len(&self) -> usize;

    /// Makes the first `count` hashes ready for [`Self::at`].
    fn compute(&mut self, count: usize);

    /// The hash of block number `place`, from 0.
    fn at(&self, place: usize) -> u64;
}

/// Sequence hashes that came ready.
pub(crate) struct Given<W>(pub W);

impl<W: HashArray> SequenceHashes for Given<W> {
    const CHAINED: bool = false;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn compute(&mut self, _count: usize) {}

    #[inline]
    fn at(&self, place: usize) -> u64 {
        self.0.get(place)
    }
}

/// Sequence hashes chained from chunk hashes.
pub(crate) struct Chained<'a, W> {
    pub chunks: W,
    /// The sequence hashes computed so far; empty at first.
    pub chain: &'a mut Vec<u64>,
}

impl<W: HashArray> SequenceHashes for Chained<'_, W> {
    const CHAINED: bool = true;

    fn len(&self) -> usize {
        self.chunks.len()
    }

    #[inline]
    fn compute(&mut self, count: usize) {
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
    fn chained_hashes_do_not_depend_on_the_steps_in_which_they_are_computed() {
        let chunks: Vec<u64> = (0..40).map(|i| i * 31).collect();
        let (mut at_once, mut in_steps) = (Vec::new(), Vec::new());
        Chained {
            chunks: chunks.as_slice(),
            chain: &mut at_once,
        }
        .compute(40);
        let mut stepwise = Chained {
            chunks: chunks.as_slice(),
            chain: &mut in_steps,
        };
        for count in [1, 0, 7, 7, 8, 40] {
            stepwise.compute(count);
        }
        assert_eq!(at_once, in_steps);
        assert_eq!(at_once[0], chunks[0]);
        assert_eq!(at_once[1], sequence_step(chunks[0], chunks[1]));
    }
}
