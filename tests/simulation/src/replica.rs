//! An indexer process: the real cell over the real index, what reaches it of the logs, and whether it
//! would answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use kvatlas_cell::restore::{Restore, RestoreError};
use kvatlas_cell::{Applied, Cell, CellConfig};
use kvatlas_events::sequencer::Limits;
use kvatlas_index::{FindOptions, Matches, Query};
use kvatlas_wire::v1;

use crate::keeping::{Disk, State};
use crate::log::{Log, Place, Record};
use crate::neighbours;
use crate::plan::{HOLD_BACK_MS, LEASE_MS, Plan, RECOVER_MS, START_MS, Without};
use crate::record::{BLOCK_SIZE, CELL, MODEL};
use crate::recovery::Recovery;
use crate::rng::Rng;
use crate::tally::Tally;
use crate::tamper::Tamper;

const TRANSPORTS: [&str; 2] = ["redis", "kafka"];
const DIRECT: &str = "grpc";
const CAUGHT_UP_WITHIN_MS: u64 = RECOVER_MS;
/// How many moments of its own clock a replica remembers.
const MOMENTS_MAX: usize = 256;

/// What it knows of one log.
#[derive(Clone, Copy, Default, Debug)]
struct Reading {
    place: Place,
    /// The head at the first read.
    goal: Option<u64>,
    caught_up: bool,
    answers: bool,
    at_head: bool,
}

/// A record on its way.
#[derive(Debug)]
struct Late {
    due_ms: u64,
    log: usize,
    record: Record,
    appended_ms: u64,
}

/// One replica.
pub struct Replica {
    /// The state machine under test.
    pub cell: Arc<Cell>,
    /// What outlives its process.
    pub disk: Disk,
    /// Until when publishers do not reach it.
    pub cut_off_until_ms: u64,
    /// It runs.
    pub up: bool,
    /// Its recoveries.
    pub recovery: Recovery,
    skew_ms: i64,
    readings: Vec<Reading>,
    late: Vec<Late>,
    tamper: Tamper,
    caught_up_ms: Option<u64>,
    ready: bool,
    /// Workers that went for lack of memory and have not come back.
    put_out: BTreeSet<u64>,
    /// Real time against the time in which it read the head of a log.
    moments: VecDeque<(u64, u64)>,
    matches: Matches,
}

impl Replica {
    /// A process that has just started: it knows nothing and reads from the beginning.
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
            up: true,
            recovery: Recovery::default(),
            skew_ms,
            readings: vec![Reading::default(); plan.logs],
            late: Vec::new(),
            tamper: Tamper::default(),
            caught_up_ms: None,
            ready: false,
            put_out: BTreeSet::new(),
            moments: VecDeque::new(),
            matches: Matches::default(),
        }
    }

    /// Its clock's difference.
    #[must_use]
    pub fn skew_ms(&self) -> i64 {
        self.skew_ms
    }

    /// Whether it answers look-ups.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.up && self.ready
    }

    /// Whether recoveries may begin.
    #[must_use]
    pub fn may_recover(&self) -> bool {
        self.up && self.readings.iter().all(|reading| reading.caught_up)
    }

    /// Begin with a kept state instead of nothing; before the first record. `cut`: only a part of it
    /// arrives.
    ///
    /// # Errors
    /// If the cell refuses it.
    pub fn restore(
        &mut self,
        state: &State,
        cut: bool,
        plan: &Plan,
        now_ms: u64,
    ) -> Result<(), RestoreError> {
        let cut = cut && plan.without != Some(Without::Refusal);
        let mut restore = Restore::new(Arc::clone(&self.cell));
        for slice in &state.slices {
            if cut {
                restore.feed(slice[..slice.len() / 2].to_vec())?;
                break;
            }
            restore.feed(slice.clone())?;
        }
        let restored = restore.finish(self.clock(now_ms))?;
        for (reading, transport) in self.readings.iter_mut().zip(TRANSPORTS) {
            let position = restored.positions.get(transport);
            let place = position.and_then(|(identity, entry)| Place::read(identity, entry));
            reading.place = place.unwrap_or_default();
        }
        match plan.without {
            Some(Without::Convergence) => self.tamper.claim(state.moved.clone()),
            Some(Without::PassingOver) => self.tamper.claim(state.passed_over.clone()),
            _ => {}
        }
        Ok(())
    }

    /// Whether a publisher reaches it.
    #[must_use]
    pub fn answers_pushes(&self, now_ms: u64) -> bool {
        self.up && now_ms >= self.cut_off_until_ms
    }

    /// Records that a publisher pushes: how many of them were refused, and where their worker is by now.
    pub fn take_pushed(
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

    /// Workers that went for lack of memory and have not come back.
    pub fn put_out(&self) -> impl Iterator<Item = u64> {
        self.put_out.iter().copied()
    }

    /// What it lists of a worker.
    #[must_use]
    pub fn info(&self, worker: u64) -> Option<v1::WorkerInfo> {
        let listed = self.cell.status().workers.into_iter();
        let mut infos = listed.filter_map(|status| status.info);
        infos.find(|info| info.worker.is_some_and(|key| key.worker_id == worker))
    }

    /// Digests that were found to differ. Whatever is lost, repeated or late, none may ever be: a set
    /// that is whole is exactly what was said.
    #[must_use]
    pub fn digests_mismatched(&self) -> u64 {
        let mut counters = self.cell.counters.read();
        let found = counters.find(|&(name, _)| name == "digests_mismatched");
        found.map_or(0, |(_, count)| count)
    }

    /// Read some of a log. What is read is lost, repeated and delayed while `faulty`.
    #[allow(clippy::too_many_arguments)] // all of it is the world's, and none of it belongs together
    pub fn read(
        &mut self,
        place: usize,
        log: &Log,
        plan: &Plan,
        faulty: bool,
        rng: &mut Rng,
        tally: &mut Tally,
        now_ms: u64,
    ) {
        let reading = &mut self.readings[place];
        let slice = log.read(reading.place, plan.read_records, now_ms);
        reading.answers = slice.is_some();
        let Some(slice) = slice else {
            reading.at_head = false;
            self.cell.set_log_status(TRANSPORTS[place], false, 0, 0);
            return;
        };
        let goal = *reading.goal.get_or_insert(log.head());
        if slice.trimmed {
            tally.add("log trimmed past a reader");
        }
        reading.place = slice.place;
        let (identity, entry) = slice.place.said();
        reading.at_head = slice.at_head;
        reading.caught_up |= log.has_passed(slice.place, goal);
        for (record, appended_ms) in slice.records {
            let rate = |rng: &mut Rng, per_mille| faulty && rng.chance(per_mille);
            if rate(rng, plan.drop_per_mille) {
                tally.add("record lost");
                continue;
            }
            let repeated = rate(rng, plan.duplicate_per_mille);
            let delayed = rate(rng, plan.delay_per_mille);
            let late = |rng: &mut Rng| Late {
                due_ms: now_ms + rng.between(1, 600),
                log: place,
                record: record.clone(),
                appended_ms,
            };
            if repeated {
                tally.add("record repeated");
                self.late.push(late(rng));
            }
            if delayed {
                tally.add("record delayed");
                self.late.push(late(rng));
            } else {
                self.apply(&record, TRANSPORTS[place], appended_ms, plan, now_ms);
            }
        }
        self.cell.set_log_status(TRANSPORTS[place], true, 0, 0);
        self.cell
            .set_log_position(TRANSPORTS[place], &identity, &entry);
    }

    /// What was delayed so long arrives.
    pub fn arrive(&mut self, plan: &Plan, now_ms: u64) {
        let late = std::mem::take(&mut self.late).into_iter();
        let (due, later): (Vec<Late>, Vec<Late>) = late.partition(|late| late.due_ms <= now_ms);
        self.late = later;
        for late in due {
            let transport = TRANSPORTS[late.log];
            self.apply(&late.record, transport, late.appended_ms, plan, now_ms);
        }
    }

    /// What a publisher answered arrives.
    pub fn take_answer(&mut self, records: &[Record], plan: &Plan, now_ms: u64) {
        let appended_ms = self.clock(now_ms);
        for record in records {
            self.apply(record, "recovery", appended_ms, plan, now_ms);
        }
    }

    /// Time passes.
    pub fn tick(&mut self, passed_ms: u64, plan: &Plan, tally: &mut Tally, now_ms: u64) {
        let alive = plan.direct || self.readings.iter().any(|reading| reading.answers);
        self.cell.tick(self.clock(now_ms), alive);
        for notice in self.cell.take_notices() {
            let worker = notice
                .strip_prefix("worker ")
                .and_then(|rest| rest.split_once("/0 is over budget"))
                .and_then(|(worker, _)| worker.parse().ok());
            if let Some(worker) = worker.filter(|&worker: &u64| worker < neighbours::FIRST) {
                tally.add("worker put out for lack of memory");
                self.put_out.insert(worker);
            }
        }
        for worker in std::mem::take(&mut self.put_out) {
            let info = self.info(worker);
            if info.is_some_and(|info| info.state == i32::from(v1::WorkerState::Live)) {
                tally.add("worker let in again");
            } else {
                self.put_out.insert(worker);
            }
        }
        let last = self.moments.back().map_or(0, |&(_, read)| read);
        let at_head = self.readings.iter().all(|reading| reading.at_head);
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

    /// The last moment from which on it read the log's head for `read_ms`; `None`: it has not for so long.
    #[must_use]
    pub fn moment_before(&self, read_ms: u64) -> Option<u64> {
        let &(_, last) = self.moments.back()?;
        let then = self.moments.iter().rev();
        let mut before = then.filter(|&&(_, read)| read + read_ms <= last);
        before.next().map(|&(at, _)| at)
    }

    /// Who holds how much of a prompt, by worker.
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
        let record = match plan.without {
            Some(without) => {
                tampered = self.tamper.rewrite(record, &self.cell, without);
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

/// Bytes that an index with so many blocks takes, as they count towards its budget.
#[must_use]
pub fn index_bytes(blocks: u64) -> usize {
    let cell = Cell::new(config(1 << 30));
    for record in neighbours::weights(blocks) {
        cell.apply([(&record[..], START_MS)], DIRECT, START_MS);
    }
    bytes_of(&cell)
}

/// Bytes that its index takes, as they count towards its budget.
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
