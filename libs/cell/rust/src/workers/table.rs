//! The worker table, and what has changed in it since any earlier version.
//!
//! Every change gets the next version. A watcher asks for the changes after the version that it has seen. So a slow
//! watcher costs no queue: changes coalesce in the table itself. The newest few thousand removals are
//! remembered; a watcher that missed older ones gets the whole table again.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use kvatlas_events::sequencer::{Limits, Verdict};
use kvatlas_index::{Index, WorkerKey};
use kvatlas_wire::v1;
use tokio::sync::watch;

use super::lag::{LagReport, WorkerLag};
use super::recovery_request::RecoveryRequest;
use super::worker::{Arrival, Worker, WorkerUpdate};
use crate::apply::context::ApplyContext;
use crate::apply::decode::Record;
use crate::apply::rejection::Rejection;
use crate::counters::Count;
use crate::leases::logs::{LogIndex, Logs};
use crate::messages::worker_message;

/// Most workers of one cell, including those whose engines have gone.
const WORKERS_MAX: usize = 8_192;
/// Time that the epoch of a worker stays fenced after its engine has gone.
const GONE_KEPT_MS: u64 = 600_000;
const REMOVALS_MAX: usize = 4_096;
const NOTICES_MAX: usize = 256;

/// All workers of the cell, and its logs.
pub(crate) struct WorkerTable {
    pub workers: BTreeMap<WorkerKey, Worker>,
    pub logs: Logs,
    limits: Limits,
    /// Workers whose publishers should be asked for records. Records and ticks keep it up to date, so that a healthy
    /// cell pays nothing for the list of recovery requests.
    to_recover: BTreeSet<WorkerKey>,
    /// Holds the version of the last change.
    version: watch::Sender<u64>,
    removals: VecDeque<(u64, WorkerKey)>,
    /// Version of the newest removal that is no longer remembered.
    forgotten_version: u64,
    notices: VecDeque<String>,
}

impl WorkerTable {
    pub fn new(limits: Limits) -> Self {
        Self {
            workers: BTreeMap::new(),
            logs: Logs::default(),
            limits,
            to_recover: BTreeSet::new(),
            version: watch::Sender::new(0),
            removals: VecDeque::new(),
            forgotten_version: 0,
            notices: VecDeque::new(),
        }
    }

    /// The version of the last change.
    pub fn version(&self) -> u64 {
        *self.version.borrow()
    }

    /// Follows the version.
    pub fn watch_version(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// The workers whose engines have not gone.
    pub fn listed(&self) -> impl Iterator<Item = &Worker> {
        self.workers.values().filter(|worker| worker.is_listed())
    }

    /// Sequences and applies a record that was appended to `log` at `appended_ms` by the log server's clock.
    pub fn on_record(
        &mut self,
        context: &mut ApplyContext<'_>,
        record: Record<'_>,
        (log, appended_ms): (LogIndex, u64),
        now_ms: u64,
    ) -> Result<(), Rejection> {
        let (key, sender) = (record.header.worker, record.header.incarnation);
        let has_room = self.make_room(key, context);
        let at_ms = self.logs.on_append(log, appended_ms, now_ms);
        let worker = match self.workers.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) if has_room => entry.insert(Worker::new(key, self.limits)),
            Entry::Vacant(_) => {
                return Err(Rejection {
                    count: Count::RejectedWorkers,
                    text: format!(
                        "the cell has {WORKERS_MAX} workers that are not silent, and takes no more"
                    ),
                });
            }
        };
        let arrival = Arrival { log, at_ms, now_ms };
        let (verdict, update) = worker.on_record(context, &self.logs, record, arrival);
        let (current, known) = (worker.sequencer.incarnation(), worker.sequencer.known());
        let lacks = worker.lacks_records(context.readmission_blocks);
        if current.epoch == 0 {
            self.workers.remove(&key);
        }
        self.set_to_recover(key, lacks);
        self.publish(key, update);
        let (count, text) = match verdict {
            Verdict::RivalInstance => (
                Count::RejectedRival,
                format!(
                    "worker {key}: epoch {} belongs to instance {:016x}, not to {:016x}",
                    current.epoch, current.instance, sender.instance
                ),
            ),
            Verdict::EpochAhead => (
                Count::RejectedEpochAhead,
                format!(
                    "worker {key}: epoch {} (µs) is more than ten minutes ahead of this indexer's clock, {now_ms} ms",
                    sender.epoch
                ),
            ),
            Verdict::EventIdJump => (
                Count::RejectedEventIdJump,
                format!(
                    "worker {key}: an event_id is far beyond {known}, the highest known one of epoch {}",
                    sender.epoch
                ),
            ),
            accepted => {
                if let Some(count) = count_of(accepted) {
                    context.counters.add(count);
                }
                return Ok(());
            }
        };
        Err(Rejection { count, text })
    }

    /// Ends leases, gaps and recoveries that have lasted too long, and forgets workers whose engines went long ago.
    /// Time stands still for leases unless `log_alive`.
    pub fn on_tick(&mut self, context: &mut ApplyContext<'_>, now_ms: u64, log_alive: bool) {
        self.logs.on_tick(now_ms, log_alive, context.lease_ms);
        let mut readmission_blocks = context.readmission_blocks;
        let mut updates = Vec::new();
        for worker in self
            .workers
            .values_mut()
            .filter(|worker| worker.is_listed())
        {
            if !log_alive {
                worker.sequencer.on_tick_without_log(now_ms);
            }
            let update = worker.on_tick(context, &self.logs, now_ms);
            let lacks = worker.lacks_records(readmission_blocks);
            if lacks {
                // Evicted workers are asked for only as far as there is room for all of them.
                readmission_blocks = readmission_blocks.saturating_sub(worker.evicted_blocks());
            }
            updates.push((worker.key, lacks, update));
        }
        for (key, lacks, update) in updates {
            self.set_to_recover(key, lacks);
            self.publish(key, update);
        }
        self.workers.retain(|_, worker| {
            let since = worker.engine_gone_since_ms;
            since.is_none_or(|since| now_ms.saturating_sub(since) < GONE_KEPT_MS)
        });
    }

    /// Evicts workers until the remaining blocks fit the memory budget. Silent workers go first, since they are not
    /// matched anyway; of either kind the largest go first.
    pub fn evict_over_budget(&mut self, context: &mut ApplyContext<'_>, now_ms: u64) {
        let (index, budget) = (context.index, context.budget);
        let mut live_blocks = index.memberships();
        let observed = budget.observe(index);
        let Some(blocks_max) = observed.filter(|&blocks_max| live_blocks > blocks_max) else {
            return;
        };
        let workers = self.workers.values();
        let sizes = workers.map(|worker| {
            let is_silent = !worker.lease.is_running();
            (is_silent, worker.set.blocks(index), worker.key)
        });
        let mut sizes: Vec<_> = sizes.filter(|&(_, blocks, _)| blocks > 0).collect();
        sizes.sort_unstable_by(|one, other| other.cmp(one));
        for (_, blocks, key) in sizes {
            if live_blocks <= blocks_max {
                break;
            }
            if let Some(worker) = self.workers.get_mut(&key) {
                worker.evict(context, now_ms);
                context.counters.add(Count::WorkersOverBudget);
                self.set_to_recover(key, false);
                let notice = format!(
                    "worker {key} is over budget: the index may use {} bytes; the worker is not matched until there is room for its whole set",
                    budget.bytes_max()
                );
                let update = WorkerUpdate {
                    notice: Some(notice),
                    is_visible: true,
                };
                self.publish(key, update);
            }
            live_blocks = live_blocks.saturating_sub(blocks);
        }
    }

    /// Adds a worker of a restored state, which may be shown from now on.
    pub fn insert_restored(&mut self, context: &mut ApplyContext<'_>, mut worker: Worker) {
        let key = worker.key;
        worker.renew_lease(context, &self.logs);
        worker.update_matched(context);
        let lacks = worker.lacks_records(context.readmission_blocks);
        self.workers.insert(key, worker);
        self.set_to_recover(key, lacks);
        self.mark_changed(key);
    }

    /// At most `limit` requests to recover workers, by worker, after the worker `after`. A silent worker is left out:
    /// its publisher would not answer, and its ended lease keeps it out of matches anyway.
    pub fn recovery_requests(
        &self,
        limit: usize,
        after: Option<WorkerKey>,
    ) -> Vec<RecoveryRequest> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let keys = self.to_recover.range((from, Bound::Unbounded));
        let workers = keys.filter_map(|key| self.workers.get(key));
        workers.take(limit).map(Worker::recovery_request).collect()
    }

    /// The request to recover one worker; None: it lacks nothing that could be asked for.
    pub fn recovery_request(&self, key: WorkerKey) -> Option<RecoveryRequest> {
        let worker = self.workers.get(&key)?;
        let lacks = self.to_recover.contains(&key);
        lacks.then(|| worker.recovery_request())
    }

    /// The lag of all workers; names at most `limit` of them.
    pub fn lag_report(&self, limit: usize, now_ms: u64) -> LagReport {
        let lags = self.listed().filter_map(|worker| {
            let (events, since_ms) = worker.sequencer.lag()?;
            Some(WorkerLag {
                key: worker.key,
                events,
                ms: since_ms.map_or(0, |since| now_ms.saturating_sub(since)),
            })
        });
        LagReport::new(lags.collect(), limit)
    }

    /// The notices to the operator since the last call.
    pub fn take_notices(&mut self) -> Vec<String> {
        self.notices.drain(..).collect()
    }

    /// The changes after version `since`; None: the whole table.
    pub fn changes(&self, index: &Index, since: Option<u64>) -> v1::WatchWorkersResponse {
        let since = since.filter(|&version| version >= self.forgotten_version);
        let is_newer = |version: u64| since.is_none_or(|since| version > since);
        let workers = self
            .listed()
            .filter(|worker| is_newer(worker.changed_at_version));
        let is_listed = |key: &WorkerKey| self.workers.get(key).is_some_and(Worker::is_listed);
        let removed = self.removals.iter().filter(|(version, key)| {
            since.is_some_and(|since| *version > since) && !is_listed(key)
        });
        v1::WatchWorkersResponse {
            full: since.is_none(),
            workers: workers
                .map(|worker| worker.info(index, &self.logs))
                .collect(),
            removed: removed.map(|(_, key)| worker_message(*key)).collect(),
            ..Default::default()
        }
    }

    /// Makes room for a record of this worker; false: there is none. In a full table a new worker replaces the one that
    /// has been silent for longest, first those whose engines have gone. Otherwise workers that never come back
    /// would keep new ones out for ever.
    fn make_room(&mut self, key: WorkerKey, context: &mut ApplyContext<'_>) -> bool {
        if self.workers.len() < WORKERS_MAX || self.workers.contains_key(&key) {
            return true;
        }
        let workers = self.workers.values();
        let longest_silent = workers
            .filter(|worker| !worker.lease.is_running())
            .max_by_key(|worker| {
                let age_ms = worker.lease.last_record.age_ms(&self.logs);
                (!worker.is_listed(), age_ms)
            });
        let Some(forgotten) = longest_silent.map(|worker| worker.key) else {
            return false;
        };
        if let Some(mut worker) = self.workers.remove(&forgotten) {
            worker.set.release(context);
        }
        self.to_recover.remove(&forgotten);
        self.mark_changed(forgotten);
        context.counters.add(Count::WorkersForgotten);
        true
    }

    fn set_to_recover(&mut self, key: WorkerKey, lacks: bool) {
        if lacks {
            self.to_recover.insert(key);
        } else {
            self.to_recover.remove(&key);
        }
    }

    fn publish(&mut self, key: WorkerKey, update: WorkerUpdate) {
        if let Some(notice) = update.notice {
            if self.notices.len() == NOTICES_MAX {
                self.notices.pop_front();
            }
            self.notices.push_back(notice);
        }
        if update.is_visible {
            self.mark_changed(key);
        }
    }

    /// Gives a change of this worker, or its removal, the next version.
    fn mark_changed(&mut self, key: WorkerKey) {
        let version = self.version() + 1;
        match self.workers.get_mut(&key) {
            Some(worker) if worker.is_listed() => worker.changed_at_version = version,
            _ => {
                self.removals.push_back((version, key));
                if self.removals.len() > REMOVALS_MAX {
                    let oldest = self.removals.pop_front();
                    self.forgotten_version = oldest.map_or(0, |(version, _)| version);
                }
            }
        }
        self.version.send_replace(version);
    }
}

/// The counter of an accepted or dropped record, if it has one of its own.
fn count_of(verdict: Verdict) -> Option<Count> {
    Some(match verdict {
        Verdict::Seen => Count::DroppedSeen,
        Verdict::OlderEpoch => Count::DroppedOlderEpoch,
        Verdict::EpochClosed => Count::DroppedEpochClosed,
        Verdict::SnapshotOld => Count::DroppedSnapshotOld,
        Verdict::SnapshotMismatch => Count::SnapshotsMismatched,
        Verdict::SnapshotTooLarge => Count::SnapshotsTooLarge,
        Verdict::HeldBackOverflow => Count::HoldBackOverflows,
        Verdict::HeldBack => Count::HeldBack,
        _ => return None,
    })
}
