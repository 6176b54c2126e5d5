//! One cell's state in this replica: records in, matches and reports out.
//!
//! Look-ups go to the index and take no lock. Everything else goes through one lock around the
//! worker table, held for a few records, one tick or one report at a time; the server keeps those off
//! the threads that answer look-ups. Time comes in as an argument throughout.

use std::collections::BTreeSet;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use kvatlas_events::sequencer::{Limits, Verdict};
use kvatlas_index::{FindOptions, Index, IndexConfig, Matches, Preparer, Query, WorkerKey};
use kvatlas_wire::frame::FrameError;
use kvatlas_wire::v1;
use parking_lot::{FairMutex, Mutex};
use tokio::sync::watch;

use crate::budget::Budget;
use crate::changes::Changes;
use crate::counters::{Count, Counters, Histogram};
use crate::decode::{self, DecodeError, EventList, Header, Record};
use crate::table::{Table, WORKERS_MAX, worker_message};
use crate::worker::{Outcome, Surroundings, Worker};

/// Records decoded, and then sequenced under one lock.
const GROUP_RECORDS: usize = 64;
/// Bytes of records after which a group ends, and others have their turn: half a millisecond of new blocks.
const GROUP_BYTES: usize = 32 << 10;

/// What a cell is told at its making; all of it is fixed for its life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CellConfig {
    /// The cell's name.
    pub cell: String,
    /// The one model it serves.
    pub model: String,
    /// Tokens per block.
    pub block_size: u32,
    /// The hash contract.
    pub hash_contract: String,
    /// This replica's name.
    pub replica_id: String,
    /// This build's.
    pub version: String,
    /// How long a worker may be silent.
    pub lease_ms: u64,
    /// Bounds of each worker's sequencer.
    pub limits: Limits,
    /// Bytes the index may use.
    pub memory_bytes_max: usize,
}

/// What one call of [`Cell::apply`] did.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Applied {
    /// Records that were taken note of, the repeated and outdated ones included.
    pub accepted: u64,
    /// Records that were refused.
    pub rejected: u64,
    /// Why the first of these was, in words.
    pub first_rejection: Option<String>,
    /// The workers that the records spoke of.
    pub workers: BTreeSet<WorkerKey>,
}

/// A record of this cell, or why it is none.
type Checked<'a> = Result<Record<'a>, (Count, String)>;

/// One cell's state. Share it by `Arc`.
pub struct Cell {
    /// As it was made.
    pub config: CellConfig,
    /// Counts by name.
    pub counters: Counters,
    /// How long look-ups took inside this process.
    pub find_latency: Histogram,
    pub(crate) budget: Mutex<Budget>,
    index: Index,
    // Fair, since whoever applies a large batch takes it again and again: others would wait for all of it.
    table: FairMutex<Table>,
    is_ready: AtomicBool,
    readiness: watch::Sender<bool>,
    versions: watch::Sender<u64>,
}

impl Cell {
    /// An empty cell, not ready.
    #[must_use]
    pub fn new(config: CellConfig) -> Self {
        Self {
            budget: Mutex::new(Budget::new(config.memory_bytes_max)),
            config,
            counters: Counters::default(),
            find_latency: Histogram::default(),
            index: Index::new(IndexConfig::default()),
            table: FairMutex::default(),
            is_ready: AtomicBool::new(false),
            readiness: watch::Sender::new(false),
            versions: watch::Sender::new(0),
        }
    }

    /// Decode, sequence and apply records in order; each with the time, in ms, at which its log
    /// took it. A bad one is counted and passed over.
    pub fn apply<'a>(
        &self,
        records: impl IntoIterator<Item = (&'a [u8], u64)>,
        transport: &str,
        now_ms: u64,
    ) -> Applied {
        let mut applied = Applied::default();
        let mut around = self.surroundings(self.room_blocks());
        let mut group = Vec::with_capacity(GROUP_RECORDS);
        let mut group_bytes = 0;
        for (bytes, appended_ms) in records {
            let list = around.changes.take_list();
            group.push((self.check(bytes, list), appended_ms));
            group_bytes += bytes.len();
            if group.len() == GROUP_RECORDS || group_bytes >= GROUP_BYTES {
                self.take_all(&mut group, transport, now_ms, &mut around, &mut applied);
                group_bytes = 0;
            }
        }
        self.take_all(&mut group, transport, now_ms, &mut around, &mut applied);
        self.counters
            .add_many(Count::RecordsAccepted, applied.accepted);
        applied
    }

    /// Time has passed: run leases, frozen unless `log_alive`, hold-back bounds, the memory budget,
    /// and a slice of the index's clean-up.
    pub fn tick(&self, now_ms: u64, log_alive: bool) {
        self.sweep();
        let mut room_blocks = self.room_blocks();
        let mut around = self.surroundings(room_blocks);
        let mut table = self.table.lock();
        table.logs.on_tick(now_ms, log_alive, self.config.lease_ms);
        let mut outcomes = Vec::new();
        let mut needs = Vec::new();
        let Table { workers, logs, .. } = &mut *table;
        for worker in workers.values_mut().filter(|worker| worker.is_listed()) {
            if !log_alive {
                worker.sequencer.on_tick_without_log(now_ms);
            }
            let outcome = worker.on_tick(&mut around, logs, now_ms);
            let lacks = worker.lacks_records(room_blocks);
            if lacks {
                // Only as many are asked for at a time as there is room for.
                room_blocks = room_blocks.saturating_sub(worker.blocks_left_out());
            }
            needs.push((worker.key, lacks));
            if outcome.changed || outcome.notice.is_some() {
                outcomes.push((worker.key, outcome));
            }
        }
        for (key, lacks) in needs {
            table.note_need(key, lacks);
        }
        for (key, outcome) in outcomes {
            self.publish(&mut table, key, outcome);
        }
        table.forget_gone(now_ms);
        self.keep_budget(&mut table, now_ms);
    }

    /// Until ready, look-ups answer UNAVAILABLE and health says NOT_SERVING.
    pub fn set_ready(&self, ready: bool) {
        self.is_ready.store(ready, Relaxed);
        self.readiness.send_replace(ready);
    }

    /// Whether look-ups are answered.
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_ready.load(Relaxed)
    }

    /// Follows [`Self::set_ready`].
    #[must_use]
    pub fn watch_readiness(&self) -> watch::Receiver<bool> {
        self.readiness.subscribe()
    }

    /// Follows the worker table's version.
    #[must_use]
    pub fn watch_versions(&self) -> watch::Receiver<u64> {
        self.versions.subscribe()
    }

    /// What the service knows of one log.
    pub fn set_log_status(&self, transport: &str, alive: bool, records: u64, lag_ms: u64) {
        self.table
            .lock()
            .logs
            .report(transport, alive, records, lag_ms);
    }

    /// The log has stopped, and nothing of the last `unproven_ms` has shown that it still went: that
    /// time ages nobody. To be said once for every stop.
    pub fn take_back_log_time(&self, transport: &str, unproven_ms: u64) {
        let mut table = self.table.lock();
        table.logs.take_back(transport, unproven_ms);
    }

    /// Everything up to `entry` of the log of this identity has been applied; a snapshot keeps it.
    pub fn set_log_position(&self, transport: &str, identity: &str, entry: &str) {
        let mut table = self.table.lock();
        table.logs.set_position(transport, identity, entry);
    }

    /// Who holds how much of a prompt; readiness is the caller's to check.
    pub fn find(&self, query: Query<'_>, options: &FindOptions, out: &mut Matches) {
        self.index.find(query, options, out);
    }

    /// What an operator should read, since the last call.
    #[must_use]
    pub fn take_notices(&self) -> Vec<String> {
        self.table.lock().take_notices()
    }

    /// How far each of these workers is applied.
    #[must_use]
    pub fn positions(&self, keys: &BTreeSet<WorkerKey>) -> Vec<v1::WorkerPosition> {
        let room_blocks = self.room_blocks();
        let table = self.table.lock();
        let known = keys.iter().filter_map(|key| table.workers.get(key));
        known
            .map(|worker| v1::WorkerPosition {
                worker: Some(worker_message(worker.key)),
                epoch: worker.sequencer.speaker().epoch,
                last_event_id: worker.sequencer.applied(),
                whole: !worker.wants_snapshot(room_blocks),
            })
            .collect()
    }

    /// What has changed in the worker table after version `since`, and the version it has now.
    #[must_use]
    pub fn changes(&self, since: Option<u64>) -> (u64, v1::WatchWorkersResponse) {
        let table = self.table.lock();
        (table.version(), table.changes(&self.index, since))
    }

    /// Take so many bytes from the system for the index's tables, and keep them; false if it has no more.
    pub fn keep_memory(&self, bytes: usize) -> bool {
        self.index.keep(bytes)
    }

    /// What takes memory ahead of the index's tables; for a thread of its own, which ends with the cell.
    pub fn preparer(&self) -> Preparer {
        self.index.preparer()
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    pub(crate) fn with_table<T>(&self, read: impl FnOnce(&Table) -> T) -> T {
        read(&self.table.lock())
    }

    pub(crate) fn with_table_mut<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let result = change(&mut self.table.lock());
        self.versions
            .send_replace(self.with_table(|table| table.version()));
        result
    }

    fn check<'a>(&self, bytes: &'a [u8], list: EventList) -> Checked<'a> {
        let record = decode::decode_into(bytes, list).map_err(|error| {
            let count = match error {
                DecodeError::Frame(FrameError::Foreign) => Count::RejectedForeign,
                DecodeError::Frame(FrameError::UnknownVersion(_)) => Count::RejectedVersion,
                DecodeError::Frame(FrameError::Corrupt) => Count::RejectedCorrupt,
                DecodeError::Malformed(_) => Count::RejectedMalformed,
                DecodeError::TooLarge => Count::RejectedTooLarge,
            };
            (count, error.to_string())
        })?;
        self.check_terms(&record.header).map(|()| record)
    }

    fn check_terms(&self, header: &Header<'_>) -> Result<(), (Count, String)> {
        let config = &self.config;
        let WorkerKey { worker_id, dp_rank } = header.worker;
        let reason = |what: &str, theirs: &dyn std::fmt::Display, ours: &dyn std::fmt::Display| {
            format!("worker {worker_id}/{dp_rank} has {what} {theirs}, this cell has {ours}")
        };
        if header.cell != config.cell {
            return Err((
                Count::RejectedCell,
                reason("cell", &header.cell, &config.cell),
            ));
        }
        if header.model != config.model {
            return Err((
                Count::RejectedModel,
                reason("model", &header.model, &config.model),
            ));
        }
        if header.block_size != config.block_size {
            let reason = reason("block size", &header.block_size, &config.block_size);
            return Err((Count::RejectedBlockSize, reason));
        }
        if header.hash_contract != config.hash_contract {
            let reason = reason(
                "hash contract",
                &header.hash_contract,
                &config.hash_contract,
            );
            return Err((Count::RejectedHashContract, reason));
        }
        Ok(())
    }

    /// Sequence a group of records; what they change is written before the lock is given up.
    fn take_all<'a>(
        &self,
        group: &mut Vec<(Checked<'a>, u64)>,
        transport: &str,
        now_ms: u64,
        around: &mut Surroundings<'_>,
        applied: &mut Applied,
    ) {
        let mut table = self.table.lock();
        let place = table.logs.place(transport);
        let mut last = None;
        for (checked, appended_ms) in group.drain(..) {
            let result = checked.and_then(|record| {
                let key = record.header.worker;
                if last.replace(key) != Some(key) {
                    applied.workers.insert(key);
                }
                self.take(&mut table, record, (place, appended_ms), now_ms, around)
            });
            match result {
                Ok(()) => applied.accepted += 1,
                Err((count, reason)) => {
                    applied.rejected += 1;
                    self.counters.add(count);
                    applied.first_rejection.get_or_insert(reason);
                }
            }
        }
        around.changes.flush();
    }

    fn take(
        &self,
        table: &mut Table,
        record: Record<'_>,
        (place, appended_ms): (usize, u64),
        now_ms: u64,
        around: &mut Surroundings<'_>,
    ) -> Result<(), (Count, String)> {
        let (key, speaker) = (record.header.worker, record.header.speaker);
        let is_full = !table.has_room(key, around);
        let Table { workers, logs, .. } = &mut *table;
        let at_ms = logs.on_append(place, appended_ms, now_ms);
        let worker = match workers.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(_) if is_full => {
                let reason = format!("the cell hears {WORKERS_MAX} workers, and takes no more");
                return Err((Count::RejectedWorkers, reason));
            }
            Entry::Vacant(entry) => entry.insert(Worker::new(key, self.config.limits)),
        };
        let outcome = worker.on_record(around, logs, (place, at_ms), record, now_ms);
        let (current, known) = (worker.sequencer.speaker(), worker.sequencer.known());
        let lacks = worker.lacks_records(around.room_blocks);
        if current.epoch == 0 {
            workers.remove(&key);
        }
        let verdict = outcome.verdict;
        table.note_need(key, lacks);
        self.publish(table, key, outcome);
        let WorkerKey { worker_id, dp_rank } = key;
        match verdict {
            Verdict::RivalInstance => Err((
                Count::RejectedRival,
                format!(
                    "worker {worker_id}/{dp_rank}: epoch {} belongs to instance {:016x}, not to {:016x}",
                    current.epoch, current.instance, speaker.instance
                ),
            )),
            Verdict::EpochAhead => Err((
                Count::RejectedEpochAhead,
                format!(
                    "worker {worker_id}/{dp_rank}: epoch {} (µs) is more than ten minutes ahead of this indexer's clock, {now_ms} ms",
                    speaker.epoch
                ),
            )),
            Verdict::EventIdJump => Err((
                Count::RejectedEventIdJump,
                format!(
                    "worker {worker_id}/{dp_rank}: an event_id far beyond {known}, the last that epoch {} is known to have",
                    speaker.epoch
                ),
            )),
            _ => {
                self.count(verdict);
                Ok(())
            }
        }
    }

    fn count(&self, verdict: Verdict) {
        let count = match verdict {
            Verdict::Seen => Count::DroppedSeen,
            Verdict::OlderEpoch => Count::DroppedOlderEpoch,
            Verdict::EpochClosed => Count::DroppedEpochClosed,
            Verdict::SnapshotOld => Count::DroppedSnapshotOld,
            Verdict::SnapshotMismatch => Count::SnapshotsMismatched,
            Verdict::SnapshotTooLarge => Count::SnapshotsTooLarge,
            Verdict::HeldBackOverflow => Count::HoldBackOverflows,
            Verdict::HeldBack => Count::HeldBack,
            _ => return,
        };
        self.counters.add(count);
    }

    fn publish(&self, table: &mut Table, key: WorkerKey, outcome: Outcome) {
        if let Some(notice) = outcome.notice {
            table.note(notice);
        }
        if outcome.changed {
            self.mark(table, key);
        }
    }

    /// Tell watchers that a worker has changed.
    pub(crate) fn mark(&self, table: &mut Table, key: WorkerKey) {
        table.mark(key);
        self.versions.send_replace(table.version());
    }

    pub(crate) fn surroundings(&self, room_blocks: u64) -> Surroundings<'_> {
        Surroundings {
            index: &self.index,
            counters: &self.counters,
            changes: Changes::new(&self.index, &self.counters),
            steps: Vec::new(),
            lease_ms: self.config.lease_ms,
            room_blocks,
            budget: &self.budget,
        }
    }
}
