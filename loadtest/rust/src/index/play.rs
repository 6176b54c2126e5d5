//! One trial: a stream played on an index, open loop.
//!
//! One thread issues: it waits for each record's time, looks queries up itself, and announces how far
//! it has come in one word. The applying threads walk the same records in memory, each taking those of
//! its workers, and apply what has been announced: so nothing is copied or queued, and a worker's order
//! is kept. A design with writer threads of its own is handed its events by the issuing thread instead.
//! Nothing on these paths allocates or calls the system, but for the clock.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use kvatlas_baselines::opstream::{Op, OpStream, Record};

use crate::index::cpu::{Meter, Sampler};
use crate::index::pace::{Clock, Pace, Spin};
use crate::index::target::{Scratch, Target};
use crate::latency::Latencies;

/// Without a pace, how many records the appliers may be behind.
const BEHIND_MAX: u64 = 4096;

/// How to play.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Plan {
    /// Records from the front that are applied before the trial.
    pub warm_records: u64,
    /// The time that the others take; 0: as fast as it goes.
    pub window_ms: u64,
    /// Threads that apply, at least one.
    pub appliers: u32,
    /// The design has writer threads of its own.
    pub queued: bool,
}

/// What a trial gave.
#[derive(Default)]
pub struct Played {
    /// When the last record was issued, ns from the start.
    pub issued_ns: u64,
    /// When the last event was applied.
    pub finished_ns: u64,
    /// How long the index took to settle afterwards.
    pub settle_ns: u64,
    /// Blocks asked for, stored and removed.
    pub block_ops: u64,
    /// Of look-ups: from call to return.
    pub lookup: Latencies,
    /// Of records: how long after their time they were issued.
    pub late: Latencies,
    /// Of events: from their time until they were applied; empty for a design with writers of its own.
    pub apply: Latencies,
    /// Processor time of stores and of removes, per block.
    pub store: Meter,
    /// As `store`.
    pub remove: Meter,
}

impl Played {
    /// Whether it kept up: all issued within 1.01 windows, all applied within 1.10.
    pub fn kept_up(&self, window_ms: u64) -> bool {
        let window_ns = window_ms as f64 * 1e6;
        window_ms > 0
            && self.issued_ns as f64 <= 1.01 * window_ns
            && self.finished_ns as f64 <= 1.10 * window_ns
    }
}

/// A word of its own cache line, that one thread moves on and others watch.
#[repr(align(128))]
#[derive(Default)]
struct Progress(AtomicU64);

/// Past every record; also what is left behind by a thread that ends, however it ends.
const OVER: u64 = u64::MAX;

impl Progress {
    fn at(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, records: u64) {
        self.0.store(records, Ordering::Release);
    }
}

/// Ends the waiting of others when the thread ends or panics.
struct OverAtEnd<'a>(&'a Progress);

impl Drop for OverAtEnd<'_> {
    fn drop(&mut self) {
        self.0.set(OVER);
    }
}

/// What the threads of a trial share.
struct Trial<'a> {
    stream: &'a OpStream,
    plan: &'a Plan,
    target: &'a dyn Target,
    pace: Pace,
    clock: Clock,
    /// All threads are there.
    ready: Barrier,
    /// When the first record is due, by `clock`; set before anything is issued.
    start_ns: AtomicU64,
    issued: Progress,
    applied: Vec<Progress>,
}

/// Plays the stream.
pub fn play(stream: &OpStream, target: &dyn Target, plan: &Plan) -> Played {
    warm(stream, target, plan);
    let first = stream.records().nth(plan.warm_records as usize);
    let from_ns = first.map_or(stream.span_ns(), |record| record.time_ns);
    let threads = if plan.queued { 0 } else { plan.appliers };
    let trial = Trial {
        stream,
        plan,
        target,
        pace: Pace::new(from_ns, stream.span_ns(), plan.window_ms),
        clock: Clock::start(),
        ready: Barrier::new(threads as usize + 1),
        start_ns: AtomicU64::new(0),
        issued: Progress::default(),
        applied: (0..threads).map(|_| Progress::default()).collect(),
    };
    let mut played = trial.run(threads);
    let before_ns = trial.clock.ns();
    target.settle();
    let settled_ns = trial.clock.ns();
    played.settle_ns = settled_ns - before_ns;
    if plan.queued {
        played.finished_ns = settled_ns - trial.start_ns.into_inner();
    }
    played
}

/// Applies what comes before the trial, in order, and lets the index rest.
fn warm(stream: &OpStream, target: &dyn Target, plan: &Plan) {
    let mut scratch = Scratch::default();
    for record in stream.records().take(plan.warm_records as usize) {
        apply(target, &mut scratch, &record);
    }
    if plan.warm_records > 0 {
        target.settle();
    }
}

fn apply(target: &dyn Target, scratch: &mut Scratch, record: &Record<'_>) {
    match record.op {
        Op::Query(_) => {}
        Op::Store { parent, chunks } => target.store(scratch, record.worker, parent, chunks),
        Op::Remove(hashes) => target.remove(record.worker, hashes),
    }
}

impl Trial<'_> {
    fn run(&self, threads: u32) -> Played {
        std::thread::scope(|scope| {
            let appliers: Vec<_> = (0..threads)
                .map(|lane| scope.spawn(move || self.apply_lane(lane)))
                .collect();
            let mut played = self.issue();
            for applier in appliers {
                match applier.join() {
                    Ok(applied) => played.take(&applied),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            played
        })
    }

    /// The records of the trial, each with its number.
    fn records(&self) -> impl Iterator<Item = (u64, Record<'_>)> {
        let warm = self.plan.warm_records;
        let mut records = self.stream.records();
        for _ in 0..warm {
            records.next();
        }
        (warm..).zip(records)
    }

    /// The issuing thread.
    fn issue(&self) -> Played {
        let _over = OverAtEnd(&self.issued);
        let mut played = Played::default();
        let mut scratch = Scratch::default();
        let records = self.records();
        self.ready.wait();
        let start_ns = self.clock.ns();
        self.start_ns.store(start_ns, Ordering::Relaxed);
        let mut now_ns = 0;
        for (number, record) in records {
            let due_ns = self.pace.due_ns(record.time_ns);
            if self.pace.is_paced() {
                let mut spin = Spin::default();
                while now_ns < due_ns {
                    spin.turn();
                    now_ns = self.clock.ns() - start_ns;
                }
                played.late.add_ns(now_ns - due_ns);
            } else {
                self.stay_near(number);
            }
            played.block_ops += record.op.hashes().len() as u64;
            match record.op {
                Op::Query(chunks) => {
                    let before_ns = self.clock.ns() - start_ns;
                    self.target.find(&mut scratch, chunks);
                    now_ns = self.clock.ns() - start_ns;
                    played.lookup.add_ns(now_ns - before_ns);
                }
                _ if self.plan.queued => apply(self.target, &mut scratch, &record),
                _ => self.issued.set(number + 1),
            }
        }
        played.issued_ns = self.clock.ns() - start_ns;
        played.finished_ns = played.issued_ns;
        played
    }

    /// Waits for appliers that are far behind, which nothing else makes the issuing thread do without
    /// a pace.
    fn stay_near(&self, number: u64) {
        let mut spin = Spin::default();
        while self
            .applied
            .iter()
            .any(|applied| applied.at().saturating_add(BEHIND_MAX) < number)
        {
            spin.turn();
        }
    }

    /// An applying thread: the events of every so many-th worker.
    fn apply_lane(&self, lane: u32) -> Played {
        let applied = &self.applied[lane as usize];
        let _over = OverAtEnd(applied);
        let mut played = Played::default();
        let mut scratch = Scratch::default();
        let mut sampler = Sampler::calibrated();
        let records = self.records();
        self.ready.wait();
        let mut known = 0;
        for (number, record) in records {
            let is_mine = record.worker % self.plan.appliers == lane;
            if record.op.kind() == 0 || !is_mine {
                continue;
            }
            let mut spin = Spin::default();
            while known <= number {
                known = self.issued.at();
                if known <= number {
                    spin.turn();
                }
            }
            let sample = sampler.begin();
            apply(self.target, &mut scratch, &record);
            let meter = if record.op.kind() == 1 {
                &mut played.store
            } else {
                &mut played.remove
            };
            sampler.end(sample, record.op.hashes().len(), meter);
            let start_ns = self.start_ns.load(Ordering::Relaxed);
            let now_ns = self.clock.ns() - start_ns;
            let due_ns = self.pace.due_ns(record.time_ns);
            played.apply.add_ns(now_ns.saturating_sub(due_ns));
            played.finished_ns = now_ns;
            applied.set(number + 1);
        }
        played
    }
}

impl Played {
    /// What an applier adds to what the issuing thread knows.
    fn take(&mut self, applied: &Self) {
        self.finished_ns = self.finished_ns.max(applied.finished_ns);
        self.apply.merge(&applied.apply);
        self.store.take(applied.store);
        self.remove.take(applied.remove);
    }
}
