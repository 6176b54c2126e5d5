//! A cell's state, out of one replica and into another: equal states give equal bytes, nothing is lost, and damaged bytes
//! are refused.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use kvatlas_cell::state::dump::{Dump, DumpOptions, DumpStream};
use kvatlas_cell::state::file::save;
use kvatlas_cell::state::restore::{Refusal, Restore, RestoreError, Restored};
use kvatlas_cell::{Cell, CellConfig};
use kvatlas_events::sequencer::Limits;
use kvatlas_index::{FindOptions, Matches, Query};
use kvatlas_wire::{frame, v1};
use prost::Message as _;

const NOW_MS: u64 = 1_000_000_000;

fn cell_of(model: &str) -> Arc<Cell> {
    Arc::new(Cell::new(CellConfig {
        cell: "blue".to_owned(),
        model: model.to_owned(),
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
        memory_bytes_max: 1 << 30,
    }))
}

fn cell() -> Arc<Cell> {
    let cell = cell_of("m");
    cell.set_log_status("redis", true, 0, 0);
    cell
}

fn record(worker_id: u64, epoch: u64, body: v1::Batch) -> Vec<u8> {
    let header = v1::Header {
        worker: Some(v1::Worker {
            worker_id,
            dp_rank: 1,
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
    frame::seal(&batch.encode_to_vec())
}

fn store(worker_id: u64, epoch: u64, id: u64, tier: v1::Tier, hashes: Vec<u64>) -> Vec<u8> {
    let kind = v1::event::Kind::Store(v1::Store {
        parent_sequence_hash: None,
        sequence_hashes: hashes,
        tier: tier.into(),
    });
    let body = v1::Batch {
        first_event_id: id,
        events: vec![v1::Event { kind: Some(kind) }],
        ..v1::Batch::default()
    };
    record(worker_id, epoch, body)
}

fn beat(worker_id: u64, epoch: u64, last_event_id: u64) -> Vec<u8> {
    let heartbeat = v1::Heartbeat {
        last_event_id,
        engine_url: format!("http://engine-{worker_id}"),
        ..v1::Heartbeat::default()
    };
    let body = v1::Batch {
        heartbeat: Some(heartbeat),
        ..v1::Batch::default()
    };
    record(worker_id, epoch, body)
}

fn apply(cell: &Cell, records: &[Vec<u8>]) {
    let timed = records.iter().map(|record| (record.as_slice(), NOW_MS));
    let applied = cell.apply(timed, "redis", NOW_MS);
    assert_eq!(applied.first_rejection, None);
}

/// A mixed state: tiers, two epochs, an empty worker, and a set of several rows.
fn mixed() -> Vec<Vec<u8>> {
    use v1::Tier::{Device, Disk, Host};
    let many: Vec<u64> = (0..60_000)
        .map(|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .collect();
    vec![
        store(7, 1, 1, Device, vec![1, 2, 3]),
        store(7, 1, 2, Host, vec![2, 9]),
        store(3, 1, 1, Device, vec![5]),
        store(3, 2, 1, Device, vec![3, 1, 2]),
        store(5, 1, 1, Device, many.clone()),
        store(5, 1, 2, Device, (1..60_000).collect()),
        store(5, 1, 3, Disk, many),
        beat(4, 1, 0),
        beat(7, 1, 2),
    ]
}

fn bytes(cell: &Cell, options: &DumpOptions) -> Vec<Vec<u8>> {
    let stream = DumpStream::new(Dump::new(cell, options)).unwrap();
    stream.map(Result::unwrap).collect()
}

fn resumable() -> DumpOptions {
    DumpOptions {
        resumable: true,
        ..DumpOptions::default()
    }
}

fn fed(
    cell: &Arc<Cell>,
    slices: impl IntoIterator<Item = Vec<u8>>,
) -> Result<Restored, RestoreError> {
    let mut restore = Restore::new(Arc::clone(cell));
    for slice in slices {
        restore.feed(slice)?;
    }
    restore.finish(NOW_MS)
}

fn depths(cell: &Cell, hashes: &[u64]) -> Vec<(u64, u32)> {
    let mut matches = Matches::default();
    let options = FindOptions {
        exact: true,
        ..FindOptions::default()
    };
    cell.find(Query::SequenceHashes(hashes), &options, &mut matches);
    let workers = matches.workers.iter().map(|worker| worker.worker_id);
    workers.zip(matches.depths.iter().copied()).collect()
}

fn scratch() -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Relaxed);
    let name = format!("kvatlas-dump-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn replicas_that_reach_the_same_events_differently_dump_the_same_bytes() {
    let (one, other) = (cell(), cell());
    let records = mixed();
    apply(&one, &records);
    let mut later = records.clone();
    later.sort_by_key(|record| (record.len() % 7, record.clone()));
    // Out of order and twice; the sequencer restores the order.
    apply(&other, &later);
    apply(&other, &records);
    for options in [
        DumpOptions::default(),
        DumpOptions {
            digests: true,
            ..DumpOptions::default()
        },
    ] {
        assert_eq!(bytes(&one, &options), bytes(&other, &options));
    }
    apply(&other, &[store(7, 1, 3, v1::Tier::Device, vec![8])]);
    let options = DumpOptions::default();
    assert_ne!(bytes(&one, &options), bytes(&other, &options));
}

#[test]
fn a_replica_starts_from_a_peers_dump_cut_anywhere() {
    let (peer, fresh) = (cell(), cell());
    apply(&peer, &mixed());
    peer.set_log_position("redis", "log-1", "17-3");
    let whole = bytes(&peer, &resumable()).concat();
    let restored = fed(&fresh, whole.chunks(1_013).map(<[u8]>::to_vec)).unwrap();
    assert_eq!(restored.workers, 4);
    assert_eq!(
        restored.positions["redis"],
        ("log-1".to_owned(), "17-3".to_owned())
    );
    let options = DumpOptions::default();
    assert_eq!(bytes(&fresh, &options), bytes(&peer, &options));
    assert_eq!(fresh.status().memberships, peer.status().memberships);
    assert_eq!(depths(&fresh, &[1, 2, 3]), depths(&peer, &[1, 2, 3]));
    let (_, workers) = fresh.changes(None);
    assert_eq!(workers.workers.len(), 4);
    assert!(
        workers
            .workers
            .iter()
            .any(|info| info.engine_url == "http://engine-7")
    );
    apply(&fresh, &[store(7, 1, 3, v1::Tier::Device, vec![4])]);
    assert_eq!(depths(&fresh, &[1, 2, 3, 4]), [(5, 4), (7, 4), (3, 3)]);
}

#[test]
fn a_file_saved_while_records_are_applied_converges_with_the_log() {
    let live = cell();
    let over = AtomicBool::new(false);
    let directory = scratch();
    let step = |n: u64| {
        let tier = [v1::Tier::Device, v1::Tier::Host][(n / 3 % 2) as usize];
        (0..3).map(move |worker| store(worker, 1, n, tier, vec![n * 3 + worker, n % 50, n / 2]))
    };
    let saved = std::thread::scope(|scope| {
        let files = scope.spawn(|| {
            let files: Vec<_> = (0..12)
                .map(|number| {
                    let path = directory.join(format!("{number}"));
                    (path.clone(), save(&live, &path).unwrap().checksum)
                })
                .collect();
            over.store(true, Relaxed);
            files
        });
        let mut n = 0;
        while !over.load(Relaxed) || n < 100 {
            n += 1;
            apply(&live, &step(n).collect::<Vec<_>>());
            live.set_log_position("redis", "log", &n.to_string());
        }
        (files.join().unwrap(), n)
    });
    let (files, last) = saved;
    for (path, checksum) in files {
        let again = cell();
        let mut restore = Restore::new(Arc::clone(&again));
        restore.read_file(&path, checksum).unwrap();
        let restored = restore.finish(NOW_MS).unwrap();
        let from = restored
            .positions
            .get("redis")
            .map_or(0, |(_, entry)| entry.parse().unwrap());
        for n in from + 1..=last {
            apply(&again, &step(n).collect::<Vec<_>>());
        }
        let options = DumpOptions::default();
        assert_eq!(bytes(&again, &options), bytes(&live, &options));
        assert!(again.recovery_requests(10, None).is_empty());
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn no_damaged_file_and_no_damaged_stream_leaves_anything_in_the_cell() {
    let live = cell();
    apply(&live, &mixed());
    let directory = scratch();
    let path = directory.join("state");
    let saved = save(&live, &path).unwrap();
    let good = std::fs::read(&path).unwrap();
    assert_eq!(good.len() as u64, saved.bytes);
    assert_eq!(saved.memberships, 60_000 * 3 - 1 + 3 + 2 + 3);
    let stream = bytes(&live, &resumable()).concat();
    let empty = cell();
    for place in (0..good.len()).step_by(good.len() / 60) {
        let mut bad = good.clone();
        bad[place] ^= 0x40;
        std::fs::write(&path, &bad).unwrap();
        let mut restore = Restore::new(Arc::clone(&empty));
        let error = restore.read_file(&path, saved.checksum).unwrap_err();
        assert_eq!(error.refusal, Refusal::Corrupt);
        let cut = place * stream.len() / good.len();
        let error = fed(&empty, [stream[..cut].to_vec()]).unwrap_err();
        assert_eq!(error.refusal, Refusal::Unreadable, "cut at {cut}");
    }
    let error = fed(&empty, [vec![0x55; 4_096]]).unwrap_err();
    assert!(matches!(
        error.refusal,
        Refusal::Foreign | Refusal::Unreadable
    ));
    assert_eq!(empty.status().memberships, 0);
    assert_eq!(empty.status().workers.len(), 0);
    let other = cell_of("another");
    let error = fed(&other, [stream.clone()]).unwrap_err();
    assert_eq!(error.refusal, Refusal::OtherCell);
    assert_eq!(error.text, "it has model \"m\", this cell has \"another\"");
    assert!(fed(&empty, [stream]).is_ok());
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_stream_that_ends_between_two_of_its_slices_is_not_the_whole_state() {
    let peer = cell();
    apply(&peer, &mixed());
    let slices = bytes(&peer, &resumable());
    assert!(slices.len() > 3, "schema, batches and the mark of the end");
    for count in 0..slices.len() {
        let empty = cell();
        let error = fed(&empty, slices[..count].to_vec()).unwrap_err();
        assert!(
            matches!(error.refusal, Refusal::Unreadable | Refusal::Corrupt),
            "after {count} slices: {error}"
        );
        assert_eq!(empty.status().workers.len(), 0);
    }
}

#[test]
fn a_gone_worker_stays_fenced_and_a_silent_one_is_not_revived() {
    let (peer, fresh) = (cell(), cell());
    let shutdown = |id| {
        let reason = v1::shutdown::Reason::EngineGone.into();
        let kind = v1::event::Kind::Shutdown(v1::Shutdown { reason });
        let body = v1::Batch {
            first_event_id: id,
            events: vec![v1::Event { kind: Some(kind) }],
            ..v1::Batch::default()
        };
        record(9, 5, body)
    };
    apply(
        &peer,
        &[store(9, 5, 1, v1::Tier::Device, vec![1]), shutdown(2)],
    );
    apply(&peer, &[store(8, 5, 1, v1::Tier::Device, vec![1])]);
    let late = store(6, 5, 1, v1::Tier::Device, vec![1]);
    peer.apply([(late.as_slice(), NOW_MS + 60_000)], "redis", NOW_MS);
    fed(&fresh, bytes(&peer, &resumable())).unwrap();
    assert_eq!(
        depths(&fresh, &[1]),
        [(6, 1)],
        "8 has been silent for a minute of its log"
    );
    apply(&fresh, &[store(9, 4, 1, v1::Tier::Device, vec![1])]);
    assert_eq!(depths(&fresh, &[1]), [(6, 1)]);
}

#[test]
fn a_cell_whose_workers_are_all_silent_is_silent_after_a_start_too() {
    let (peer, fresh) = (cell(), cell());
    apply(&peer, &[store(8, 5, 1, v1::Tier::Device, vec![1])]);
    (1..=200).for_each(|step| peer.tick(NOW_MS + step * 100, true));
    assert_eq!(depths(&peer, &[1]), []);
    fed(&fresh, bytes(&peer, &resumable())).unwrap();
    assert_eq!(depths(&fresh, &[1]), []);
    // Its next record makes it fresh, though ticks had moved the log's time beyond it.
    fresh.apply(
        [(beat(8, 5, 1).as_slice(), NOW_MS + 5_000)],
        "redis",
        NOW_MS,
    );
    assert_eq!(depths(&fresh, &[1]), [(8, 1)]);
}

#[test]
fn a_set_that_changed_while_it_was_saved_stays_until_the_log_makes_it_whole() {
    let (live, fresh) = (cell(), cell());
    apply(
        &live,
        &[store(7, 1, 1, v1::Tier::Device, vec![1]), beat(7, 1, 2)],
    );
    fed(&fresh, bytes(&live, &resumable())).unwrap();
    fresh.set_log_status("redis", false, 0, 0);
    (1..=100).for_each(|step| fresh.tick(NOW_MS + step * 100, false));
    apply(&fresh, &[store(7, 1, 2, v1::Tier::Device, vec![2])]);
    assert_eq!(depths(&fresh, &[1, 2]), [(7, 2)]);
}

#[test]
fn a_worker_that_fell_silent_while_the_replica_was_away_is_silent_once_the_log_is_read_on() {
    let (peer, fresh) = (cell(), cell());
    for worker in [1, 2] {
        apply(&peer, &[store(worker, 5, 1, v1::Tier::Device, vec![1])]);
    }
    // An hour later; the log does not count as alive before it has answered.
    let now_ms = NOW_MS + 3_600_000;
    let mut restore = Restore::new(Arc::clone(&fresh));
    for slice in bytes(&peer, &resumable()) {
        restore.feed(slice).unwrap();
    }
    restore.finish(now_ms).unwrap();
    fresh.set_log_status("redis", false, 0, 0);
    fresh.tick(now_ms, false);
    let read = [(beat(1, 5, 1), NOW_MS + 1_000), (beat(2, 5, 1), now_ms)];
    let records = read.iter().map(|(record, at)| (record.as_slice(), *at));
    fresh.apply(records, "redis", now_ms);
    fresh.set_log_status("redis", true, 2, 0);
    fresh.tick(now_ms, true);
    assert_eq!(depths(&fresh, &[1]), [(2, 1)]);
}

#[test]
fn no_changed_byte_of_a_stream_ends_the_process() {
    let live = cell();
    apply(
        &live,
        &[
            store(7, 1, 1, v1::Tier::Device, vec![1, 2, 3]),
            store(7, 1, 2, v1::Tier::Host, vec![2, 9]),
            beat(7, 1, 2),
        ],
    );
    let stream = bytes(&live, &resumable()).concat();
    let mut refused = 0;
    for place in 0..stream.len() {
        let mut bad = stream.clone();
        bad[place] ^= 0xff;
        let empty = cell();
        if fed(&empty, [bad]).is_err() {
            refused += 1;
            assert_eq!(empty.status().workers.len(), 0);
        }
    }
    assert!(refused > stream.len() / 2, "{refused} of {}", stream.len());
}
