//! The inverted index: block → set of workers.
//!
//! Stands for the third step of NVIDIA Dynamo's "Flash Indexer" post (docs.nvidia.com/dynamo, digest,
//! February 2026, section 3: chunk hash → sequence hash → workers), for the in-memory index of
//! llm-d-kv-cache (`pkg/kvcache/kvblock`, a two-level cache: block key → pods) and for AIBrix's prefix
//! hash tables (`pkg/utils/syncprefixcacheindexer`: prefix hash → pods). A look-up walks the prompt
//! block by block and drops workers as their sets end: O(depth + workers).
//!
//! Two forms. As published by Dynamo it is keyed by chunk hash, and a look-up takes the union over all
//! sequences with that chunk. The verified form is llm-d's: one key per prefix, here the sequence
//! hash, chained during the walk. Theirs evict by LRU, and then miss blocks that are held; this one evicts nothing. No map says
//! which blocks a worker has, so a clear visits all blocks.

use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::design::{Answer, Matching, PrefixIndex};
use crate::parts::chain::{chained, next_hash};
use crate::parts::worker_set::WorkerSet;

const SHARD_BITS: u32 = 6;

type Shard = RwLock<FxHashMap<u64, Entry>>;

/// The workers that hold the block of this key; by sequence hash where the key is a chunk hash.
enum Entry {
    Sequence(WorkerSet),
    Chunk(Box<FxHashMap<u64, WorkerSet>>),
}

/// Hash maps in shards of one lock each.
pub struct InvertedIndex {
    shards: Box<[Shard]>,
    matching: Matching,
}

impl InvertedIndex {
    /// An empty index.
    #[must_use]
    pub fn new(matching: Matching) -> Self {
        Self {
            shards: (0..1 << SHARD_BITS).map(|_| Shard::default()).collect(),
            matching,
        }
    }

    fn shard(&self, key: u64) -> &Shard {
        &self.shards[(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SHARD_BITS)) as usize]
    }

    fn add(&self, worker: u32, chunk: u64, hash: u64) {
        match self.matching {
            Matching::Verified => {
                let mut shard = self.shard(hash).write();
                let entry = shard.entry(hash);
                if let Entry::Sequence(workers) =
                    entry.or_insert_with(|| Entry::Sequence(WorkerSet::default()))
                {
                    workers.insert(worker);
                }
            }
            Matching::Published => {
                let mut shard = self.shard(chunk).write();
                let entry = shard.entry(chunk);
                if let Entry::Chunk(sequences) =
                    entry.or_insert_with(|| Entry::Chunk(Box::default()))
                {
                    sequences.entry(hash).or_default().insert(worker);
                }
            }
        }
    }

    /// Keeps the active workers that hold the block `key`; `false` if there is no such block.
    fn narrow(&self, key: u64, at: usize, answer: &mut Answer) -> bool {
        let shard = self.shard(key).read();
        let Some(entry) = shard.get(&key) else {
            return false;
        };
        let first = at == 0;
        match entry {
            Entry::Sequence(workers) if first => workers.for_each(|id| answer.active.push(id)),
            Entry::Sequence(workers) => answer.retain(at, |id| workers.contains(id)),
            Entry::Chunk(sequences) if first => {
                for workers in sequences.values() {
                    workers.for_each(|id| answer.active.push(id));
                }
                answer.active.sort_unstable();
                answer.active.dedup();
            }
            Entry::Chunk(sequences) => answer.retain(at, |id| {
                sequences.values().any(|workers| workers.contains(id))
            }),
        }
        true
    }
}

/// Removes the worker from the entry; true if none is left.
fn remove_worker(entry: &mut Entry, worker: u32, hash: Option<u64>) -> bool {
    match entry {
        Entry::Sequence(workers) => {
            workers.remove(worker);
            workers.is_empty()
        }
        Entry::Chunk(sequences) => {
            sequences.retain(|&own, workers| {
                if hash.is_none_or(|hash| hash == own) {
                    workers.remove(worker);
                }
                !workers.is_empty()
            });
            sequences.is_empty()
        }
    }
}

impl PrefixIndex for InvertedIndex {
    fn store(&self, worker: u32, parent: Option<u64>, chunks: &[u64]) {
        for (chunk, hash) in chained(parent, chunks) {
            self.add(worker, chunk, hash);
        }
    }

    fn remove(&self, worker: u32, hashes: &[u64]) {
        match self.matching {
            Matching::Verified => {
                for &hash in hashes {
                    let mut shard = self.shard(hash).write();
                    if let Some(entry) = shard.get_mut(&hash)
                        && remove_worker(entry, worker, Some(hash))
                    {
                        shard.remove(&hash);
                    }
                }
            }
            // As the post says: without a reverse map, a removal looks through the whole index.
            Matching::Published => {
                for shard in &self.shards {
                    shard.write().retain(|_, entry| {
                        !hashes
                            .iter()
                            .any(|&hash| remove_worker(entry, worker, Some(hash)))
                    });
                }
            }
        }
    }

    fn clear(&self, worker: u32) {
        for shard in &self.shards {
            let mut entries = shard.write();
            entries.retain(|_, entry| !remove_worker(entry, worker, None));
            entries.shrink_to_fit();
        }
    }

    fn find(&self, chunks: &[u64], answer: &mut Answer) {
        answer.begin();
        let mut hash = None;
        for (at, &chunk) in chunks.iter().enumerate() {
            hash = Some(next_hash(hash, chunk));
            let key = match self.matching {
                Matching::Verified => hash.unwrap_or(chunk),
                Matching::Published => chunk,
            };
            if !self.narrow(key, at, answer) {
                return answer.finish(at);
            }
            if answer.active.is_empty() {
                return;
            }
        }
        answer.finish(chunks.len());
    }
}
