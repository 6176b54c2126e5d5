//! A mock engine: the part of a prompt that it holds, the time for the rest, and the events that follow.

use kvatlas_hashing::sequence_hashes_into;

use crate::index::cache::Cache;
use crate::index::trace::{ID_TOKENS, Request};

const SERVICE_NS: u64 = 1_000_000;
const TOKEN_NS: u64 = 10_000;

/// The output function of splitmix64.
pub fn mix(state: u64) -> u64 {
    let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// A prompt's full blocks.
#[derive(Default)]
pub struct Prompt {
    /// Chunk hashes.
    pub chunks: Vec<u64>,
    /// Sequence hashes.
    hashes: Vec<u64>,
    tokens: u64,
}

impl Prompt {
    /// Cuts a request's prompt, its ids raised by `offset`, into blocks of `block_tokens` tokens.
    pub fn fill(&mut self, request: &Request, offset: u64, block_tokens: u32) {
        let ratio = u64::from(ID_TOKENS / block_tokens);
        self.chunks.clear();
        self.tokens = 0;
        for &(id, tokens) in &request.ids {
            let first = (id + offset).wrapping_mul(ratio);
            let blocks = u64::from(tokens / block_tokens);
            self.chunks
                .extend((0..blocks).map(|block| mix(first.wrapping_add(block))));
            self.tokens += u64::from(tokens);
        }
        self.hashes.resize(self.chunks.len(), 0);
        sequence_hashes_into(&self.chunks, &mut self.hashes);
    }
}

/// A mock engine: it serves one prompt at a time.
pub struct Engine {
    /// The blocks that it holds.
    cache: Cache,
    /// Time at which it has served all prompts so far.
    free_ns: u64,
}

/// An event that an engine will publish: the blocks it evicted, then those that it stored.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    /// Time in the stream.
    pub time_ns: u64,
    /// Number of the request; orders events of the same time.
    pub number: u64,
    /// Number of the worker.
    pub worker: u32,
    /// Sequence hashes.
    pub removed: Vec<u64>,
    /// Sequence hash of the block before those stored.
    pub parent: Option<u64>,
    /// Chunk hashes.
    pub stored: Vec<u64>,
}

impl Engine {
    /// One that holds nothing yet, and never more than `capacity` blocks.
    pub fn new(capacity: usize) -> Self {
        Self {
            cache: Cache::new(capacity),
            free_ns: 0,
        }
    }

    /// Serves a prompt that arrives at `now_ns`. If it is longer than the cache, its head is kept.
    /// The caller sets the event's number and worker.
    pub fn serve(&mut self, prompt: &Prompt, block_tokens: u32, now_ns: u64) -> Event {
        let kept = prompt.hashes.len().min(self.cache.capacity());
        let hashes = &prompt.hashes[..kept];
        let held = hashes.iter().take_while(|&&hash| self.cache.contains(hash));
        let held = held.count();
        for &hash in hashes.iter().rev() {
            self.cache.touch(hash);
        }
        let mut removed = Vec::new();
        self.cache.evict(&mut removed);
        let missing = prompt.tokens - held as u64 * u64::from(block_tokens);
        self.free_ns = now_ns.max(self.free_ns) + SERVICE_NS + TOKEN_NS * missing;
        // A parent whose hash is 0 cannot be told from none; a store that would need it begins with it.
        let named = |at: &usize| *at == 0 || hashes[at - 1] != 0;
        let from = if held == kept {
            kept
        } else {
            (0..=held).rev().find(named).unwrap_or(0)
        };
        Event {
            time_ns: self.free_ns,
            number: 0,
            worker: 0,
            removed,
            parent: from.checked_sub(1).map(|at| hashes[at]),
            stored: prompt.chunks[from..kept].to_vec(),
        }
    }
}
