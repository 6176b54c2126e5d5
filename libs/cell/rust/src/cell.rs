//! One cell's state in this replica: records in, matches and reports out.
//!
//! Look-ups go to the index and take no lock. Everything else takes the lock of the worker table, for a few records,
//! one tick or one report at a time. The server runs such calls off the threads that answer look-ups. Time comes
//! in as an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use kvatlas_index::{FindOptions, Index, IndexConfig, Matches, Prefaulter, Query, WorkerKey};
use kvatlas_wire::v1;
use parking_lot::FairMutex;
use prost::Message as _;
use tokio::sync::watch;

use crate::apply::context::ApplyContext;
use crate::apply::decode::{self, EventList, Record};
use crate::apply::rejection::Rejection;
use crate::config::CellConfig;
use crate::counters::{Count, Counters, Histogram};
use crate::memory::budget::MemoryBudget;
use crate::messages::worker_message;
use crate::status;
use crate::workers::lag::LagReport;
use crate::workers::recovery_request::RecoveryRequest;
use crate::workers::table::WorkerTable;

/// Records that are decoded first and then sequenced under one lock.
const GROUP_RECORDS: usize = 64;
/// Bytes of records after which a group ends, so that others get the lock: half a millisecond of new blocks.
const GROUP_BYTES: usize = 32 << 10;

/// The result of one [`Cell::apply`].
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Applied {
    /// Number of accepted records, including repeated and outdated ones.
    pub accepted: u64,
    /// Number of rejected records.
    pub rejected: u64,
    /// Why the first of them was rejected.
    pub first_rejection: Option<String>,
    /// The workers of the records.
    pub workers: BTreeSet<WorkerKey>,
}

/// A decoded record of this cell with its append time, or why it is rejected.
type Checked<'a> = (Result<Record<'a>, Rejection>, u64);

/// One cell's state. Share it by `Arc`.
pub struct Cell {
    /// The configuration.
    pub config: CellConfig,
    /// Counts by name.
    pub counters: Counters,
    /// Time of look-ups inside this process.
    pub find_latency: Histogram,
    index: Index,
    budget: MemoryBudget,
    // Fair, since a caller with a large batch takes it again and again: others would wait for the whole batch.
    table: FairMutex<WorkerTable>,
    version: watch::Receiver<u64>,
    is_ready: AtomicBool,
    readiness: watch::Sender<bool>,
}

impl Cell {
    /// An empty cell that is not ready.
    #[must_use]
    pub fn new(config: CellConfig) -> Self {
        let table = WorkerTable::new(config.limits);
        Self {
            budget: MemoryBudget::new(config.memory_bytes_max),
            config,
            counters: Counters::default(),
            find_latency: Histogram::default(),
            index: Index::new(IndexConfig::default()),
            version: table.watch_version(),
            table: FairMutex::new(table),
            is_ready: AtomicBool::new(false),
            readiness: watch::Sender::new(false),
        }
    }

    /// Decodes, sequences and applies records in order, each with its append time in ms. A bad record is counted and
    /// skipped.
    pub fn apply<'a>(
        &self,
        records: impl IntoIterator<Item = (&'a [u8], u64)>,
        transport: &str,
        now_ms: u64,
    ) -> Applied {
        let mut applied = Applied::default();
        let mut context = self.apply_context();
        let mut group = Vec::with_capacity(GROUP_RECORDS);
        let mut group_bytes = 0;
        for (bytes, appended_ms) in records {
            let list = context.writes.take_list();
            group.push((self.decode(bytes, list), appended_ms));
            group_bytes += bytes.len();
            if group.len() == GROUP_RECORDS || group_bytes >= GROUP_BYTES {
                self.apply_group(&mut group, transport, now_ms, &mut context, &mut applied);
                group_bytes = 0;
            }
        }
        self.apply_group(&mut group, transport, now_ms, &mut context, &mut applied);
        self.counters
            .add_many(Count::RecordsAccepted, applied.accepted);
        applied
    }

    /// Runs leases, which stand still unless `log_alive`, hold-back bounds, the memory budget, and a slice of the index's
    /// sweep.
    pub fn tick(&self, now_ms: u64, log_alive: bool) {
        self.budget.sweep(&self.index);
        let mut context = self.apply_context();
        let mut table = self.table.lock();
        table.on_tick(&mut context, now_ms, log_alive);
        table.evict_over_budget(&mut context, now_ms);
        // Before the lock is given up: nobody may see a worker's position ahead of its set.
        context.writes.flush();
    }

    /// Answers which workers hold how much of a prompt. The caller checks readiness.
    pub fn find(&self, query: Query<'_>, options: &FindOptions, out: &mut Matches) {
        self.index.find(query, options, out);
    }

    /// Sets whether look-ups are answered. Until then they are UNAVAILABLE, and health is NOT_SERVING.
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

    /// Follows the version of the worker table.
    #[must_use]
    pub fn watch_version(&self) -> watch::Receiver<u64> {
        self.version.clone()
    }

    /// The changes of the worker table after version `since`, and the current version.
    #[must_use]
    pub fn changes(&self, since: Option<u64>) -> (u64, v1::WatchWorkersResponse) {
        self.with_table(|table| (table.version(), table.changes(&self.index, since)))
    }

    /// Sets what the service reports of one log.
    pub fn set_log_status(&self, transport: &str, alive: bool, records: u64, lag_ms: u64) {
        self.with_table_mut(|table| table.logs.set_status(transport, alive, records, lag_ms));
    }

    /// Takes back leases' time of a log that has stopped and whose last sign of life is `unproven_ms` old. Call it once
    /// per stop.
    pub fn rewind_log_time(&self, transport: &str, unproven_ms: u64) {
        self.with_table_mut(|table| table.logs.rewind(transport, unproven_ms));
    }

    /// Notes that everything up to `entry` of the log with this identity is applied; states keep it.
    pub fn set_log_position(&self, transport: &str, identity: &str, entry: &str) {
        self.with_table_mut(|table| table.logs.set_position(transport, identity, entry));
    }

    /// The notices to the operator since the last call.
    #[must_use]
    pub fn take_notices(&self) -> Vec<String> {
        self.with_table_mut(WorkerTable::take_notices)
    }

    /// The last applied event of each of these workers.
    #[must_use]
    pub fn positions(&self, keys: &BTreeSet<WorkerKey>) -> Vec<v1::WorkerPosition> {
        let readmission_blocks = self.budget.readmission_blocks(&self.index);
        self.with_table(|table| {
            let workers = keys.iter().filter_map(|key| table.workers.get(key));
            let positions = workers.map(|worker| v1::WorkerPosition {
                worker: Some(worker_message(worker.key)),
                epoch: worker.sequencer.incarnation().epoch,
                last_event_id: worker.sequencer.applied(),
                whole: !worker.wants_snapshot(readmission_blocks),
            });
            positions.collect()
        })
    }

    /// At most `limit` requests to recover workers, ordered by worker, after the worker `after`.
    #[must_use]
    pub fn recovery_requests(
        &self,
        limit: usize,
        after: Option<WorkerKey>,
    ) -> Vec<RecoveryRequest> {
        self.with_table(|table| table.recovery_requests(limit, after))
    }

    /// The request to recover one worker; None: it lacks nothing that could be asked for.
    #[must_use]
    pub fn recovery_request(&self, key: WorkerKey) -> Option<RecoveryRequest> {
        self.with_table(|table| table.recovery_request(key))
    }

    /// How far workers are behind; names at most `limit` of them.
    #[must_use]
    pub fn lag_report(&self, limit: usize, now_ms: u64) -> LagReport {
        self.with_table(|table| table.lag_report(limit, now_ms))
    }

    /// The status of the replica, as `GetStatus` returns it.
    #[must_use]
    pub fn status(&self) -> v1::GetStatusResponse {
        let (config, counters) = (&self.config, &self.counters);
        self.with_table(|table| {
            status::status(config, counters, &self.index, table, self.is_ready())
        })
    }

    /// [`Self::status`], encoded.
    #[must_use]
    pub fn encoded_status(&self) -> Vec<u8> {
        self.status().encode_to_vec()
    }

    /// Gauges by name; labels as in the counters' names.
    #[must_use]
    pub fn gauges(&self) -> BTreeMap<String, u64> {
        self.with_table(|table| status::gauges(&self.index, table, self.is_ready()))
    }

    /// Takes this many bytes from the system for the index's tables, and keeps them; false: it has no more.
    pub fn keep_memory(&self, bytes: usize) -> bool {
        self.index.keep_memory(bytes)
    }

    /// Takes memory ahead of the index's growing tables, on a thread of its own that ends with the cell.
    pub fn prefaulter(&self) -> Prefaulter {
        self.index.prefaulter()
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    pub(crate) fn with_table<T>(&self, read: impl FnOnce(&WorkerTable) -> T) -> T {
        read(&self.table.lock())
    }

    pub(crate) fn with_table_mut<T>(&self, change: impl FnOnce(&mut WorkerTable) -> T) -> T {
        change(&mut self.table.lock())
    }

    pub(crate) fn apply_context(&self) -> ApplyContext<'_> {
        let lease_ms = self.config.lease_ms;
        ApplyContext::new(&self.index, &self.counters, &self.budget, lease_ms)
    }

    fn decode<'a>(&self, bytes: &'a [u8], list: EventList) -> Result<Record<'a>, Rejection> {
        let record = decode::decode_into(bytes, list)?;
        self.config.check(&record.header)?;
        Ok(record)
    }

    /// Sequences a group of records, and writes their changes before the lock is given up.
    fn apply_group(
        &self,
        group: &mut Vec<Checked<'_>>,
        transport: &str,
        now_ms: u64,
        context: &mut ApplyContext<'_>,
        applied: &mut Applied,
    ) {
        let mut table = self.table.lock();
        let log = table.logs.open(transport);
        let mut last = None;
        for (checked, appended_ms) in group.drain(..) {
            let result = checked.and_then(|record| {
                let key = record.header.worker;
                if last.replace(key) != Some(key) {
                    applied.workers.insert(key);
                }
                table.on_record(context, record, (log, appended_ms), now_ms)
            });
            match result {
                Ok(()) => applied.accepted += 1,
                Err(rejection) => {
                    applied.rejected += 1;
                    self.counters.add(rejection.count);
                    applied.first_rejection.get_or_insert(rejection.text);
                }
            }
        }
        context.writes.flush();
    }
}
