//! More workers than a cell keeps: silent workers make room, others do not.

use kvatlas_cell::counters::Count;
use kvatlas_cell::{Cell, CellConfig};
use kvatlas_events::sequencer::Limits;
use kvatlas_wire::{frame, v1};
use prost::Message as _;

const NOW_MS: u64 = 1_000_000_000;
const LEASE_MS: u64 = 10_000;
/// Most workers of a cell.
const MOST: u64 = 8_192;

fn cell() -> Cell {
    Cell::new(CellConfig {
        cell: "blue".to_owned(),
        model: "m".to_owned(),
        block_size: 16,
        hash_contract: "contract".to_owned(),
        replica_id: "a".to_owned(),
        version: "0".to_owned(),
        lease_ms: LEASE_MS,
        limits: Limits {
            hold_back_batches: 64,
            hold_back_ms: 1_000,
            recover_ms: 1_000,
            snapshot_parts: 64,
            snapshot_hashes: 1 << 20,
        },
        memory_bytes_max: 256 << 20,
    })
}

/// Whether the cell accepts the first epoch of this worker, with one block of its own.
fn is_accepted(cell: &Cell, worker_id: u64, at_ms: u64) -> bool {
    let header = v1::Header {
        worker: Some(v1::Worker {
            worker_id,
            dp_rank: 0,
        }),
        epoch: 5,
        instance_id: 4,
        cell: "blue".to_owned(),
        model: "m".to_owned(),
        block_size: 16,
        hash_contract: "contract".to_owned(),
        publisher: String::new(),
    };
    let store = v1::Store {
        parent_sequence_hash: None,
        sequence_hashes: vec![worker_id + 1],
        tier: v1::Tier::Device.into(),
    };
    let kind = Some(v1::event::Kind::Store(store));
    let batch = v1::Batch {
        header: Some(header),
        first_event_id: 1,
        events: vec![v1::Event { kind }],
        ..v1::Batch::default()
    };
    let record = frame::seal(&batch.encode_to_vec());
    let applied = cell.apply([(record.as_slice(), at_ms)], "redis", at_ms);
    applied.accepted == 1
}

fn blocks(cell: &Cell) -> u64 {
    cell.gauges()["memberships"]
}

#[test]
fn a_new_worker_replaces_the_one_that_was_silent_for_longest() {
    let cell = cell();
    for worker_id in 0..MOST {
        assert!(is_accepted(&cell, worker_id, NOW_MS + worker_id / 100));
    }
    let (version, _) = cell.changes(None);
    assert!(
        !is_accepted(&cell, MOST, NOW_MS + 1_000),
        "no worker is silent"
    );
    assert_eq!(cell.counters.get(Count::RejectedWorkers), 1);

    let later_ms = NOW_MS + LEASE_MS + 2_000;
    assert!(
        is_accepted(&cell, 0, later_ms),
        "a known worker keeps its entry"
    );
    cell.tick(later_ms, true);
    assert!(is_accepted(&cell, MOST, later_ms));
    assert_eq!(cell.counters.get(Count::WorkersForgotten), 1);
    assert_eq!(blocks(&cell), MOST, "with its set");
    let (_, changes) = cell.changes(Some(version));
    let removed: Vec<u64> = changes.removed.iter().map(|each| each.worker_id).collect();
    assert_eq!(removed.len(), 1);
    assert!(
        (1..100).contains(&removed[0]),
        "{removed:?} was silent for longest"
    );
}
