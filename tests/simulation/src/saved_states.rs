//! The states that a replica saves on its disk, captured by the shipped code while records are applied.
//!
//! The shipped pass over the index visits it piece by piece while others write. Here the pass is cut in two, and other
//! actions come between its steps. The bytes are those of the stream that a peer sends; the cell's own tests cover the
//! file around the same rows.

use std::collections::{BTreeMap, BTreeSet};

use kvatlas_cell::Cell;
use kvatlas_cell::state::capture::StateCapture;
use kvatlas_cell::state::dump::{Dump, DumpOptions, DumpStream};
use kvatlas_index::WorkerKey;
use kvatlas_wire::v1;

const STATES_KEPT: usize = 2;
const PARTS: u64 = 2;

/// Epoch and last applied event, by worker.
type Positions = BTreeMap<u64, (u64, u64)>;
/// By worker: its epoch and a range of events (after the first number, up to the second) whose effect its set in a state
/// may lack. A replica that starts from the state must find these events missing.
pub type Claims = BTreeMap<u64, (u64, u64, u64)>;

/// One saved state.
#[derive(Clone, Debug)]
pub struct State {
    /// Slices of the stream.
    pub slices: Vec<Vec<u8>>,
    /// Events applied while it was captured.
    pub applied_meanwhile: Claims,
    /// Events that evicted workers skipped.
    pub skipped: Claims,
}

impl State {
    /// The state of this moment, as a peer gets it.
    #[must_use]
    pub fn of(cell: &Cell) -> Option<Self> {
        let options = DumpOptions {
            resumable: true,
            ..DumpOptions::default()
        };
        Self::streamed(cell, Dump::new(cell, &options), Claims::new())
    }

    fn streamed(cell: &Cell, dump: Dump, applied_meanwhile: Claims) -> Option<Self> {
        let stream = DumpStream::new(dump).ok()?;
        let slices = stream.collect::<Result<_, _>>().ok()?;
        Some(Self {
            slices,
            applied_meanwhile,
            skipped: skipped(cell),
        })
    }
}

/// A capture under way.
struct CaptureUnderWay {
    state: StateCapture,
    parts_read: u64,
    positions_before: Positions,
}

/// The disk of a replica, which outlives its process, and the capture under way.
#[derive(Default)]
pub struct Disk {
    /// The saved states, newest first.
    pub states: Vec<State>,
    capture: Option<CaptureUnderWay>,
}

impl Disk {
    /// Does the next step of a capture. True: the state is complete and saved.
    pub fn step(&mut self, cell: &Cell, workers: u64) -> bool {
        let Some(mut capture) = self.capture.take() else {
            self.capture = Some(CaptureUnderWay {
                positions_before: positions(cell, workers),
                state: StateCapture::begin(cell),
                parts_read: 0,
            });
            return false;
        };
        if capture.parts_read < PARTS {
            capture.state.read_part(cell, capture.parts_read, PARTS);
            capture.parts_read += 1;
            self.capture = Some(capture);
            return false;
        }
        let dump = capture.state.finish(cell);
        let mut applied_meanwhile = Claims::new();
        for (worker, (epoch, to)) in positions(cell, workers) {
            if let Some(&(before, from)) = capture.positions_before.get(&worker)
                && before == epoch
                && from < to
            {
                applied_meanwhile.insert(worker, (epoch, from, to));
            }
        }
        let state = State::streamed(cell, dump, applied_meanwhile);
        self.states.splice(0..0, state);
        self.states.truncate(STATES_KEPT);
        true
    }

    /// Saves a last state before an orderly end; otherwise the capture under way is lost.
    pub fn close(&mut self, cell: &Cell, in_order: bool, workers: u64) {
        self.capture = None;
        while in_order && !self.step(cell, workers) {}
    }
}

/// All known events of the evicted workers.
fn skipped(cell: &Cell) -> Claims {
    let listed = cell.status().workers.into_iter();
    let infos = listed.filter_map(|status| status.info);
    let out = infos.filter(|info| info.state == i32::from(v1::WorkerState::OverBudget));
    let epochs: BTreeMap<WorkerKey, u64> = out
        .filter_map(|info| {
            let v1::Worker { worker_id, dp_rank } = info.worker?;
            Some((WorkerKey { worker_id, dp_rank }, info.epoch))
        })
        .collect();
    let lags = cell.lag_report(usize::MAX, 0).furthest_behind.into_iter();
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
