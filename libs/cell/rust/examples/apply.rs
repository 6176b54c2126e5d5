//! Measures the write path of a cell, from the bytes of records to blocks in the index.
//!
//! A fleet's records are made first. Then one thread applies them, many per call, like a log's reader.
//! "grown" stores into an empty cell. "warm" goes on at equal size: every event of new blocks comes with one that
//! removes as many of the oldest, like an engine with a full cache. Each line has the blocks stored and removed per
//! second of the thread's processor time, and by the wall clock, which means less on a busy machine.
//!
//!     cargo run --release -p kvatlas-cell --example apply -- [BLOCKS] [WORKERS] [SHAPE, 0 to 3]

use std::time::Instant;

use kvatlas_cell::{Cell, CellConfig};
use kvatlas_events::sequencer::Limits;
use kvatlas_wire::v1::{Batch, Event, Header, Remove, Store, Worker, event};
use kvatlas_wire::{frame, v1};
use prost::Message as _;

const RECORDS_A_CALL: usize = 512;
/// The warm part replaces one in this many of the blocks stored first.
const REPLACED: usize = 4;
const DEVICE: i32 = v1::Tier::Device as i32;
const NOW_MS: u64 = 1_000_000;

/// How blocks are cut into events, and events into records.
struct Shape {
    name: &'static str,
    blocks_an_event: usize,
    events_a_record: usize,
}

const SHAPES: [Shape; 4] = [
    Shape {
        name: "32 blocks an event, 1 event a record",
        blocks_an_event: 32,
        events_a_record: 1,
    },
    Shape {
        name: "32 blocks an event, 32 events a record",
        blocks_an_event: 32,
        events_a_record: 32,
    },
    Shape {
        name: "1 block an event, 1 event a record",
        blocks_an_event: 1,
        events_a_record: 1,
    },
    Shape {
        name: "1 block an event, 256 events a record",
        blocks_an_event: 1,
        events_a_record: 256,
    },
];

fn main() {
    let mut words = std::env::args().skip(1).map(|word| word.parse::<usize>());
    let mut number = |default| words.next().and_then(Result::ok).unwrap_or(default);
    let (blocks, workers) = (number(10_000_000), number(64));
    match words.next().and_then(Result::ok) {
        Some(shape) => measure(&SHAPES[shape], blocks, workers),
        None => SHAPES
            .iter()
            .for_each(|shape| measure(shape, blocks, workers)),
    }
}

fn measure(shape: &Shape, blocks: usize, workers: usize) {
    let mut fleet = Fleet::new(shape, blocks, workers);
    let cell = cell();
    let grown = fleet.records(blocks, false);
    let grown_s = apply(&cell, &grown);
    drop(grown);
    let warm = fleet.records(blocks / REPLACED, true);
    let warm_s = apply(&cell, &warm);
    let rate = |blocks: usize, seconds: f64| blocks as f64 / seconds / 1e6;
    let (grown, warm) = (fleet.grown, 2 * fleet.replaced);
    println!(
        "{:<39} grown {:>5.1} (wall {:>5.1})   warm {:>5.1} (wall {:>5.1}) M blocks/s",
        shape.name,
        rate(grown, grown_s.cpu),
        rate(grown, grown_s.wall),
        rate(warm, warm_s.cpu),
        rate(warm, warm_s.wall),
    );
}

/// Durations in seconds.
struct Took {
    cpu: f64,
    wall: f64,
}

/// Applies the records, which must all be accepted, and measures the time.
fn apply(cell: &Cell, records: &[Vec<u8>]) -> Took {
    let (began, began_cpu) = (Instant::now(), cpu_s());
    for call in records.chunks(RECORDS_A_CALL) {
        let timed = call.iter().map(|record| (record.as_slice(), NOW_MS));
        let applied = cell.apply(timed, "grpc", NOW_MS);
        assert_eq!(applied.rejected, 0, "{:?}", applied.first_rejection);
    }
    Took {
        cpu: cpu_s() - began_cpu,
        wall: began.elapsed().as_secs_f64(),
    }
}

/// Processor time of this thread, as Linux accounts for it.
fn cpu_s() -> f64 {
    let accounts = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns: Option<f64> = accounts
        .split(' ')
        .next()
        .and_then(|field| field.parse().ok());
    ns.unwrap_or(f64::NAN) / 1e9
}

fn cell() -> Cell {
    Cell::new(CellConfig {
        cell: "blue".to_owned(),
        model: "some/model-of-usual-length".to_owned(),
        block_size: 16,
        hash_contract: "xxh3-1337-v1".to_owned(),
        replica_id: "replica".to_owned(),
        version: "0".to_owned(),
        lease_ms: 10_000,
        limits: Limits {
            hold_back_batches: 64,
            hold_back_ms: 1_000,
            recover_ms: 30_000,
            snapshot_parts: 4_096,
            snapshot_hashes: 1 << 25,
        },
        memory_bytes_max: 8 << 30,
    })
}

/// Engines that store distinct blocks, in turn, one record each.
struct Fleet<'a> {
    shape: &'a Shape,
    /// By worker: the next event, the next block to store, and the oldest block held.
    workers: Vec<(u64, u64, u64)>,
    grown: usize,
    replaced: usize,
}

impl<'a> Fleet<'a> {
    fn new(shape: &'a Shape, blocks: usize, workers: usize) -> Self {
        let a_record = shape.blocks_an_event * shape.events_a_record;
        let workers = workers.min(blocks / a_record).max(1);
        Self {
            shape,
            workers: vec![(1, 0, 0); workers],
            grown: 0,
            replaced: 0,
        }
    }

    /// Records that store `blocks` blocks, and remove as many if the fleet's caches are full.
    fn records(&mut self, blocks: usize, full: bool) -> Vec<Vec<u8>> {
        let a_record = self.shape.blocks_an_event * self.shape.events_a_record;
        let records = blocks / a_record;
        let counted = if full {
            &mut self.replaced
        } else {
            &mut self.grown
        };
        *counted += records * a_record;
        (0..records)
            .map(|number| self.record(number % self.workers.len(), full))
            .collect()
    }

    fn record(&mut self, worker: usize, full: bool) -> Vec<u8> {
        let (next_event, stored, removed) = &mut self.workers[worker];
        let first_event_id = *next_event;
        let take = |from: &mut u64| {
            let first = *from;
            *from += self.shape.blocks_an_event as u64;
            (first..*from)
                .map(|block| mix(worker as u64 + 1).wrapping_add(block))
                .map(mix)
                .collect::<Vec<_>>()
        };
        let mut events = Vec::new();
        for _ in 0..self.shape.events_a_record {
            if full {
                events.push(event::Kind::Remove(Remove {
                    sequence_hashes: take(removed),
                    tier: DEVICE,
                }));
            }
            let hashes = take(stored);
            events.push(event::Kind::Store(Store {
                parent_sequence_hash: Some(hashes[0] ^ 1),
                sequence_hashes: hashes,
                tier: DEVICE,
            }));
        }
        *next_event += events.len() as u64;
        let batch = Batch {
            header: Some(header(worker as u64)),
            first_event_id,
            events: events
                .into_iter()
                .map(|kind| Event { kind: Some(kind) })
                .collect(),
            ..Default::default()
        };
        frame::seal(&batch.encode_to_vec())
    }
}

fn header(worker_id: u64) -> Header {
    Header {
        worker: Some(Worker {
            worker_id,
            dp_rank: 0,
        }),
        epoch: 1,
        instance_id: 7,
        cell: "blue".to_owned(),
        model: "some/model-of-usual-length".to_owned(),
        block_size: 16,
        hash_contract: "xxh3-1337-v1".to_owned(),
        publisher: "a-host-of-the-fleet/12345".to_owned(),
    }
}

/// SplitMix64's output function, which scatters consecutive numbers.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
