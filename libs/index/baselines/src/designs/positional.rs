//! The positional index with jump search: (position, chunk hash) → sequence hash → workers.
//!
//! Stands for the sixth step of NVIDIA Dynamo's "Flash Indexer" post (docs.nvidia.com/dynamo, digest,
//! February 2026, section 6) and `lib/kv-router/src/indexer/positional.rs` of its repository. Any position
//! is one look-up away, so a search jumps ahead, and scans the places that it skipped only when the number of
//! workers fell. An entry is `Single` while one sequence hash has that chunk at that position,
//! `Multi` beyond. As published, a `Single` entry counts as a hit without verification, which saves computing sequence
//! hashes: a block of another prompt, with the same tokens at the same depth, is then a false match if as many workers hold it
//! as were left. The verified form compares, as Dynamo 1.6.1's code does, and so computes hashes as far as it jumps. A writer's
//! state maps each of its blocks to position and chunk.
//!
//! Departures: sets of workers are a few numbers in place or a bitmap, where Dynamo's are hash sets, which costs it memory; the
//! shards are plain hash maps behind readers-writer locks, as in `DashMap`.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use rustc_hash::{FxHashMap, FxHasher};

use crate::design::{Answer, Matching};
use crate::parts::chain::{chained, hash_at};
use crate::parts::worker_set::WorkerSet;
use crate::sharing::sticky::StickyDesign;

const SHARD_BITS: u32 = 6;

/// A position of a prompt and the chunk there.
type Key = (u32, u64);

enum Entry {
    Single(u64, WorkerSet),
    Multi(Box<FxHashMap<u64, WorkerSet>>),
}

impl Entry {
    fn insert(&mut self, hash: u64, worker: u32) {
        match self {
            Self::Single(own, workers) if *own == hash => {
                workers.insert(worker);
            }
            Self::Single(own, workers) => {
                let first = (*own, std::mem::take(workers));
                let second = (hash, WorkerSet::of(worker));
                *self = Self::Multi(Box::new(FxHashMap::from_iter([first, second])));
            }
            Self::Multi(sequences) => {
                sequences.entry(hash).or_default().insert(worker);
            }
        }
    }

    /// Removes a worker; true if none is left.
    fn remove(&mut self, hash: u64, worker: u32) -> bool {
        match self {
            Self::Single(own, workers) => {
                if *own == hash {
                    workers.remove(worker);
                }
                workers.is_empty()
            }
            Self::Multi(sequences) => {
                if let Some(workers) = sequences.get_mut(&hash) {
                    workers.remove(worker);
                    if workers.is_empty() {
                        sequences.remove(&hash);
                    }
                }
                sequences.is_empty()
            }
        }
    }
}

/// A writer's state: by worker, a map from sequence hash to the key in the index.
#[derive(Default)]
pub struct Levels(FxHashMap<u32, FxHashMap<u64, Key>>);

/// The index. Wrap it in [`crate::sharing::sticky::Inline`] or [`crate::sharing::sticky::Sticky`].
pub struct Positional {
    shards: Box<[RwLock<FxHashMap<Key, Entry>>]>,
    jump: usize,
    matching: Matching,
    refused: AtomicU64,
}

impl Positional {
    /// An empty index whose searches skip `jump` positions at a time, at least one.
    #[must_use]
    pub fn new(jump: usize, matching: Matching) -> Self {
        Self {
            shards: (0..1 << SHARD_BITS).map(|_| RwLock::default()).collect(),
            jump: jump.max(1),
            matching,
            refused: AtomicU64::new(0),
        }
    }

    fn shard(&self, key: Key) -> &RwLock<FxHashMap<Key, Entry>> {
        use std::hash::{Hash, Hasher};
        let mut hasher = FxHasher::default();
        key.hash(&mut hasher);
        // The map uses the low bits and the top seven.
        &self.shards[(hasher.finish() >> 40) as usize % self.shards.len()]
    }

    fn remove_worker(&self, key: Key, hash: u64, worker: u32) {
        let mut shard = self.shard(key).write();
        if let Some(entry) = shard.get_mut(&key)
            && entry.remove(hash, worker)
        {
            shard.remove(&key);
        }
    }

    /// Calls `see` with the workers that hold block `at` of the prompt, verified if this form does that.
    fn look<R>(
        &self,
        chunks: &[u64],
        at: usize,
        answer: &mut Answer,
        see: impl FnOnce(&WorkerSet, &mut Answer) -> R,
    ) -> R {
        let key = (at as u32, chunks[at]);
        let shard = self.shard(key).read();
        let workers = match (shard.get(&key), self.matching) {
            (None, _) => None,
            (Some(Entry::Single(_, workers)), Matching::Published) => Some(workers),
            (Some(Entry::Single(own, workers)), Matching::Verified) => {
                (*own == hash_at(chunks, &mut answer.hashes, at)).then_some(workers)
            }
            (Some(Entry::Multi(sequences)), _) => {
                sequences.get(&hash_at(chunks, &mut answer.hashes, at))
            }
        };
        match workers {
            Some(workers) => see(workers, answer),
            None => see(&WorkerSet::default(), answer),
        }
    }
}

impl StickyDesign for Positional {
    type WriterState = Levels;

    fn store(&self, state: &mut Levels, worker: u32, parent: Option<u64>, chunks: &[u64]) {
        let held = state.0.entry(worker).or_default();
        let start = match parent {
            None => 0,
            Some(hash) => match held.get(&hash) {
                Some(&(position, _)) => position + 1,
                None => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            },
        };
        for (position, (chunk, hash)) in (start..).zip(chained(parent, chunks)) {
            let key = (position, chunk);
            let mut shard = self.shard(key).write();
            shard
                .entry(key)
                .and_modify(|entry| entry.insert(hash, worker))
                .or_insert_with(|| Entry::Single(hash, WorkerSet::of(worker)));
            held.insert(hash, key);
        }
    }

    fn remove(&self, state: &mut Levels, worker: u32, hashes: &[u64]) {
        let Some(held) = state.0.get_mut(&worker) else {
            return;
        };
        for &hash in hashes {
            if let Some(key) = held.remove(&hash) {
                self.remove_worker(key, hash, worker);
            }
        }
    }

    fn clear(&self, state: &mut Levels, worker: u32) {
        for (hash, key) in state.0.remove(&worker).into_iter().flatten() {
            self.remove_worker(key, hash, worker);
        }
    }

    fn find(&self, chunks: &[u64], answer: &mut Answer) {
        answer.begin();
        let Some(last) = chunks.len().checked_sub(1) else {
            return;
        };
        self.look(chunks, 0, answer, |workers, answer| {
            workers.for_each(|id| answer.active.push(id));
        });
        let mut confirmed = 0;
        while confirmed < last && !answer.active.is_empty() {
            let ahead = (confirmed + self.jump).min(last);
            let left = self.look(chunks, ahead, answer, |workers, _| workers.len());
            if left != answer.active.len() {
                for at in confirmed + 1..=ahead {
                    self.look(chunks, at, answer, |workers, answer| {
                        answer.retain(at, |id| workers.contains(id));
                    });
                }
            }
            confirmed = ahead;
        }
        answer.finish(chunks.len());
    }

    fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}
