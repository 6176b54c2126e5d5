//! The model: a dictionary per worker, and answers defined block by block.

use std::collections::BTreeMap;

use kvatlas_baselines::Match;
use kvatlas_hashing::sequence_hashes_into;

/// The blocks of a worker: sequence hash → parent.
type Held = BTreeMap<u64, Option<u64>>;

pub fn sequence_hashes(chunks: &[u64]) -> Vec<u64> {
    let mut hashes = vec![0; chunks.len()];
    sequence_hashes_into(chunks, &mut hashes);
    hashes
}

#[derive(Default)]
pub struct Model {
    workers: BTreeMap<u32, Held>,
}

impl Model {
    /// Number of leading blocks of the prompt that the worker holds.
    pub fn depth(&self, worker: u32, hashes: &[u64]) -> usize {
        let held = self.workers.get(&worker);
        hashes
            .iter()
            .take_while(|hash| held.is_some_and(|held| held.contains_key(hash)))
            .count()
    }

    /// Stores the prompt's blocks up to `to`.
    pub fn store(&mut self, worker: u32, hashes: &[u64], to: usize) {
        let held = self.workers.entry(worker).or_default();
        for at in 0..to {
            let parent = at.checked_sub(1).map(|before| hashes[before]);
            held.insert(hashes[at], parent);
        }
    }

    /// Removes a block and all that follow it; returns them, tails first.
    pub fn remove(&mut self, worker: u32, hash: u64) -> Vec<u64> {
        let Some(held) = self.workers.get_mut(&worker) else {
            return Vec::new();
        };
        let mut removed = Vec::new();
        let mut next = vec![hash];
        while let Some(hash) = next.pop() {
            if held.remove(&hash).is_some() {
                removed.push(hash);
                let below = held.iter().filter(|(_, parent)| **parent == Some(hash));
                next.extend(below.map(|(&hash, _)| hash));
            }
        }
        removed.reverse();
        removed
    }

    pub fn clear(&mut self, worker: u32) {
        self.workers.remove(&worker);
    }

    pub fn find(&self, chunks: &[u64]) -> Vec<Match> {
        let hashes = sequence_hashes(chunks);
        let found = self.workers.keys().map(|&worker| Match {
            worker,
            depth: self.depth(worker, &hashes) as u32,
        });
        found.filter(|found| found.depth > 0).collect()
    }
}
