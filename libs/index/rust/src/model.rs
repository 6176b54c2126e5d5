//! The concurrency of this crate, proved on its own types: small programs of two or three threads, each run in every
//! order that threads and memory allow. Compiled under `--cfg loom` only; `make proof` runs them.
//!
//! [`crate::sync`] says what replaces the machine. A model checks in the end what must hold then (all is freed, all is
//! found), and in between what must hold always. It relies on `sync` for the rest: that nothing is read after it was freed,
//! or before the thread that made it has finished. Each prints how many runs it took, and whether every order was among
//! them or only those with few preemptions (switches from a thread that could have gone on; nearly every known bug shows
//! with two).
//!
//! - [`reclamation`] – an object that a pin may reach stays, and all others are freed
//! - [`table`] – claims, resizing, the probe filter, keys replaced in place
//! - [`bitmap`] – bitmaps made and widened, memory reused
//! - [`worker_slots`] – worker slots retired and allocated again
//! - [`lookups`] – filters, limits, least depths, several look-ups together
//! - [`shard_locks`] – writers that meet
//! - [`whole_index`] – all of it at once, in an index as callers have it

mod bitmap;
mod lookups;
mod reclamation;
mod shard_locks;
mod table;
mod whole_index;
mod worker_slots;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub(crate) use loom::thread::{JoinHandle, spawn};
pub(crate) use std::sync::Arc;

use crate::sync::empty_quarantine;
use crate::{FindOptions, Index, IndexConfig, Matches, Query, SlotId, Tier, WorkerKey};

/// Accesses of one run: far more than any model has, so that only a run that never ends reaches it.
const BRANCHES: usize = 100_000;

/// The orders of a model that are explored.
#[derive(Clone, Copy)]
enum Orders {
    /// All.
    Every,
    /// All with at most so many preemptions.
    Preemptions(usize),
}

/// Runs `model` in these orders, and prints how many there were.
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
        empty_quarantine();
        model();
    });
    let extent = match builder.preemption_bound {
        None => "every order".to_owned(),
        Some(most) => format!("at most {most} preemptions"),
    };
    println!("model {name}: {} runs, {extent}", runs.load(Relaxed));
}

/// The bound of a model, with what the long form adds: `KVATLAS_MODEL_MORE=1` allows one preemption more.
fn more(most: usize) -> usize {
    let further = std::env::var("KVATLAS_MODEL_MORE").ok();
    most + further.and_then(|more| more.parse().ok()).unwrap_or(0)
}

/// One shard with the smallest table there is: five entries, four keys.
fn small() -> Arc<Index> {
    Arc::new(Index::new(IndexConfig {
        shard_bits: 0,
        initial_entries_per_shard: 1,
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

/// The answer of a look-up: workers and depths.
fn found(index: &Index, hashes: &[u64]) -> Vec<(u64, u32)> {
    let mut out = Matches::default();
    let options = FindOptions::default();
    index.find(Query::SequenceHashes(hashes), &options, &mut out);
    let ids = out.workers.iter().map(|worker| worker.worker_id);
    ids.zip(out.depths.iter().copied()).collect()
}

/// Once nobody reads any more: the sweep comes to its end, and nothing retired is left.
fn settle(index: &Index) {
    while index.sweep(64).more {}
    assert_eq!(index.memory_bytes().retired, 0, "something is never freed");
}
