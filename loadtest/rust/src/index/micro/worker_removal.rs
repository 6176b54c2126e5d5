//! Measures the removal of workers: the time until answers leave a worker out, the effect of its sweep
//! on concurrent look-ups, and the memory given back.
//!
//! Windows of look-ups with a sweep alternate with windows without one, so that a noisy machine
//! disturbs both equally. Look-ups run on this thread and the sweep on another, which waits in windows
//! without one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use kvatlas_index::{FindOptions, Index, IndexConfig, Matches, Query, SlotId, Tier, WorkerKey};
use serde_json::{Value, json};

use crate::index::micro::filled::{OWN, Prompt};
use crate::index::micro::sizes::Sizes;
use crate::latency::{Latencies, median};

/// Workers that stay, with as many blocks together as those that die.
const STAYING: u32 = 200;
/// Holders of the prompts that are looked up, and their blocks.
const HOLDERS: u32 = 8;
const BLOCKS: usize = 256;
const PROMPTS: u64 = 512;
/// Table slots of one slice of the sweep, as the indexer asks for them.
const SLICE: usize = 4096;
/// Look-ups of a window without a sweep: about as many as fit beside one.
const LOOKUPS: u64 = 10_000;

/// Figures of the flat index.
///
/// # Errors
/// A wrong answer, or no room for the workers.
pub fn run(sizes: &Sizes) -> Result<Vec<Value>, String> {
    let fleet = Fleet::new(sizes)?;
    let before = fleet.index.memory_bytes().total();
    let memberships = fleet.index.memberships();
    let mut windows = Windows::default();
    for &victim in &fleet.victims {
        windows.without.push(fleet.look_up(|done| done < LOOKUPS));
        windows.retire_us.push(fleet.retire(victim)?);
        fleet.sweep_beside(&mut windows);
    }
    for &slot in &fleet.staying {
        fleet.index.retire(slot);
    }
    fleet.sweep();
    let after = fleet.index.memory_bytes().total();
    let (without, with) = (median(windows.without), median(windows.with));
    Ok(vec![
        json!({
            "operation": "retire", "design": "flat index", "workers": sizes.victims,
            "blocks": sizes.victim_blocks, "memberships": memberships,
            "us": median(windows.retire_us),
        }),
        json!({
            "operation": "sweep", "design": "flat index", "windows": sizes.victims,
            "blocks": sizes.victim_blocks, "memberships": memberships,
            "p99_us_without": without, "p99_us_with": with, "ratio": with / without.max(f64::MIN_POSITIVE),
            "sweep_ms": median(windows.sweep_ms),
            "bytes_before": before, "bytes_after": after,
            "given_back_share": 1.0 - after as f64 / before.max(1) as f64,
        }),
    ])
}

/// Look-ups' p99 in each window, in µs.
#[derive(Default)]
struct Windows {
    without: Vec<f64>,
    with: Vec<f64>,
    retire_us: Vec<f64>,
    sweep_ms: Vec<f64>,
}

struct Fleet {
    index: Index,
    victims: Vec<SlotId>,
    staying: Vec<SlotId>,
    /// Each held by some of those who stay.
    prompts: Vec<Prompt>,
    /// Held by every victim, and by no one else.
    of_victims: Prompt,
}

impl Fleet {
    fn new(sizes: &Sizes) -> Result<Self, String> {
        let index = Index::new(IndexConfig::default());
        let mut allocated = Vec::new();
        for worker_id in 0..u64::from(sizes.victims + STAYING) {
            let key = WorkerKey {
                worker_id,
                dp_rank: 0,
            };
            let slot = index.allocate(key).map_err(|error| error.to_string())?;
            index.publish(slot);
            allocated.push(slot);
        }
        let staying = allocated.split_off(sizes.victims as usize);
        let fleet = Self {
            index,
            victims: allocated,
            staying,
            prompts: (0..PROMPTS).map(|n| Prompt::new(n, BLOCKS)).collect(),
            of_victims: Prompt::new(PROMPTS, OWN),
        };
        fleet.fill(sizes);
        Ok(fleet)
    }

    fn fill(&self, sizes: &Sizes) {
        for (place, prompt) in self.prompts.iter().enumerate() {
            for holder in 0..HOLDERS as usize {
                let slot = self.staying[(place + holder * 25) % self.staying.len()];
                self.store(slot, prompt);
            }
        }
        let mut prompt = Prompt::default();
        let mut number = PROMPTS;
        let mut own = |slot: SlotId, blocks: u64| {
            for _ in 0..blocks / OWN as u64 {
                number += 1;
                prompt.remake(number, OWN);
                self.store(slot, &prompt);
            }
        };
        for &victim in &self.victims {
            self.store(victim, &self.of_victims);
            own(victim, sizes.victim_blocks);
        }
        let each = sizes.victim_blocks * u64::from(sizes.victims) / u64::from(STAYING);
        self.staying.iter().for_each(|&slot| own(slot, each));
    }

    fn store(&self, slot: SlotId, prompt: &Prompt) {
        self.index.store(slot, Tier::Device, &prompt.hashes);
    }

    fn sweep(&self) {
        while self.index.sweep(SLICE).more {
            std::thread::yield_now();
        }
    }

    /// Looks up while there is `more` to do, by the number done; the p99 in µs.
    fn look_up(&self, more: impl Fn(u64) -> bool) -> f64 {
        let mut latencies = Latencies::default();
        let mut out = Matches::default();
        let options = FindOptions::default();
        for prompt in self.prompts.iter().cycle() {
            let start = Instant::now();
            let query = Query::ChunkHashes(&prompt.chunks);
            self.index.find(query, &options, &mut out);
            latencies.add(start.elapsed());
            if !more(latencies.total()) {
                break;
            }
        }
        latencies.quantile_us(0.99)
    }

    /// A window of look-ups that lasts as long as another thread sweeps.
    fn sweep_beside(&self, windows: &mut Windows) {
        let sweeping = AtomicBool::new(true);
        let sweep_ms = std::thread::scope(|scope| {
            let sweeper = scope.spawn(|| {
                let _over = Unset(&sweeping);
                let start = Instant::now();
                self.sweep();
                start.elapsed().as_secs_f64() * 1e3
            });
            let p99_us = self.look_up(|_| sweeping.load(Ordering::Relaxed));
            windows.with.push(p99_us);
            sweeper.join()
        });
        match sweep_ms {
            Ok(ms) => windows.sweep_ms.push(ms),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Ends a worker; how long until it is out of answers, in µs. That is the call itself: an answer
    /// right before has it, and none right after.
    fn retire(&self, victim: SlotId) -> Result<f64, String> {
        let holders = || {
            let mut out = Matches::default();
            let query = Query::SequenceHashes(&self.of_victims.hashes);
            self.index.find(query, &FindOptions::default(), &mut out);
            out.workers.len()
        };
        let before = holders();
        let start = Instant::now();
        self.index.retire(victim);
        let took = start.elapsed();
        let after = holders();
        if after + 1 != before {
            return Err(format!(
                "a worker died: {after} of {before} are left in an answer"
            ));
        }
        Ok(took.as_nanos() as f64 / 1e3)
    }
}

/// Unsets a flag when its thread ends, however it ends.
struct Unset<'a>(&'a AtomicBool);

impl Drop for Unset<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
