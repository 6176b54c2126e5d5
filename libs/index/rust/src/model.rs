//! The concurrency of this crate, proved on its own types: small programs of two or three threads, each run in every
//! order that threads and memory allow. Compiled under `--cfg loom` only; `make proof` runs them.
//!
//! [`crate::sync`] says what stands in for the machine. A model ends with what must hold in the end (all is freed,
//! all is found), asks in between what must hold always, and relies on `sync` for the rest: that nothing is read
//! after it was freed, or before whoever made it is known to have finished. Each prints how many runs it took, and
//! whether every order was among them or only those with few preemptions (switches from a thread that could
//! have gone on; nearly every known bug shows with two).
//!
//! - [`grace`] – what is pinned stays, and all the rest goes
//! - [`table`] – claims, new generations, keys replaced in place
//! - [`bitmap`] – spilling, widening, memory used again
//! - [`roster`] – the lives of worker slots
//! - [`lookups`] – filters, limits, least depths, several look-ups together
//! - [`rights`] – writers who meet
//! - [`whole`] – all of it at once, in an index as users have it

mod bitmap;
mod grace;
mod lookups;
mod rights;
mod roster;
mod table;
mod whole;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub(crate) use loom::thread::{JoinHandle, spawn};
pub(crate) use std::sync::Arc;

use crate::sync::fresh_graveyard;
use crate::{FindOptions, Index, IndexConfig, Matches, Query, SlotId, Tier, WorkerKey};

/// Accesses of one run; far more than any model has, so that one that never ends is told from one that is long.
const BRANCHES: usize = 100_000;

/// How much of a model is explored.
#[derive(Clone, Copy)]
enum Orders {
    /// All.
    Every,
    /// Those with at most so many preemptions.
    Preemptions(usize),
}

/// Runs `model` in every order, and says in how many.
#[track_caller]
fn explore(name: &str, orders: Orders, model: impl Fn() + Sync + Send + 'static) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let mut builder = loom::model::Builder::new();
    builder.max_branches = BRANCHES;
    builder.preemption_bound = match orders {
        Orders::Every => None,
        Orders::Preemptions(most) => Some(more(most)),
    };
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        fresh_graveyard();
        model();
    });
    let extent = match builder.preemption_bound {
        None => "every order".to_owned(),
        Some(most) => format!("at most {most} preemptions"),
    };
    println!("model {name}: {} runs, {extent}", runs.load(Relaxed));
}

/// The long form looks at more orders: `KVATLAS_MODEL_MORE=1` allows one preemption more in each model.
fn more(most: usize) -> usize {
    let further = std::env::var("KVATLAS_MODEL_MORE").ok();
    most + further.and_then(|more| more.parse().ok()).unwrap_or(0)
}

/// One shard, of the smallest table there is: five slots, four keys.
fn small() -> Arc<Index> {
    Arc::new(Index::new(IndexConfig {
        shard_bits: 0,
        initial_slots_per_shard: 1,
    }))
}

fn worker(worker_id: u64) -> WorkerKey {
    WorkerKey {
        worker_id,
        dp_rank: 0,
    }
}

fn allocated(index: &Index, worker_id: u64) -> SlotId {
    index.allocate(worker(worker_id)).unwrap()
}

/// A worker that is matchable and holds `hashes`.
fn live(index: &Index, worker_id: u64, hashes: &[u64]) -> SlotId {
    let slot = allocated(index, worker_id);
    store(index, slot, hashes);
    index.publish(slot);
    slot
}

fn store(index: &Index, slot: SlotId, hashes: &[u64]) -> usize {
    index.store(slot, Tier::Device, hashes)
}

fn remove(index: &Index, slot: SlotId, hashes: &[u64]) -> usize {
    index.remove(slot, Tier::Device, hashes)
}

/// Workers and depths that a look-up answers with.
fn found(index: &Index, hashes: &[u64]) -> Vec<(u64, u32)> {
    let mut out = Matches::default();
    let options = FindOptions::default();
    index.find(Query::SequenceHashes(hashes), &options, &mut out);
    let ids = out.workers.iter().map(|worker| worker.worker_id);
    ids.zip(out.depths.iter().copied()).collect()
}

/// With nobody left to read: the sweep gets to its end, and nothing retired is left.
fn settle(index: &Index) {
    while index.sweep(64).more {}
    assert_eq!(index.memory_bytes().retired, 0, "something is never freed");
}
