//! The model and one index of each design, driven together.

use kvatlas_baselines::catalogue::Design;
use kvatlas_baselines::{Answer, Match, PrefixIndex};

use super::model::{Model, sequence_hashes};

pub struct Fleet {
    pub model: Model,
    pub indexes: Vec<(&'static str, Box<dyn PrefixIndex>)>,
    answer: Answer,
}

/// An answer in the order of workers; a worker must not be named twice.
pub fn find(index: &dyn PrefixIndex, chunks: &[u64], answer: &mut Answer) -> Vec<Match> {
    index.find(chunks, answer);
    let mut found = answer.matches.clone();
    found.sort_unstable();
    assert!(
        found
            .windows(2)
            .all(|pair| pair[0].worker != pair[1].worker)
    );
    found
}

impl Fleet {
    pub fn new(designs: impl IntoIterator<Item = Design>) -> Self {
        Self {
            model: Model::default(),
            indexes: designs
                .into_iter()
                .map(|design| (design.name, (design.make)()))
                .collect(),
            answer: Answer::default(),
        }
    }

    /// Stores blocks `from..to` of a prompt, whose first `from` blocks the worker holds.
    pub fn store(&mut self, worker: u32, chunks: &[u64], from: usize, to: usize) {
        let hashes = sequence_hashes(chunks);
        let parent = from.checked_sub(1).map(|before| hashes[before]);
        assert!(self.model.depth(worker, &hashes) >= from);
        self.model.store(worker, &hashes, to);
        for (_, index) in &self.indexes {
            index.store(worker, parent, &chunks[from..to]);
        }
    }

    /// Removes block `at` of a prompt and all blocks that follow it.
    pub fn remove(&mut self, worker: u32, chunks: &[u64], at: usize) {
        let removed = self.model.remove(worker, sequence_hashes(chunks)[at]);
        for (_, index) in &self.indexes {
            index.remove(worker, &removed);
        }
    }

    pub fn clear(&mut self, worker: u32) {
        self.model.clear(worker);
        for (_, index) in &self.indexes {
            index.clear(worker);
        }
    }

    pub fn compare(&mut self, chunks: &[u64]) {
        let expected = self.model.find(chunks);
        for (name, index) in &self.indexes {
            index.settle();
            let found = find(&**index, chunks, &mut self.answer);
            assert_eq!(found, expected, "{name}, {} blocks", chunks.len());
        }
    }
}
