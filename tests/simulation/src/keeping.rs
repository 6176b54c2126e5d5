//! The states that a replica keeps on its disk, taken while records are applied, by the shipped code.
//!
//! The shipped pass over the index visits it piece by piece while others write. Here it is cut in two
//! with whatever happens next between all of its steps. Bytes are those of the stream that a peer sends;
//! the file around the same rows, with its checksum, is the cell's own tests' matter.

use std::collections::{BTreeMap, BTreeSet};

use kvatlas_cell::Cell;
use kvatlas_cell::dump::{Dump, DumpOptions, DumpStream, Taking};
use kvatlas_index::WorkerKey;

const KEPT: usize = 2;
const PARTS: u64 = 2;

/// By worker, its epoch and last event.
type Positions = BTreeMap<u64, (u64, u64)>;

/// One state.
#[derive(Clone, Debug)]
pub struct State {
    /// As they are streamed.
    pub slices: Vec<Vec<u8>>,
    /// By worker, its epoch, the last event before its set was taken, and the last one after.
    pub moved: BTreeMap<u64, (u64, u64, u64)>,
}

impl State {
    /// Of this moment, as for a peer.
    #[must_use]
    pub fn of(cell: &Cell) -> Option<Self> {
        let options = DumpOptions {
            resumable: true,
            ..DumpOptions::default()
        };
        Self::streamed(cell.dump(&options), BTreeMap::new())
    }

    fn streamed(dump: Dump, moved: BTreeMap<u64, (u64, u64, u64)>) -> Option<Self> {
        let stream = DumpStream::new(dump).ok()?;
        let slices = stream.collect::<Result<_, _>>().ok()?;
        Some(Self { slices, moved })
    }
}

/// A state under way.
struct Under {
    taking: Taking,
    passed: u64,
    before: Positions,
}

/// What outlives a replica's process, and what it is writing.
#[derive(Default)]
pub struct Disk {
    /// The newest first.
    pub states: Vec<State>,
    under: Option<Under>,
}

impl Disk {
    /// The next step of taking the state. True: it is whole, and kept.
    pub fn step(&mut self, cell: &Cell, workers: u64) -> bool {
        let Some(mut under) = self.under.take() else {
            self.under = Some(Under {
                before: positions(cell, workers),
                taking: cell.take_state(),
                passed: 0,
            });
            return false;
        };
        if under.passed < PARTS {
            under.taking.pass(cell, under.passed, PARTS);
            under.passed += 1;
            self.under = Some(under);
            return false;
        }
        let dump = under.taking.finish(cell);
        let mut moved = BTreeMap::new();
        for (worker, (epoch, to)) in positions(cell, workers) {
            if let Some(&(before, from)) = under.before.get(&worker)
                && before == epoch
                && from < to
            {
                moved.insert(worker, (epoch, from, to));
            }
        }
        self.states.splice(0..0, State::streamed(dump, moved));
        self.states.truncate(KEPT);
        true
    }

    /// The last state before an orderly end, or what was under way is lost.
    pub fn close(&mut self, cell: &Cell, in_order: bool, workers: u64) {
        self.under = None;
        while in_order && !self.step(cell, workers) {}
    }
}

fn positions(cell: &Cell, workers: u64) -> Positions {
    let keys: BTreeSet<WorkerKey> = (0..workers)
        .map(|worker_id| WorkerKey {
            worker_id,
            dp_rank: 0,
        })
        .collect();
    let positions = cell.positions(&keys).into_iter();
    positions
        .map(|position| {
            let worker = position.worker.map_or(0, |worker| worker.worker_id);
            (worker, (position.epoch, position.last_event_id))
        })
        .collect()
}
