//! Times stores and removes, of blocks that no worker holds and of blocks that others hold too.

use std::time::Instant;

use kvatlas_baselines::catalogue::Design;
use serde_json::{Value, json};

use crate::index::cpu::thread_ns;
use crate::index::micro::bench::Bench;
use crate::index::micro::filled::{Filled, Prompt};
use crate::latency::median;

/// Blocks stored and removed for one cold figure, at 100 samples.
const COLD_BLOCKS: usize = 100_000;
/// Blocks between two readings of the clock, if an event has fewer.
const HOT_BLOCKS: usize = 256;
/// Most memberships stored beforehand for one cold figure.
const SHARED_MEMBERSHIPS: usize = 2_000_000;
/// The worker that leaves and joins; it holds all shared blocks.
const FIRST: u32 = 0;

/// Time per block, in ns.
#[derive(Clone, Copy)]
struct Cost {
    store: f64,
    remove: f64,
}

impl Bench {
    /// Events with so many blocks that no other worker holds. Hot: the same events again.
    pub fn own_blocks(&self, filled: &mut Filled, blocks: usize) -> Vec<Value> {
        let again: Vec<Prompt> = (0..hot_events(blocks))
            .map(|_| filled.fresh(blocks))
            .collect();
        let rounds = (0..self.sizes.samples.max(1)).map(|_| self.store_and_remove(filled, &again));
        let hot = middle(rounds.collect());
        let others: Vec<Prompt> = (0..self.events(blocks, 1))
            .map(|_| filled.fresh(blocks))
            .collect();
        self.flush.all();
        let cold = self.store_and_remove(filled, &others);
        lines(&self.design, filled, blocks, 1, hot, cold)
    }

    /// Events with so many blocks that so many workers hold; one worker leaves and joins.
    pub fn shared_blocks(&self, filled: &mut Filled, blocks: usize, holders: u32) -> Vec<Value> {
        let shared: Vec<Prompt> = (0..self.events(blocks, holders as usize))
            .map(|_| filled.shared(blocks, holders))
            .collect();
        let again = &shared[..hot_events(blocks).min(shared.len())];
        let rounds = (0..self.sizes.samples.max(1)).map(|_| self.leave_and_join(filled, again));
        let hot = middle(rounds.collect());
        self.flush.all();
        let cold = self.leave_and_join(filled, &shared);
        for prompt in &shared {
            filled.unshare(prompt, holders);
        }
        lines(&self.design, filled, blocks, holders, hot, cold)
    }

    /// Number of events for a cold figure.
    fn events(&self, blocks: usize, holders: usize) -> usize {
        let wanted = COLD_BLOCKS * self.sizes.samples / 100;
        (wanted.min(SHARED_MEMBERSHIPS / holders) / blocks).max(1)
    }

    fn store_and_remove(&self, filled: &mut Filled, prompts: &[Prompt]) -> Cost {
        let fleet = filled.fleet as usize;
        let worker = |place: usize| (place * 7 % fleet) as u32;
        let store = self.stored(filled, prompts, worker);
        let remove = self.removed(filled, prompts, worker);
        Cost { store, remove }
    }

    fn leave_and_join(&self, filled: &mut Filled, prompts: &[Prompt]) -> Cost {
        let remove = self.removed(filled, prompts, |_| FIRST);
        let store = self.stored(filled, prompts, |_| FIRST);
        Cost { store, remove }
    }

    fn stored(&self, filled: &mut Filled, prompts: &[Prompt], who: impl Fn(usize) -> u32) -> f64 {
        self.timed(filled, prompts, |filled| {
            for (place, prompt) in prompts.iter().enumerate() {
                filled.store(who(place), prompt);
            }
        })
    }

    fn removed(&self, filled: &mut Filled, prompts: &[Prompt], who: impl Fn(usize) -> u32) -> f64 {
        let tails: Vec<Vec<u64>> = prompts.iter().map(Prompt::tail_first).collect();
        self.timed(filled, prompts, |filled| {
            for (place, hashes) in tails.iter().enumerate() {
                filled.target.remove(who(place), hashes);
            }
        })
    }

    /// Time per block: processor time of this thread. If the design has writer threads: wall-clock time
    /// until they are done.
    fn timed(
        &self,
        filled: &mut Filled,
        prompts: &[Prompt],
        change: impl FnOnce(&mut Filled),
    ) -> f64 {
        let blocks: usize = prompts.iter().map(|prompt| prompt.chunks.len()).sum();
        let ns = if self.design.queued {
            let start = Instant::now();
            change(filled);
            filled.target.settle();
            start.elapsed().as_nanos() as u64
        } else {
            let start_ns = thread_ns();
            change(filled);
            thread_ns() - start_ns
        };
        ns as f64 / blocks as f64
    }
}

fn hot_events(blocks: usize) -> usize {
    (HOT_BLOCKS / blocks).max(1)
}

fn middle(costs: Vec<Cost>) -> Cost {
    Cost {
        store: median(costs.iter().map(|cost| cost.store).collect()),
        remove: median(costs.iter().map(|cost| cost.remove).collect()),
    }
}

fn lines(
    design: &Design,
    filled: &Filled,
    blocks: usize,
    holders: u32,
    hot: Cost,
    cold: Cost,
) -> Vec<Value> {
    let mut lines = Vec::new();
    for (temperature, cost) in [("hot", hot), ("cold", cold)] {
        for (operation, ns) in [("store", cost.store), ("remove", cost.remove)] {
            lines.push(json!({
                "operation": operation, "design": design.name, "depth": blocks, "workers": holders,
                "fleet": filled.fleet, "memberships": filled.memberships,
                "temperature": temperature, "ns_per_block": ns,
            }));
        }
    }
    lines
}
