//! Nested dictionaries: worker → chunk hash → sequence hashes.
//!
//! Stands for the simplest index, the first step of NVIDIA Dynamo's "Flash Indexer" post
//! (docs.nvidia.com/dynamo, digest, February 2026, section 2.1), there in Python and then in Rust. A
//! look-up walks the prompt once per worker: O(workers × depth). As published it asks only whether a
//! worker has *some* block with these tokens, so blocks of other sequences count as hits; the verified
//! form looks for the prompt's own sequence hash among them, and is the reference of the differential test. Both have one
//! addition: a map from sequence hash to chunk hash, without which a removal would visit all blocks of the worker, as the post's
//! does.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::design::{Answer, Matching};
use crate::parts::chain::{chained, hash_at};
use crate::sharing::locked::Exclusive;

#[derive(Default)]
struct Held {
    sequences: FxHashMap<u64, FxHashSet<u64>>,
    chunk_of: FxHashMap<u64, u64>,
}

/// One dictionary per worker.
pub struct NestedDict {
    workers: FxHashMap<u32, Held>,
    matching: Matching,
}

impl NestedDict {
    /// An empty index.
    #[must_use]
    pub fn new(matching: Matching) -> Self {
        Self {
            workers: FxHashMap::default(),
            matching,
        }
    }

    fn holds(&self, held: &Held, chunks: &[u64], at: usize, hashes: &mut Vec<u64>) -> bool {
        let Some(sequences) = held.sequences.get(&chunks[at]) else {
            return false;
        };
        match self.matching {
            Matching::Published => true,
            Matching::Verified => sequences.contains(&hash_at(chunks, hashes, at)),
        }
    }
}

impl Exclusive for NestedDict {
    fn store(&mut self, worker: u32, parent: Option<u64>, chunks: &[u64]) {
        let held = self.workers.entry(worker).or_default();
        for (chunk, hash) in chained(parent, chunks) {
            held.sequences.entry(chunk).or_default().insert(hash);
            held.chunk_of.insert(hash, chunk);
        }
    }

    fn remove(&mut self, worker: u32, hashes: &[u64]) {
        let Some(held) = self.workers.get_mut(&worker) else {
            return;
        };
        for hash in hashes {
            let Some(chunk) = held.chunk_of.remove(hash) else {
                continue;
            };
            if let Some(sequences) = held.sequences.get_mut(&chunk) {
                sequences.remove(hash);
                if sequences.is_empty() {
                    held.sequences.remove(&chunk);
                }
            }
        }
    }

    fn clear(&mut self, worker: u32) {
        self.workers.remove(&worker);
    }

    fn find(&self, chunks: &[u64], answer: &mut Answer) {
        answer.begin();
        for (&worker, held) in &self.workers {
            let depth = (0..chunks.len())
                .take_while(|&at| self.holds(held, chunks, at, &mut answer.hashes))
                .count();
            answer.report(worker, depth);
        }
    }
}
