//! The states that a replica keeps on its disk, taken while records are applied, by the shipped code.
//!
//! The shipped pass over the index visits it piece by piece while others write. Here it is cut in two
//! with whatever happens next between all of its steps. Bytes are those of the stream that a peer sends;
//! the file around the same rows, with its checksum, is the cell's own tests' matter.

use std::collections::{BTreeMap, BTreeSet};

use kvatlas_cell::Cell;
use kvatlas_cell::dump::{Dump, DumpOptions, DumpStream, Taking};
use kvatlas_index::WorkerKey;
use kvatlas_wire::v1;

const KEPT: usize = 2;
const PARTS: u64 = 2;

/// By worker, its epoch and last event.
type Positions = BTreeMap<u64, (u64, u64)>;
/// By worker, its epoch, and the events after the first of these up to the second that its set in a state may not have
/// the effect of: who starts from that must find them missing.
pub type Claims = BTreeMap<u64, (u64, u64, u64)>;

/// One state.
#[derive(Clone, Debug)]
pub struct State {
    /// As they are streamed.
    pub slices: Vec<Vec<u8>>,
    /// What was applied while it was taken.
    pub moved: Claims,
    /// What workers that were out for lack of memory passed over.
    pub passed_over: Claims,
}

impl State {
    /// Of this moment, as for a peer.
    #[must_use]
    pub fn of(cell: &Cell) -> Option<Self> {
        let options = DumpOptions {
            resumable: true,
            ..DumpOptions::default()
        };
        Self::streamed(cell, cell.dump(&options), Claims::new())
    }

    fn streamed(cell: &Cell, dump: Dump, moved: Claims) -> Option<Self> {
        let stream = DumpStream::new(dump).ok()?;
        let slices = stream.collect::<Result<_, _>>().ok()?;
        Some(Self {
            slices,
            moved,
            passed_over: passed_over(cell),
        })
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
        let mut moved = Claims::new();
        for (worker, (epoch, to)) in positions(cell, workers) {
            if let Some(&(before, from)) = under.before.get(&worker)
                && before == epoch
                && from < to
            {
                moved.insert(worker, (epoch, from, to));
            }
        }
        let state = State::streamed(cell, dump, moved);
        self.states.splice(0..0, state);
        self.states.truncate(KEPT);
        true
    }

    /// The last state before an orderly end, or what was under way is lost.
    pub fn close(&mut self, cell: &Cell, in_order: bool, workers: u64) {
        self.under = None;
        while in_order && !self.step(cell, workers) {}
    }
}

/// Of the workers that are out for lack of memory, all events that are known to exist.
fn passed_over(cell: &Cell) -> Claims {
    let listed = cell.status().workers.into_iter();
    let infos = listed.filter_map(|status| status.info);
    let out = infos.filter(|info| info.state == i32::from(v1::WorkerState::OverBudget));
    let epochs: BTreeMap<WorkerKey, u64> = out
        .filter_map(|info| {
            let v1::Worker { worker_id, dp_rank } = info.worker?;
            Some((WorkerKey { worker_id, dp_rank }, info.epoch))
        })
        .collect();
    let lags = cell.lags(usize::MAX, 0).most.into_iter();
    lags.filter_map(|lag| {
        let epoch = *epochs.get(&lag.key)?;
        Some((lag.key.worker_id, (epoch, 0, lag.events)))
    })
    .collect()
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
