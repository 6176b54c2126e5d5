//! An indexer process: the shipped cell and index, the records that reach it, and its readiness.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use kvatlas_cell::state::restore::{Restore, RestoreError};
use kvatlas_cell::{Applied, Cell, CellConfig};
use kvatlas_events::sequencer::Limits;
use kvatlas_index::{FindOptions, Matches, Query};
use kvatlas_wire::v1;

use crate::counts::Counts;
use crate::log::{Log, LogOffset, Record};
use crate::memory_pressure;
use crate::mutations::RecordMutator;
use crate::plan::{HOLD_BACK_MS, LEASE_MS, Mutation, Plan, RECOVER_MS, START_MS};
use crate::record::{BLOCK_SIZE, CELL, MODEL};
use crate::recovery::Recovery;
use crate::rng::Rng;
use crate::saved_states::{Disk, State};

const TRANSPORTS: [&str; 2] = ["redis", "kafka"];
const DIRECT: &str = "grpc";
const CAUGHT_UP_WITHIN_MS: u64 = RECOVER_MS;
/// Number of moments that a replica remembers.
const MOMENTS_MAX: usize = 256;

/// How far one log is read.
#[derive(Clone, Copy, Default, Debug)]
struct LogProgress {
    next: LogOffset,
    /// The head at the first read.
    first_head: Option<u64>,
    caught_up: bool,
    answers: bool,
    at_head: bool,
}

/// A record that arrives late.
#[derive(Debug)]
struct DelayedRecord {
    due_ms: u64,
    log: usize,
    record: Record,
    appended_ms: u64,
}

/// One replica.
pub struct Replica {
    /// The shipped cell.
    pub cell: Arc<Cell>,
    /// The saved states, which outlive the process.
    pub disk: Disk,
    /// End of the time in which publishers do not reach it.
    pub cut_off_until_ms: u64,
    /// Whether it runs.
    pub is_up: bool,
    /// The recovery policy.
    pub recovery: Recovery,
    skew_ms: i64,
    logs: Vec<LogProgress>,
    delayed: Vec<DelayedRecord>,
    mutator: RecordMutator,
    caught_up_ms: Option<u64>,
    ready: bool,
    /// Evicted workers that have not come back.
    evicted: BTreeSet<u64>,
    /// Pairs of real time, and of the time during which it read the heads of all logs.
    moments: VecDeque<(u64, u64)>,
    matches: Matches,
}

impl Replica {
    /// A process that has just started: it has no state and reads from the beginning.
    #[must_use]
    pub fn start(plan: &Plan, skew_ms: i64) -> Self {
        let cell = Cell::new(config(plan.memory_bytes_max));
        for transport in &TRANSPORTS[..plan.logs] {
            cell.set_log_status(transport, false, 0, 0);
        }
        if plan.direct {
            cell.set_log_status(DIRECT, true, 0, 0);
        }
        Self {
            cell: Arc::new(cell),
            disk: Disk::default(),
            cut_off_until_ms: 0,
            is_up: true,
            recovery: Recovery::default(),
            skew_ms,
            logs: vec![LogProgress::default(); plan.logs],
            delayed: Vec::new(),
            mutator: RecordMutator::default(),
            caught_up_ms: None,
            ready: false,
            evicted: BTreeSet::new(),
            moments: VecDeque::new(),
            matches: Matches::default(),
        }
    }

    /// Difference of its clock.
    #[must_use]
    pub fn skew_ms(&self) -> i64 {
        self.skew_ms
    }

    /// Whether it answers look-ups.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_up && self.ready
    }

    /// Whether recoveries may begin.
    #[must_use]
    pub fn may_recover(&self) -> bool {
        self.is_up && self.logs.iter().all(|progress| progress.caught_up)
    }

    /// Starts from a saved state, before the first record. With `cut` only a part of it arrives.
    ///
    /// # Errors
    /// The cell refuses the state.
    pub fn restore(
        &mut self,
        state: &State,
        cut: bool,
        plan: &Plan,
        now_ms: u64,
    ) -> Result<(), RestoreError> {
        let cut = cut && plan.mutation != Some(Mutation::IncompleteStates);
        let mut restore = Restore::new(Arc::clone(&self.cell));
        for slice in &state.slices {
            if cut {
                restore.feed(slice[..slice.len() / 2].to_vec())?;
                break;
            }
            restore.feed(slice.clone())?;
        }
        let restored = restore.finish(self.clock(now_ms))?;
        for (progress, transport) in self.logs.iter_mut().zip(TRANSPORTS) {
            let position = restored.positions.get(transport);
            let index =
                position.and_then(|(identity, entry)| LogOffset::from_position(identity, entry));
            progress.next = index.unwrap_or_default();
        }
        match plan.mutation {
            Some(Mutation::Convergence) => self.mutator.set_claims(state.applied_meanwhile.clone()),
            Some(Mutation::SkippedEvents) => self.mutator.set_claims(state.skipped.clone()),
            _ => {}
        }
        Ok(())
    }

    /// Whether publishers reach it.
    #[must_use]
    pub fn answers_pushes(&self, now_ms: u64) -> bool {
        self.is_up && now_ms >= self.cut_off_until_ms
    }

    /// Applies pushed records; returns the number of rejected ones and the position of their worker.
    pub fn apply_pushed(
        &mut self,
        records: &[Record],
        plan: &Plan,
        now_ms: u64,
    ) -> (u64, Option<v1::WorkerPosition>) {
        let (mut rejected, mut workers) = (0, BTreeSet::new());
        let appended_ms = self.clock(now_ms);
        for record in records {
            let applied = self.apply(record, DIRECT, appended_ms, plan, now_ms);
            rejected += applied.rejected;
            workers.extend(applied.workers);
        }
        (rejected, self.cell.positions(&workers).pop())
    }

    /// Evicted workers that have not come back.
    pub fn evicted(&self) -> impl Iterator<Item = u64> {
        self.evicted.iter().copied()
    }

    /// The information on a worker.
    #[must_use]
    pub fn info(&self, worker: u64) -> Option<v1::WorkerInfo> {
        let listed = self.cell.status().workers.into_iter();
        let mut infos = listed.filter_map(|status| status.info);
        infos.find(|info| info.worker.is_some_and(|key| key.worker_id == worker))
    }

    /// Number of digests that differed. It must stay 0, whatever is lost, repeated or late: a whole set is exact.
    #[must_use]
    pub fn digests_mismatched(&self) -> u64 {
        let mut counters = self.cell.counters.read();
        let found = counters.find(|&(name, _)| name == "digests_mismatched");
        found.map_or(0, |(_, count)| count)
    }

    /// Reads a part of a log. While `faulty`, records are lost, repeated and delayed.
    #[allow(clippy::too_many_arguments)] // separate parts of the world
    pub fn read(
        &mut self,
        index: usize,
        log: &Log,
        plan: &Plan,
        faulty: bool,
        rng: &mut Rng,
        counts: &mut Counts,
        now_ms: u64,
    ) {
        let progress = &mut self.logs[index];
        let slice = log.read(progress.next, plan.read_records, now_ms);
        progress.answers = slice.is_some();
        let Some(slice) = slice else {
            progress.at_head = false;
            self.cell.set_log_status(TRANSPORTS[index], false, 0, 0);
            return;
        };
        let first_head = *progress.first_head.get_or_insert(log.head());
        if slice.trimmed {
            counts.add("log trimmed past a reader");
        }
        progress.next = slice.next;
        let (identity, entry) = slice.next.to_position();
        progress.at_head = slice.at_head;
        progress.caught_up |= log.has_passed(slice.next, first_head);
        for (record, appended_ms) in slice.records {
            let rate = |rng: &mut Rng, per_mille| faulty && rng.chance(per_mille);
            if rate(rng, plan.drop_per_mille) {
                counts.add("record lost");
                continue;
            }
            let repeated = rate(rng, plan.duplicate_per_mille);
            let delayed = rate(rng, plan.delay_per_mille);
            let late = |rng: &mut Rng| DelayedRecord {
                due_ms: now_ms + rng.between(1, 600),
                log: index,
                record: record.clone(),
                appended_ms,
            };
            if repeated {
                counts.add("record repeated");
                self.delayed.push(late(rng));
            }
            if delayed {
                counts.add("record delayed");
                self.delayed.push(late(rng));
            } else {
                self.apply(&record, TRANSPORTS[index], appended_ms, plan, now_ms);
            }
        }
        self.cell.set_log_status(TRANSPORTS[index], true, 0, 0);
        self.cell
            .set_log_position(TRANSPORTS[index], &identity, &entry);
    }

    /// Applies the delayed records that are due.
    pub fn apply_delayed(&mut self, plan: &Plan, now_ms: u64) {
        let late = std::mem::take(&mut self.delayed).into_iter();
        let (due, later): (Vec<DelayedRecord>, Vec<DelayedRecord>) =
            late.partition(|late| late.due_ms <= now_ms);
        self.delayed = later;
        for late in due {
            let transport = TRANSPORTS[late.log];
            self.apply(&late.record, transport, late.appended_ms, plan, now_ms);
        }
    }

    /// Applies a publisher's answer.
    pub fn apply_answer(&mut self, records: &[Record], plan: &Plan, now_ms: u64) {
        let appended_ms = self.clock(now_ms);
        for record in records {
            self.apply(record, "recovery", appended_ms, plan, now_ms);
        }
    }

    /// Ticks the cell, follows evictions and updates readiness.
    pub fn tick(&mut self, passed_ms: u64, plan: &Plan, counts: &mut Counts, now_ms: u64) {
        let alive = plan.direct || self.logs.iter().any(|progress| progress.answers);
        self.cell.tick(self.clock(now_ms), alive);
        for notice in self.cell.take_notices() {
            let worker = notice
                .strip_prefix("worker ")
                .and_then(|rest| rest.split_once("/0 is over budget"))
                .and_then(|(worker, _)| worker.parse().ok());
            if let Some(worker) = worker.filter(|&worker: &u64| worker < memory_pressure::FIRST) {
                counts.add("worker evicted for lack of memory");
                self.evicted.insert(worker);
            }
        }
        for worker in std::mem::take(&mut self.evicted) {
            let info = self.info(worker);
            if info.is_some_and(|info| info.state == i32::from(v1::WorkerState::Live)) {
                counts.add("evicted worker back");
            } else {
                self.evicted.insert(worker);
            }
        }
        let last = self.moments.back().map_or(0, |&(_, read)| read);
        let at_head = self.logs.iter().all(|progress| progress.at_head);
        let read_ms = last + if at_head { passed_ms } else { 0 };
        self.moments.push_back((now_ms, read_ms));
        while self.moments.len() > MOMENTS_MAX {
            self.moments.pop_front();
        }
        if !self.ready && self.may_recover() {
            let since = *self.caught_up_ms.get_or_insert(now_ms);
            let recovering = self.cell.gauges().get("recoveries_running").copied();
            self.ready = recovering == Some(0) || now_ms - since >= CAUGHT_UP_WITHIN_MS;
        }
    }

    /// The latest moment since which it has read the heads of all logs for `read_ms`; None: there is none.
    #[must_use]
    pub fn moment_before(&self, read_ms: u64) -> Option<u64> {
        let &(_, last) = self.moments.back()?;
        let then = self.moments.iter().rev();
        let mut before = then.filter(|&&(_, read)| read + read_ms <= last);
        before.next().map(|&(at, _)| at)
    }

    /// The depth of a prompt, by worker.
    pub fn find(&mut self, hashes: &[u64], exact: bool) -> BTreeMap<u64, usize> {
        let options = FindOptions {
            exact,
            ..FindOptions::default()
        };
        let query = Query::SequenceHashes(hashes);
        self.cell.find(query, &options, &mut self.matches);
        let workers = self.matches.workers.iter().map(|key| key.worker_id);
        let depths = self.matches.depths.iter().map(|&depth| depth as usize);
        workers.zip(depths).collect()
    }

    fn apply(
        &mut self,
        record: &Record,
        transport: &str,
        appended_ms: u64,
        plan: &Plan,
        now_ms: u64,
    ) -> Applied {
        let tampered;
        let record = match plan.mutation {
            Some(mutation) => {
                tampered = self.mutator.rewrite(record, &self.cell, mutation);
                &tampered
            }
            None => record,
        };
        let now_ms = self.clock(now_ms);
        self.cell
            .apply([(&record[..], appended_ms)], transport, now_ms)
    }

    fn clock(&self, now_ms: u64) -> u64 {
        now_ms.saturating_add_signed(self.skew_ms)
    }
}

/// Bytes of an index with this many blocks, as they count towards its budget.
#[must_use]
pub fn index_bytes(blocks: u64) -> usize {
    let cell = Cell::new(config(1 << 30));
    for record in memory_pressure::sizing_records(blocks) {
        cell.apply([(&record[..], START_MS)], DIRECT, START_MS);
    }
    bytes_of(&cell)
}

/// Bytes of a cell's index, as they count towards its budget.
#[must_use]
pub fn bytes_of(cell: &Cell) -> usize {
    let gauges = cell.gauges();
    let parts = ["tables", "bitmaps", "fixed"];
    let bytes = parts.map(|part| gauges.get(&format!("index_bytes{{part=\"{part}\"}}")));
    let bytes: u64 = bytes.into_iter().flatten().sum();
    bytes as usize * 7 / 6
}

fn config(memory_bytes_max: usize) -> CellConfig {
    CellConfig {
        cell: CELL.to_owned(),
        model: MODEL.to_owned(),
        block_size: BLOCK_SIZE,
        hash_contract: kvatlas_hashing::CONTRACT.to_owned(),
        replica_id: "replica".to_owned(),
        version: "simulated".to_owned(),
        lease_ms: LEASE_MS,
        limits: Limits {
            hold_back_batches: 8,
            hold_back_ms: HOLD_BACK_MS,
            recover_ms: RECOVER_MS,
            snapshot_parts: 64,
            snapshot_hashes: 1_024,
        },
        memory_bytes_max,
    }
}
