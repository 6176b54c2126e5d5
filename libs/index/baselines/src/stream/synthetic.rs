//! A small synthetic stream in the style of the published ones, for tests and for a first look.
//!
//! Sessions grow turn by turn below blocks that all prompts share, each on one worker. A worker's cache evicts the least
//! recently used blocks; a block is touched after its children, so that a block is evicted before its parent. Each prompt has
//! one store event, and one remove event just before it if blocks are evicted.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::parts::chain::chained;
use crate::stream::format::{Op, OpStream, Record, Shape, StreamError};
use crate::stream::writer::Recorder;

/// Settings of a synthetic stream.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Workers.
    pub workers: u32,
    /// Prompts, over all workers.
    pub prompts: u32,
    /// Concurrent sessions per worker.
    pub sessions: u32,
    /// Blocks with which every prompt begins.
    pub hub_blocks: u32,
    /// Blocks that a turn adds, on average.
    pub turn_blocks: u32,
    /// Turns of a session; then another one replaces it.
    pub turns: u32,
    /// Blocks that a worker's cache holds.
    pub capacity: usize,
    /// Seed; equal seeds give equal streams.
    pub seed: u64,
}

impl Plan {
    /// 400,000 blocks: fits the near caches, and is made and played in a moment.
    pub const SMALL: Self = Self {
        workers: 200,
        prompts: 40_000,
        sessions: 8,
        hub_blocks: 8,
        turn_blocks: 12,
        turns: 12,
        capacity: 2_000,
        seed: 1,
    };

    /// 7 million blocks of 1,000 workers, in the proportions of the published streams: 48 blocks queried and 30 stored per
    /// prompt, and every answer names every worker.
    pub const LARGE: Self = Self {
        workers: 1_000,
        prompts: 300_000,
        sessions: 4,
        hub_blocks: 4,
        turn_blocks: 30,
        turns: 2,
        capacity: 7_000,
        seed: 1,
    };
}

/// splitmix64's output function.
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// One worker's cache: blocks by age.
#[derive(Default)]
struct Cache {
    touched: FxHashMap<u64, u64>,
    by_age: BTreeMap<u64, u64>,
    clock: u64,
}

impl Cache {
    /// Touches a prompt, tail first; returns how many of its blocks were cached.
    fn admit(&mut self, hashes: &[u64]) -> usize {
        let known = hashes
            .iter()
            .take_while(|hash| self.touched.contains_key(hash))
            .count();
        for &hash in hashes.iter().rev() {
            self.clock += 1;
            if let Some(before) = self.touched.insert(hash, self.clock) {
                self.by_age.remove(&before);
            }
            self.by_age.insert(self.clock, hash);
        }
        known
    }

    /// Evicts the oldest blocks until no more than `capacity` are left.
    fn evict(&mut self, capacity: usize) -> Vec<u64> {
        let mut evicted = Vec::new();
        while self.touched.len() > capacity {
            let Some((_, hash)) = self.by_age.pop_first() else {
                break;
            };
            self.touched.remove(&hash);
            evicted.push(hash);
        }
        evicted
    }
}

/// Makes the stream. A capacity below a prompt's length is raised to it.
///
/// # Errors
/// Those of recording; none with at least one worker.
pub fn synthesize(plan: &Plan) -> Result<OpStream, StreamError> {
    let longest = plan.hub_blocks + 2 * plan.turn_blocks * plan.turns;
    let capacity = plan.capacity.max(longest as usize);
    let mut recorder = Recorder::new(Shape {
        workers: plan.workers,
        block_tokens: 16,
        id_tokens: 16,
        replicas: 1,
        capacity: capacity as u64,
        seed: plan.seed,
        flags: 0,
    });
    let hub: Vec<u64> = (0..u64::from(plan.hub_blocks))
        .map(|at| mix(at + 1))
        .collect();
    let mut caches: Vec<Cache> = (0..plan.workers).map(|_| Cache::default()).collect();
    let mut sessions: FxHashMap<(u32, u32), (u32, Vec<u64>)> = FxHashMap::default();
    for number in 0..plan.prompts {
        let time_ns = u64::from(number) * 1000;
        let draw = mix(plan.seed ^ mix(u64::from(number) | 1 << 40));
        let worker = (draw % u64::from(plan.workers.max(1))) as u32;
        let session = (draw >> 32) as u32 % plan.sessions.max(1);
        let (turns, prompt) = sessions
            .entry((worker, session))
            .or_insert_with(|| (0, hub.clone()));
        if *turns == plan.turns {
            (*turns, *prompt) = (0, hub.clone());
        }
        *turns += 1;
        let added = 1 + (draw >> 16) % u64::from(2 * plan.turn_blocks.max(1));
        prompt.extend((0..added).map(|at| mix(draw ^ at << 48 ^ 1)));
        let mut put = |op| {
            recorder.record(Record {
                time_ns,
                worker,
                op,
            })
        };
        put(Op::Query(prompt))?;
        let hashes: Vec<u64> = chained(None, prompt).map(|(_, hash)| hash).collect();
        let cache = &mut caches[worker as usize];
        let known = cache.admit(&hashes);
        let evicted = cache.evict(capacity);
        if !evicted.is_empty() {
            put(Op::Remove(&evicted))?;
        }
        if known < prompt.len() {
            let parent = known.checked_sub(1).map(|at| hashes[at]);
            let chunks = &prompt[known..];
            put(Op::Store { parent, chunks })?;
        }
    }
    Ok(recorder.finish())
}
