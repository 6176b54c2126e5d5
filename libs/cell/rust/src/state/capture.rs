//! A state that is read while records are applied, as a file keeps it.
//!
//! Positions are read first and sets after them, so a set may hold traces of later events. At the end each worker's known
//! event id is raised to the newest event that may have left traces. A replica that starts from the state applies these events once more
//! from the log. They are idempotent, so it ends with the same set; until then the worker is not whole.

use super::columns::schema;
use super::dump::Dump;
use super::dumped_worker::{DumpedWorker, read_hashes};
use crate::cell::Cell;
use crate::leases::logs::Log;

/// A capture under way. Records may be applied between any two of its steps.
pub struct StateCapture {
    logs: Vec<Log>,
    workers: Vec<DumpedWorker>,
}

impl StateCapture {
    /// Reads the positions of the logs and the workers.
    #[must_use]
    pub fn begin(cell: &Cell) -> Self {
        cell.with_table(|table| {
            let workers = table.workers.values();
            Self {
                logs: table.logs.all().to_vec(),
                workers: workers
                    .map(|worker| DumpedWorker::new(worker, Some(&table.logs)))
                    .collect(),
            }
        })
    }

    /// Reads the hashes that fall to `part` of `parts`; every part must be read once.
    ///
    /// One pass visits the index piece by piece, while it changes. More parts allow a test to say where it changes.
    pub fn read_part(&mut self, cell: &Cell, part: u64, parts: u64) {
        let workers = self.workers.iter_mut().collect();
        read_hashes(cell.index(), workers, (part, parts));
    }

    /// Completes the state. A replica that starts from it reads the logs from the positions read at the beginning.
    #[must_use]
    pub fn finish(mut self, cell: &Cell) -> Dump {
        cell.with_table(|table| {
            // A worker with another epoch or set by now is rare: it is read again, under the lock.
            let mut again = Vec::new();
            for dumped in &mut self.workers {
                let Some(worker) = table.workers.get(&dumped.key) else {
                    continue;
                };
                let now = DumpedWorker::new(worker, Some(&table.logs));
                if (now.epoch, now.slot) != (dumped.epoch, dumped.slot) {
                    *dumped = now;
                    again.push(dumped);
                } else if let (Some(kept), Some(now)) = (&mut dumped.resume, now.resume) {
                    kept.known_event_id = kept.known_event_id.max(now.known_event_id);
                    kept.base_lost |= now.base_lost;
                }
            }
            read_hashes(cell.index(), again, (0, 1));
        });
        Dump::of(schema(&cell.config, Some(&self.logs)), self.workers)
    }
}
