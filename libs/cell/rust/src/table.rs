//! The worker table, and what has changed in it since any earlier look.
//!
//! Every change takes the next version. Who watches asks for what is newer than its last look, so
//! that a slow watcher costs no queue: changes coalesce in the table itself. Removals are remembered
//! for the newest few thousand; who missed older ones gets the whole table again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kvatlas_index::{Index, WorkerKey};
use kvatlas_wire::v1;

use crate::counters::Count;
use crate::lease::Logs;
use crate::worker::{Surroundings, Worker};

/// Workers of one cell, the recently gone included.
pub const WORKERS_MAX: usize = 8_192;
/// How long a gone worker's epoch stays fenced.
pub const GONE_KEPT_MS: u64 = 600_000;
const REMOVED_MAX: usize = 4_096;
const NOTICES_MAX: usize = 256;

/// All workers of the cell.
#[derive(Default)]
pub(crate) struct Table {
    pub workers: BTreeMap<WorkerKey, Worker>,
    pub logs: Logs,
    /// Workers that lack records which their publisher could give.
    pub in_need: BTreeSet<WorkerKey>,
    version: u64,
    removed: VecDeque<(u64, WorkerKey)>,
    /// The version of the newest removal that is no longer remembered.
    forgotten: u64,
    notices: VecDeque<String>,
}

impl Table {
    /// Of the last change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// A worker has changed.
    pub fn mark(&mut self, key: WorkerKey) {
        self.version += 1;
        let Some(worker) = self.workers.get_mut(&key) else {
            return;
        };
        if worker.is_listed() {
            worker.changed_at = self.version;
            return;
        }
        self.note_removal(key);
    }

    fn note_removal(&mut self, key: WorkerKey) {
        self.removed.push_back((self.version, key));
        while self.removed.len() > REMOVED_MAX {
            self.forgotten = self.removed.pop_front().map_or(0, |(version, _)| version);
        }
    }

    /// Whether this worker lacks records.
    pub fn note_need(&mut self, key: WorkerKey, lacks: bool) {
        if lacks {
            self.in_need.insert(key);
        } else {
            self.in_need.remove(&key);
        }
    }

    /// Keep what an operator should read until it is asked for; the oldest goes first.
    pub fn note(&mut self, notice: String) {
        if self.notices.len() == NOTICES_MAX {
            self.notices.pop_front();
        }
        self.notices.push_back(notice);
    }

    /// What has been noted since the last call.
    pub fn take_notices(&mut self) -> Vec<String> {
        self.notices.drain(..).collect()
    }

    /// Forget workers whose engines have been gone for long.
    pub fn forget_gone(&mut self, now_ms: u64) {
        self.workers.retain(|_, worker| {
            worker
                .gone_since_ms
                .is_none_or(|since| now_ms.saturating_sub(since) < GONE_KEPT_MS)
        });
    }

    /// Whether a record of this worker may be taken. In a full table a new worker takes the place of the one that has
    /// been silent for longest, those first whose engines have gone: ids of workers that never came back would else
    /// keep new ones out for ever.
    pub fn has_room(&mut self, key: WorkerKey, around: &mut Surroundings<'_>) -> bool {
        if self.workers.len() < WORKERS_MAX || self.workers.contains_key(&key) {
            return true;
        }
        let silent = self.workers.values().filter(|worker| worker.is_silent());
        let longest =
            silent.max_by_key(|worker| (!worker.is_listed(), worker.heard.age_ms(&self.logs)));
        let Some(forgotten) = longest.map(|worker| worker.key) else {
            return false;
        };
        if let Some(mut worker) = self.workers.remove(&forgotten) {
            worker.let_go(around);
        }
        self.in_need.remove(&forgotten);
        self.version += 1;
        self.note_removal(forgotten);
        around.counters.add(Count::WorkersForgotten);
        true
    }

    /// What has changed after version `since`; `None` for everything.
    pub fn changes(&self, index: &Index, since: Option<u64>) -> v1::WatchWorkersResponse {
        let since = since.filter(|&version| version >= self.forgotten);
        let listed = |key: &WorkerKey| self.workers.get(key).is_some_and(Worker::is_listed);
        let newer = |worker: &&Worker| {
            worker.is_listed() && since.is_none_or(|version| worker.changed_at > version)
        };
        let workers = self.workers.values().filter(newer);
        let removed = self
            .removed
            .iter()
            .filter(|(version, key)| since.is_some_and(|since| *version > since) && !listed(key));
        v1::WatchWorkersResponse {
            full: since.is_none(),
            workers: workers
                .map(|worker| worker.info(index, &self.logs))
                .collect(),
            removed: removed.map(|(_, key)| worker_message(*key)).collect(),
            ..Default::default()
        }
    }
}

/// A worker's key as the protos write it.
pub(crate) fn worker_message(key: WorkerKey) -> v1::Worker {
    v1::Worker {
        worker_id: key.worker_id,
        dp_rank: key.dp_rank,
    }
}
