//! One trial: a stream played on an index, open loop.
//!
//! One thread issues: it waits for each record's time, looks queries up itself, and publishes how far
//! it has come, in one word. The applying threads walk the same records in memory, and each applies the
//! published records of its workers. So nothing is copied or queued, and each worker's order is kept. A
//! design with writer threads of its own gets its events from the issuing thread instead. These paths
//! do not allocate, and their only system call is the clock.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use kvatlas_baselines::stream::{Op, OpStream, Record};

use crate::index::cpu::Sampler;
use crate::index::schedule::{Clock, Schedule, Spin};
use crate::index::target::{Scratch, Target};
use crate::index::trial_result::{TrialResult, even_lag};

/// Largest number of waiting records that are applied in one call.
const BATCH: usize = 64;
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

/// A word of its own cache line, that one thread moves on and others watch.
#[repr(align(128))]
struct Progress(AtomicU64);

impl From<u64> for Progress {
    fn from(records: u64) -> Self {
        Self(AtomicU64::new(records))
    }
}

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

/// The data that the threads of a trial share.
struct Trial<'a> {
    stream: &'a OpStream,
    plan: &'a Plan,
    target: &'a dyn Target,
    pace: Schedule,
    clock: Clock,
    /// All threads are there.
    ready: Barrier,
    /// When the first record is due, by `clock`; set before anything is issued.
    start_ns: AtomicU64,
    issued: Progress,
    applied: Vec<Progress>,
}

/// Plays the stream.
pub fn play(stream: &OpStream, target: &dyn Target, plan: &Plan) -> TrialResult {
    warm(stream, target, plan);
    let first = stream.records().nth(plan.warm_records as usize);
    let from_ns = first.map_or(stream.span_ns(), |record| record.time_ns);
    let threads = if plan.queued { 0 } else { plan.appliers };
    let trial = Trial {
        stream,
        plan,
        target,
        pace: Schedule::new(from_ns, stream.span_ns(), plan.window_ms),
        clock: Clock::start(),
        ready: Barrier::new(threads as usize + 1),
        start_ns: AtomicU64::new(0),
        issued: Progress::from(plan.warm_records),
        applied: (0..threads)
            .map(|_| Progress::from(plan.warm_records))
            .collect(),
    };
    let mut played = trial.run(threads);
    if let (1, true, Some(ns)) = (threads, trial.pace.is_paced(), played.write.ns_per_block()) {
        let events = trial.records().filter(|(_, record)| record.op.kind() != 0);
        played.even = even_lag(
            events.map(|(_, record)| {
                let due_ns = trial.pace.due_ns(record.time_ns);
                (due_ns, record.op.hashes().len())
            }),
            ns,
        );
    }
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
        target.apply(&mut scratch, &[record]);
    }
    if plan.warm_records > 0 {
        target.settle();
    }
}

impl Trial<'_> {
    fn run(&self, threads: u32) -> TrialResult {
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
    fn issue(&self) -> TrialResult {
        let _over = OverAtEnd(&self.issued);
        let mut played = TrialResult::default();
        let [lookups, ..] = self.stream.totals().records;
        played.deepest.reserve(lookups as usize);
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
                    played.deepest.extend(self.target.deepest(&scratch));
                }
                _ if self.plan.queued => self.target.apply(&mut scratch, &[record]),
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

    /// An applying thread: applies the events of its share of the workers.
    fn apply_lane(&self, lane: u32) -> TrialResult {
        let applied = &self.applied[lane as usize];
        let _over = OverAtEnd(applied);
        let mut played = TrialResult::default();
        let mut scratch = Scratch::default();
        let mut sampler = Sampler::calibrated();
        let is_mine = |(_, record): &(u64, Record<'_>)| {
            record.op.kind() != 0 && record.worker % self.plan.appliers == lane
        };
        let mut records = self.records().filter(is_mine).peekable();
        let mut batch = Vec::with_capacity(BATCH);
        self.ready.wait();
        let mut known = 0;
        while let Some(&(first, _)) = records.peek() {
            let mut spin = Spin::default();
            while known <= first {
                known = self.issued.at();
                if known <= first {
                    spin.turn();
                }
            }
            // The records announced meanwhile go into one call, like a message from the log.
            let mut last = first;
            batch.clear();
            while batch.len() < BATCH
                && let Some((number, record)) = records.next_if(|&(number, _)| number < known)
            {
                batch.push(record);
                last = number;
            }
            let blocks = batch.iter().map(|record| record.op.hashes().len()).sum();
            let sample = sampler.begin();
            self.target.apply(&mut scratch, &batch);
            sampler.end(sample, blocks, &mut played.write);
            let now_ns = self.clock.ns() - self.start_ns.load(Ordering::Relaxed);
            for record in &batch {
                let due_ns = self.pace.due_ns(record.time_ns);
                played.apply.add_ns(now_ns.saturating_sub(due_ns));
            }
            played.finished_ns = now_ns;
            applied.set(last + 1);
        }
        played
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::target::{Options, make};
    use crate::index::verify::verify;
    use kvatlas_baselines::catalogue::{DESIGNS, named};
    use kvatlas_baselines::stream::synthetic::{self, synthesize};

    fn stream() -> OpStream {
        synthesize(&synthetic::Plan {
            workers: 7,
            prompts: 600,
            capacity: 150,
            ..synthetic::Plan::SMALL
        })
        .unwrap()
    }

    const PLAIN: Options = Options {
        limit: 0,
        pairs: true,
        exact: false,
        sized_for: None,
        kept_for: None,
    };

    const AT_ONCE: Plan = Plan {
        warm_records: 0,
        window_ms: 0,
        appliers: 1,
        queued: false,
    };

    #[test]
    fn every_exact_design_answers_rightly_after_a_trial() {
        let stream = stream();
        for design in DESIGNS.iter().filter(|design| design.exact) {
            for (warm_records, appliers) in [(0, 1), (700, 2)] {
                let target = make(design, &PLAIN, 7).unwrap();
                let plan = Plan {
                    warm_records,
                    appliers,
                    queued: design.queued,
                    ..AT_ONCE
                };
                let played = play(&stream, &*target, &plan);
                let later = || stream.records().skip(warm_records as usize);
                let events = later().filter(|record| record.op.kind() != 0).count();
                let blocks: usize = later().map(|record| record.op.hashes().len()).sum();
                let applied = if design.queued { 0 } else { events };
                assert_eq!(played.apply.total(), applied as u64, "{}", design.name);
                assert_eq!(played.lookup.total(), (later().count() - events) as u64);
                assert_eq!(played.block_ops, blocks as u64);
                assert!(played.finished_ns >= played.issued_ns);
                assert_eq!(
                    verify(&stream, &*target, 300, 0),
                    Ok(300),
                    "{}",
                    design.name
                );
            }
        }
    }

    #[test]
    fn the_deepest_match_is_told_of_every_answer() {
        let stream = stream();
        let target = make(&named("flat index").unwrap(), &PLAIN, 7).unwrap();
        let played = play(&stream, &*target, &AT_ONCE);
        assert_eq!(played.deepest.len() as u64, played.lookup.total());
        let mut scratch = Scratch::default();
        for record in stream.records() {
            if let Op::Query(chunks) = record.op {
                target.find(&mut scratch, chunks);
                let found = target.found(&scratch);
                let deepest = found.iter().map(|&(_, depth)| depth).max();
                assert_eq!(target.deepest(&scratch), Some(deepest.unwrap_or(0)));
            }
        }
    }

    #[test]
    fn what_only_the_flat_index_can_be_told_leaves_its_answers_right() {
        let stream = stream();
        let flat = named("flat index").unwrap();
        let options = Options {
            limit: 3,
            exact: true,
            pairs: false,
            sized_for: Some(10_000),
            kept_for: None,
        };
        let target = make(&flat, &options, 7).unwrap();
        play(&stream, &*target, &AT_ONCE);
        assert_eq!(verify(&stream, &*target, 300, 3), Ok(300));
        assert!(
            verify(&stream, &*target, 300, 0).is_err(),
            "3 of 7 are not all"
        );
    }

    #[test]
    fn nothing_is_issued_before_its_time() {
        let stream = stream();
        let target = make(&DESIGNS[0], &PLAIN, 7).unwrap();
        let paced = Plan {
            window_ms: 20,
            ..AT_ONCE
        };
        let played = play(&stream, &*target, &paced);
        assert!(played.issued_ns >= 20_000_000);
        assert_eq!(played.late.total(), stream.records().count() as u64);
    }

    /// An index that does not hear of some removals.
    struct HardOfHearing(Box<dyn Target>);

    impl Target for HardOfHearing {
        fn store(&self, scratch: &mut Scratch, worker: u32, parent: Option<u64>, chunks: &[u64]) {
            self.0.store(scratch, worker, parent, chunks);
        }
        fn remove(&self, worker: u32, hashes: &[u64]) {
            if worker != 3 {
                self.0.remove(worker, hashes);
            }
        }
        fn find(&self, scratch: &mut Scratch, chunks: &[u64]) {
            self.0.find(scratch, chunks);
        }
        fn found(&self, scratch: &Scratch) -> Vec<(u32, u32)> {
            self.0.found(scratch)
        }
        fn settle(&self) {
            self.0.settle();
        }
        fn accounted_bytes(&self) -> Option<usize> {
            self.0.accounted_bytes()
        }
    }

    #[test]
    fn an_index_that_misses_events_is_found_out() {
        let stream = stream();
        let flat = named("flat index").unwrap();
        let target = HardOfHearing(make(&flat, &PLAIN, 7).unwrap());
        play(&stream, &target, &AT_ONCE);
        let difference = verify(&stream, &target, 300, 0).unwrap_err();
        assert!(difference.contains("wrong: worker 3"), "{difference}");
    }

    #[test]
    #[should_panic(expected = "remove of worker")]
    fn a_panic_of_the_index_ends_the_trial() {
        struct Breaks;
        impl Target for Breaks {
            fn store(&self, _: &mut Scratch, _: u32, _: Option<u64>, _: &[u64]) {}
            fn remove(&self, worker: u32, _: &[u64]) {
                panic!("remove of worker {worker}");
            }
            fn find(&self, _: &mut Scratch, _: &[u64]) {}
            fn found(&self, _: &Scratch) -> Vec<(u32, u32)> {
                Vec::new()
            }
            fn settle(&self) {}
            fn accounted_bytes(&self) -> Option<usize> {
                None
            }
        }
        play(&stream(), &Breaks, &AT_ONCE);
    }
}
