//! The memory budget of a cell: retired sets go first, and then the largest worker is evicted, until there is room for its
//! whole snapshot. Every eviction is counted and reported in a notice.

use std::sync::Arc;

use kvatlas_cell::counters::Count;
use kvatlas_cell::state::dump::{Dump, DumpOptions, DumpStream};
use kvatlas_cell::state::restore::Restore;
use kvatlas_cell::{Cell, CellConfig};
use kvatlas_events::sequencer::Limits;
use kvatlas_index::{FindOptions, Matches, Query};
use kvatlas_wire::{frame, v1};
use prost::Message as _;

const NOW_MS: u64 = 1_000_000_000;
const MEMORY_BYTES_MAX: usize = 8 << 20;
/// Blocks that need well over half of the budget, but less than all of it.
const LARGE: u64 = 170_000;
const SMALL: u64 = 20_000;
/// Number of workers with about `SMALL` blocks: nearly twice as many as fit.
const SMALL_ONES: u64 = 20;
/// Most hashes of one record.
const HASHES_MAX: usize = 60_000;

fn cell() -> Cell {
    cell_of(MEMORY_BYTES_MAX)
}

fn cell_of(memory_bytes_max: usize) -> Cell {
    let cell = Cell::new(CellConfig {
        cell: "blue".to_owned(),
        model: "m".to_owned(),
        block_size: 16,
        hash_contract: "contract".to_owned(),
        replica_id: "a".to_owned(),
        version: "0".to_owned(),
        lease_ms: 10_000,
        limits: Limits {
            hold_back_batches: 64,
            hold_back_ms: 1_000,
            recover_ms: 1_000,
            snapshot_parts: 64,
            snapshot_hashes: 1 << 20,
        },
        memory_bytes_max,
    });
    cell.set_ready(true);
    cell
}

/// The blocks of a worker's prompt, which no other worker has.
fn hashes(worker_id: u64, count: u64) -> Vec<u64> {
    (0..count)
        .map(|block| (worker_id << 40 | block).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .collect()
}

fn apply(cell: &Cell, worker_id: u64, epoch: u64, body: v1::Batch) {
    apply_at(cell, worker_id, epoch, body, NOW_MS);
}

fn apply_at(cell: &Cell, worker_id: u64, epoch: u64, body: v1::Batch, at_ms: u64) {
    let header = v1::Header {
        worker: Some(v1::Worker {
            worker_id,
            dp_rank: 0,
        }),
        epoch,
        instance_id: 4,
        cell: "blue".to_owned(),
        model: "m".to_owned(),
        block_size: 16,
        hash_contract: "contract".to_owned(),
        publisher: String::new(),
    };
    let batch = v1::Batch {
        header: Some(header),
        ..body
    };
    let record = frame::seal(&batch.encode_to_vec());
    let applied = cell.apply([(record.as_slice(), at_ms)], "redis", at_ms);
    assert_eq!(applied.first_rejection, None);
}

fn event(kind: v1::event::Kind, first_event_id: u64) -> v1::Batch {
    v1::Batch {
        first_event_id,
        events: vec![v1::Event { kind: Some(kind) }],
        ..v1::Batch::default()
    }
}

fn store(cell: &Cell, worker_id: u64, epoch: u64, hashes: &[u64]) {
    for event_id in 1..=hashes.len().div_ceil(HASHES_MAX) {
        store_part(cell, worker_id, epoch, hashes, event_id as u64);
    }
}

/// Applies the event with this number of a worker that stores all these hashes, one record per event.
fn store_part(cell: &Cell, worker_id: u64, epoch: u64, hashes: &[u64], event_id: u64) {
    if let Some(hashes) = hashes.chunks(HASHES_MAX).nth(event_id as usize - 1) {
        let store = v1::Store {
            parent_sequence_hash: None,
            sequence_hashes: hashes.to_vec(),
            tier: v1::Tier::Device.into(),
        };
        let body = event(v1::event::Kind::Store(store), event_id);
        apply(cell, worker_id, epoch, body);
    }
}

fn snapshot(cell: &Cell, worker_id: u64, epoch: u64, sequence_hashes: Vec<u64>) {
    let digest = v1::TierDigest {
        tier: v1::Tier::Device.into(),
        blocks: sequence_hashes.len() as u64,
        digest: sequence_hashes.iter().fold(0, |digest, hash| digest ^ hash),
    };
    let parts = sequence_hashes.chunks(HASHES_MAX);
    for (hashes, part) in parts.clone().zip(0..) {
        let snapshot = v1::Snapshot {
            as_of_event_id: 1,
            part,
            parts: parts.len() as u32,
            tier: v1::Tier::Device.into(),
            sequence_hashes: hashes.to_vec(),
            digests: vec![digest],
        };
        let body = v1::Batch {
            snapshot: Some(snapshot),
            ..v1::Batch::default()
        };
        apply(cell, worker_id, epoch, body);
    }
}

fn leave(cell: &Cell, worker_id: u64) {
    let reason = v1::shutdown::Reason::EngineGone.into();
    let shutdown = v1::event::Kind::Shutdown(v1::Shutdown { reason });
    apply(cell, worker_id, 1, event(shutdown, 2));
}

/// Ticks until the sweep is done and no further worker is evicted.
fn settle(cell: &Cell) {
    (0..200).for_each(|_| cell.tick(NOW_MS, true));
}

fn evicted(cell: &Cell) -> u64 {
    cell.gauges()["workers{state=\"over_budget\"}"]
}

/// A worker's state, and whether its set is incomplete.
fn state(cell: &Cell, worker_id: u64) -> (v1::WorkerState, bool) {
    let status = cell.status();
    let mut workers = status.workers.iter();
    let worker = workers.find(|worker| {
        let info = worker.info.as_ref().and_then(|info| info.worker);
        info.is_some_and(|key| key.worker_id == worker_id)
    });
    let worker = worker.expect("the worker has records");
    let info = worker.info.as_ref().expect("always set");
    (info.state(), worker.incomplete)
}

fn small_ones(cell: &Cell) {
    for worker in 1..=SMALL_ONES {
        store(cell, worker, 1, &hashes(worker, SMALL + worker));
    }
}

fn depth(cell: &Cell, hashes: &[u64]) -> Option<u32> {
    let mut matches = Matches::default();
    let query = Query::SequenceHashes(hashes);
    cell.find(query, &FindOptions::default(), &mut matches);
    assert!(matches.depths.len() <= 1);
    matches.depths.first().copied()
}

#[test]
fn over_the_budget_only_the_largest_worker_is_evicted_and_counted() {
    let cell = cell();
    store(&cell, 1, 1, &hashes(1, SMALL));
    store(&cell, 2, 1, &hashes(2, 2 * LARGE));
    store(&cell, 3, 1, &hashes(3, SMALL + 1));
    assert_eq!(depth(&cell, &hashes(2, 100)), Some(100));
    settle(&cell);
    assert_eq!(cell.counters.get(Count::WorkersOverBudget), 1);
    assert_eq!(depth(&cell, &hashes(2, 100)), None);
    assert_eq!(depth(&cell, &hashes(1, 100)), Some(100));
    assert_eq!(depth(&cell, &hashes(3, 100)), Some(100));
    let notices = cell.take_notices();
    assert!(
        notices
            .iter()
            .any(|notice| notice.contains("2/0 is over budget")),
        "{notices:?}"
    );
}

#[test]
fn retired_sets_go_before_a_living_worker_is_evicted() {
    let cell = cell();
    store(&cell, 1, 1, &hashes(1, LARGE));
    // A new epoch replaces the set; the retired set and the new one together are over the budget.
    store(&cell, 1, 2, &hashes(9, LARGE));
    store(&cell, 2, 1, &hashes(2, SMALL));
    settle(&cell);
    assert_eq!(cell.counters.get(Count::WorkersOverBudget), 0);
    assert_eq!(depth(&cell, &hashes(1, 100)), None);
    assert_eq!(depth(&cell, &hashes(9, 100)), Some(100));
    assert_eq!(depth(&cell, &hashes(2, 100)), Some(100));
}

#[test]
fn a_stale_worker_is_evicted_before_a_larger_one_that_is_matched() {
    let cell = cell();
    store(&cell, 1, 1, &hashes(1, LARGE - 1));
    (1..=200).for_each(|step| cell.tick(NOW_MS + step * 100, true));
    assert_eq!(state(&cell, 1), (v1::WorkerState::Stale, false));
    let later_ms = NOW_MS + 20_000;
    for (hashes, event_id) in hashes(2, LARGE).chunks(HASHES_MAX).zip(1..) {
        let stored = v1::Store {
            parent_sequence_hash: None,
            sequence_hashes: hashes.to_vec(),
            tier: v1::Tier::Device.into(),
        };
        let body = event(v1::event::Kind::Store(stored), event_id);
        apply_at(&cell, 2, 1, body, later_ms);
    }
    (1..=20).for_each(|step| cell.tick(later_ms + step * 100, true));
    assert_eq!(cell.counters.get(Count::WorkersOverBudget), 1);
    assert_eq!(state(&cell, 2), (v1::WorkerState::Live, false));
    assert_eq!(state(&cell, 1), (v1::WorkerState::Stale, true));
}

#[test]
fn only_as_many_workers_are_evicted_as_do_not_fit_and_they_are_the_largest() {
    let cell = cell();
    small_ones(&cell);
    settle(&cell);
    let evicted_count = cell.counters.get(Count::WorkersOverBudget);
    // A block needs 18 to 35 bytes in a table, and up to a sixth more for idle pages.
    let fit = |bytes: u64| MEMORY_BYTES_MAX as u64 / bytes / SMALL;
    assert!(
        (fit(41)..=fit(18)).contains(&(SMALL_ONES - evicted_count)),
        "{evicted_count} of {SMALL_ONES} are evicted"
    );
    assert_eq!(evicted(&cell), evicted_count);
    for worker in 1..=SMALL_ONES {
        let expected = (worker <= SMALL_ONES - evicted_count).then_some(100);
        assert_eq!(depth(&cell, &hashes(worker, 100)), expected, "{worker}");
    }
}

#[test]
fn repeated_records_and_snapshots_neither_evict_nor_readmit_a_worker() {
    let cell = cell();
    small_ones(&cell);
    settle(&cell);
    let evicted_count = cell.counters.get(Count::WorkersOverBudget);
    let last = SMALL_ONES;
    for round in 1..=20 {
        for worker in last + 1 - evicted_count..=last {
            snapshot(&cell, worker, 1, hashes(worker, SMALL + worker));
        }
        for worker in 1..=last {
            store(&cell, worker, 1, &hashes(worker, SMALL + worker)[..100]);
        }
        settle(&cell);
        assert_eq!(cell.counters.get(Count::WorkersOverBudget), evicted_count);
        assert_eq!(
            cell.counters.get(Count::SnapshotsNoRoom),
            round * evicted_count
        );
        assert_eq!(evicted(&cell), evicted_count);
        assert_eq!(depth(&cell, &hashes(last, 100)), None);
    }
    assert!(cell.recovery_requests(100, None).is_empty());
}

#[test]
fn an_index_that_grows_slowly_evicts_one_worker_after_another_and_stays_near_its_budget() {
    let cell = cell();
    let step = SMALL / 10;
    let mut evicted_count = 0;
    for (event_id, from) in (0..SMALL).step_by(step as usize).enumerate() {
        for worker in 1..=SMALL_ONES {
            let grown = hashes(worker, from + step + worker);
            let stored = v1::Store {
                parent_sequence_hash: None,
                sequence_hashes: grown[from as usize..].to_vec(),
                tier: v1::Tier::Device.into(),
            };
            let kind = v1::event::Kind::Store(stored);
            apply(&cell, worker, 1, event(kind, event_id as u64 + 1));
            cell.tick(NOW_MS, true);
            evicted_count = evicted_count.max(evicted(&cell));
        }
    }
    settle(&cell);
    let gauges = cell.gauges();
    let in_use: u64 = ["tables", "bitmaps", "fixed"]
        .map(|part| gauges[&format!("index_bytes{{part=\"{part}\"}}")])
        .iter()
        .sum();
    assert!(in_use < MEMORY_BYTES_MAX as u64, "{in_use}");
    assert!((4..=15).contains(&evicted_count), "{evicted_count}");
    assert_eq!(cell.counters.get(Count::WorkersOverBudget), evicted_count);
    assert_eq!(
        evicted(&cell),
        evicted_count,
        "no worker came back by later events"
    );
}

#[test]
fn an_evicted_worker_is_requested_and_loaded_once_there_is_room_with_a_margin() {
    let cell = cell();
    small_ones(&cell);
    settle(&cell);
    let evicted_count = cell.counters.get(Count::WorkersOverBudget);
    let whole = hashes(SMALL_ONES, SMALL + SMALL_ONES);
    snapshot(&cell, SMALL_ONES, 1, whole.clone());
    assert_eq!(depth(&cell, &whole), None);
    assert_eq!(cell.counters.get(Count::SnapshotsNoRoom), 1);
    assert!(cell.recovery_requests(100, None).is_empty());
    // One worker of about its size makes no room for it and the margin; four do.
    leave(&cell, 1);
    settle(&cell);
    assert!(cell.recovery_requests(100, None).is_empty());
    (2..=4).for_each(|worker| leave(&cell, worker));
    settle(&cell);
    let needs = cell.recovery_requests(100, None);
    assert!((1..=4).contains(&needs.len()), "{needs:?}");
    snapshot(&cell, SMALL_ONES, 1, whole.clone());
    assert_eq!(depth(&cell, &whole), Some(whole.len() as u32));
    assert_eq!(cell.counters.get(Count::SnapshotsNoRoom), 1);
    settle(&cell);
    assert_eq!(depth(&cell, &whole), Some(whole.len() as u32));
    assert_eq!(cell.counters.get(Count::WorkersOverBudget), evicted_count);
    assert_eq!(evicted(&cell), evicted_count - 1);
}

#[test]
fn a_little_growth_in_tables_that_kept_their_size_evicts_no_worker_and_hinders_no_return() {
    let cell = cell();
    small_ones(&cell);
    settle(&cell);
    let evicted_count = cell.counters.get(Count::WorkersOverBudget);
    // Evictions did not shrink the tables; a few blocks on another tier make them a little larger, for half as many
    // blocks.
    let offloaded = v1::Store {
        parent_sequence_hash: None,
        sequence_hashes: hashes(1, 500),
        tier: v1::Tier::Host.into(),
    };
    apply(&cell, 1, 1, event(v1::event::Kind::Store(offloaded), 2));
    settle(&cell);
    assert!(
        evicted(&cell) <= evicted_count + 1,
        "{} instead of {evicted_count}",
        evicted(&cell)
    );
    // All but the smallest leave, so there is room for the evicted workers.
    (2..=SMALL_ONES - evicted(&cell)).for_each(|worker| leave(&cell, worker));
    settle(&cell);
    assert_eq!(
        cell.recovery_requests(100, None).len() as u64,
        evicted(&cell)
    );
}

#[test]
fn an_epoch_that_begins_empty_ends_an_eviction_and_one_that_opens_with_too_much_does_not() {
    let cell = cell();
    store(&cell, 1, 1, &hashes(1, 2 * LARGE));
    store(&cell, 2, 1, &hashes(2, 2 * LARGE + 1));
    settle(&cell);
    assert_eq!(evicted(&cell), 2);
    snapshot(&cell, 1, 2, hashes(1, 2 * LARGE));
    store(&cell, 2, 2, &hashes(2, SMALL));
    assert_eq!(depth(&cell, &hashes(1, 100)), None);
    assert_eq!(depth(&cell, &hashes(2, 100)), Some(100));
    settle(&cell);
    assert_eq!(evicted(&cell), 1);
    assert_eq!(cell.counters.get(Count::WorkersOverBudget), 2);
}

#[test]
fn status_and_watchers_show_an_eviction_until_the_worker_is_back_or_silent() {
    let cell = cell();
    store(&cell, 1, 1, &hashes(1, 2 * LARGE));
    store(&cell, 2, 1, &hashes(2, 2 * LARGE));
    assert_eq!(state(&cell, 2), (v1::WorkerState::Live, false));
    let (before, _) = cell.changes(None);
    settle(&cell);
    assert_eq!(state(&cell, 2), (v1::WorkerState::OverBudget, true));
    let (_, change) = cell.changes(Some(before));
    let states: Vec<_> = change.workers.iter().map(v1::WorkerInfo::state).collect();
    assert_eq!(states, [v1::WorkerState::OverBudget; 2]);
    store(&cell, 1, 2, &hashes(1, SMALL));
    assert_eq!(state(&cell, 1), (v1::WorkerState::Live, false));
    // Stale takes precedence; the set is still incomplete.
    (1..=200).for_each(|step| cell.tick(NOW_MS + step * 100, true));
    assert_eq!(state(&cell, 1), (v1::WorkerState::Stale, false));
    assert_eq!(state(&cell, 2), (v1::WorkerState::Stale, true));
    assert_eq!(evicted(&cell), 0);
}

#[test]
fn a_replica_that_starts_from_the_state_of_an_evicted_worker_knows_that_events_are_missing() {
    let cell = cell();
    let whole = hashes(1, 2 * LARGE);
    store(&cell, 1, 1, &whole);
    settle(&cell);
    assert_eq!(state(&cell, 1), (v1::WorkerState::OverBudget, true));
    // Another transport brings the beginning once more, and the worker skips it.
    store_part(&cell, 1, 1, &whole, 1);
    let started = Arc::new(cell_of(8 * MEMORY_BYTES_MAX));
    let mut restore = Restore::new(Arc::clone(&started));
    let options = DumpOptions {
        resumable: true,
        ..DumpOptions::default()
    };
    for slice in DumpStream::new(Dump::new(&cell, &options)).expect("a valid schema") {
        let slice = slice.expect("nothing is written to a file");
        restore.feed(slice).expect("a state of this cell");
    }
    restore.finish(NOW_MS).expect("all of a state");
    (2..=6).for_each(|event_id| store_part(&started, 1, 1, &whole, event_id));
    assert_eq!(state(&started, 1), (v1::WorkerState::Recovering, true));
    snapshot(&started, 1, 1, whole.clone());
    store_part(&started, 1, 1, &whole, 1);
    assert_eq!(depth(&started, &whole), Some(whole.len() as u32));
    let status = cell.status();
    let events = status.workers.iter().filter_map(|worker| {
        let info = worker.info.as_ref()?;
        Some((info.blocks, info.last_event_id))
    });
    assert_eq!(events.collect::<Vec<_>>(), [(0, 0)]);
}
