//! One run: virtual time, one queue of what happens next, and what goes wrong meanwhile.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use kvatlas_cell::WorkerNeed;

use crate::check::{self, Failure};
use crate::engine::Engine;
use crate::log::{Log, Record};
use crate::outlet::Next;
use crate::plan::{BEAT_MS, Plan, QUIET_MS, START_MS, TICK_MS, Without};
use crate::publisher::{Answer, Publisher};
use crate::replica::Replica;
use crate::rng::Rng;
use crate::tree::Tree;

/// Between two looks at a replica's answers, and at the workers that lack records.
const LOOK_MS: u64 = 150;
/// Between two reads of a log, once the faults have stopped.
const QUIET_READ_MS: u64 = 25;
/// A call to a publisher, one way.
const CALL_MS_MAX: u64 = 60;

/// What happens next.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Happening {
    Engine(usize),
    Follow(usize),
    Beat(usize),
    Deliver(usize, usize),
    Read(usize, usize),
    Tick(usize),
    Recover(usize),
    Answer(usize, usize),
    Probe(usize),
    Fault,
    StartEngine(usize),
    StartPublisher(usize),
    StartReplica(usize),
}

/// An attempt of a recovery on its way.
#[derive(Debug)]
pub(crate) struct Attempt {
    need: WorkerNeed,
    life: u64,
    /// None: the call is on its way; records: its answer is.
    answer: Option<Vec<Record>>,
    asks_snapshot: bool,
}

/// What a run was like.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Report {
    /// Records appended to logs.
    pub appended: u64,
    /// Crashes, outages, lost data.
    pub faults: u64,
    /// Attempts to recover.
    pub attempts: u64,
    /// What did not hold, if anything.
    pub failure: Option<Failure>,
}

/// Run one seed; `trace` is told what happens.
pub fn run(seed: u64, without: Option<Without>, trace: &mut dyn FnMut(u64, String)) -> Report {
    let mut rng = Rng::new(seed);
    let mut plan = Plan::draw(&mut rng);
    plan.without = without;
    trace(0, format!("{plan:?}"));
    let mut world = World::new(plan, rng, trace);
    let failure = world.run().err().map(|what| Failure {
        at_ms: world.now_ms - START_MS,
        what,
    });
    Report {
        failure,
        ..world.report
    }
}

pub(crate) struct World<'a> {
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) tree: Tree,
    pub(crate) engines: Vec<Engine>,
    pub(crate) publishers: Vec<Publisher>,
    pub(crate) logs: Vec<Log>,
    pub(crate) replicas: Vec<Replica>,
    /// How often each replica started: what was asked for by an earlier one finds nobody.
    pub(crate) lives: Vec<u64>,
    pub(crate) attempts: Vec<Option<Attempt>>,
    pub(crate) queue: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    pub(crate) queued: u64,
    pub(crate) now_ms: u64,
    pub(crate) report: Report,
    pub(crate) trace: &'a mut dyn FnMut(u64, String),
}

impl<'a> World<'a> {
    fn new(plan: Plan, mut rng: Rng, trace: &'a mut dyn FnMut(u64, String)) -> Self {
        let tree = Tree::grow(&mut rng);
        let engines = (0..plan.workers).map(|_| Engine::new(&mut rng)).collect();
        let publishers = (0..plan.workers as u64)
            .map(|worker| {
                let skew_ms = plan.skew(&mut rng);
                Publisher::new(worker, &plan, skew_ms, &mut rng)
            })
            .collect();
        let logs = (0..plan.logs)
            .map(|_| Log::new(plan.log_records, plan.skew(&mut rng)))
            .collect();
        let replicas: Vec<Replica> = (0..plan.replicas)
            .map(|_| Replica::start(&plan, plan.skew(&mut rng)))
            .collect();
        Self {
            lives: vec![0; replicas.len()],
            attempts: Vec::new(),
            queue: BinaryHeap::new(),
            queued: 0,
            now_ms: START_MS,
            report: Report::default(),
            plan,
            rng,
            tree,
            engines,
            publishers,
            logs,
            replicas,
            trace,
        }
    }

    fn run(&mut self) -> Result<(), String> {
        for worker in 0..self.plan.workers {
            self.after(self.plan.engine_ms, Happening::Engine(worker));
            self.after(self.plan.follow_ms, Happening::Follow(worker));
            self.after(BEAT_MS, Happening::Beat(worker));
        }
        for replica in 0..self.plan.replicas {
            self.begin_replica(replica);
        }
        self.after(self.plan.fault_ms, Happening::Fault);
        let end_ms = START_MS + self.plan.busy_ms + QUIET_MS;
        while let Some(Reverse((at_ms, _, next))) = self.queue.pop() {
            if at_ms > end_ms {
                break;
            }
            self.now_ms = at_ms;
            self.happen(next)?;
        }
        for name in 0..self.replicas.len() {
            check::healed(
                &mut self.replicas[name],
                name,
                &self.engines,
                &self.publishers,
                &self.tree,
            )?;
        }
        Ok(())
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.now_ms < START_MS + self.plan.busy_ms
    }

    pub(crate) fn after(&mut self, ms: u64, next: Happening) {
        self.queued += 1;
        let at_ms = self.now_ms.saturating_add(ms);
        self.queue.push(Reverse((at_ms, self.queued, next)));
    }

    pub(crate) fn tell(&mut self, what: impl FnOnce() -> String) {
        (self.trace)(self.now_ms - START_MS, what());
    }

    fn begin_replica(&mut self, replica: usize) {
        for log in 0..self.plan.logs {
            self.after(1, Happening::Read(replica, log));
        }
        self.after(TICK_MS, Happening::Tick(replica));
        self.after(LOOK_MS, Happening::Recover(replica));
        self.after(LOOK_MS, Happening::Probe(replica));
    }

    fn happen(&mut self, next: Happening) -> Result<(), String> {
        match next {
            Happening::Engine(worker) => self.work(worker),
            Happening::Follow(worker) => self.follow(worker),
            Happening::Beat(worker) => self.beat(worker),
            Happening::Deliver(worker, log) => self.deliver(worker, log),
            Happening::Read(replica, log) => self.read(replica, log),
            Happening::Tick(replica) => {
                self.replicas[replica].arrive(&self.plan, self.now_ms);
                self.replicas[replica].tick(TICK_MS, self.now_ms);
                self.after(TICK_MS, Happening::Tick(replica));
            }
            Happening::Recover(replica) => self.recover(replica),
            Happening::Answer(replica, attempt) => self.go_on(replica, attempt),
            Happening::Probe(replica) => return self.probe(replica),
            Happening::Fault => self.fail(),
            Happening::StartEngine(worker) => {
                self.tell(|| format!("engine {worker} starts"));
                self.engines[worker].start(self.now_ms);
            }
            Happening::StartPublisher(worker) => self.start_publisher(worker),
            Happening::StartReplica(replica) => {
                self.replicas[replica].up = true;
                self.tell(|| format!("replica {replica} starts"));
            }
        }
        Ok(())
    }

    // --- the publishers' side ---

    fn work(&mut self, worker: usize) {
        if self.is_busy() {
            if self.engines[worker].up {
                self.engines[worker].work(&self.tree, &mut self.rng, self.now_ms);
            }
            let pause_ms = self.rng.between(1, 2 * self.plan.engine_ms);
            self.after(pause_ms, Happening::Engine(worker));
        }
    }

    fn follow(&mut self, worker: usize) {
        let publisher = &mut self.publishers[worker];
        if publisher.up && !publisher.left {
            publisher.follow(&self.engines[worker], &self.plan, &self.tree, self.now_ms);
        }
        self.wake(worker);
        self.after(self.plan.follow_ms, Happening::Follow(worker));
    }

    fn beat(&mut self, worker: usize) {
        let publisher = &mut self.publishers[worker];
        if publisher.up && !publisher.left {
            publisher.beat(&self.plan, &self.tree);
        }
        self.wake(worker);
        self.after(BEAT_MS, Happening::Beat(worker));
    }

    /// Deliveries that sleep look again for something to do.
    fn wake(&mut self, worker: usize) {
        for log in 0..self.publishers[worker].outlets.len() {
            let outlet = &mut self.publishers[worker].outlets[log];
            if !std::mem::replace(&mut outlet.awake, true) {
                self.after(1, Happening::Deliver(worker, log));
            }
        }
    }

    fn deliver(&mut self, worker: usize, log: usize) {
        let publisher = &mut self.publishers[worker];
        if !publisher.up {
            return;
        }
        publisher.seal(&self.plan, &self.tree);
        let faulty = self.now_ms < START_MS + self.plan.busy_ms;
        let loses_ack = faulty && self.rng.chance(self.plan.lost_ack_per_mille);
        let snapshot = publisher.snapshot_of_this_moment(&self.plan, &self.tree);
        let before = self.logs[log].head();
        let outlet = &mut publisher.outlets[log];
        let next = outlet.step(
            &mut self.logs[log],
            || snapshot,
            loses_ack,
            &mut self.rng,
            self.now_ms,
        );
        outlet.awake = next != Next::Idle;
        self.report.appended += self.logs[log].head().saturating_sub(before);
        if let Next::After(ms) = next {
            self.after(ms, Happening::Deliver(worker, log));
        }
    }

    fn start_publisher(&mut self, worker: usize) {
        let engine = &mut self.engines[worker];
        let publisher = &mut self.publishers[worker];
        let kept_all = self.rng.chance(700);
        let lost = (!kept_all && engine.up).then_some((engine.generation, engine.stream.len()));
        publisher.start(lost, &self.plan, &mut self.rng);
        let (kept, place) = publisher.resume(engine, &self.plan, &self.tree, self.now_ms);
        engine.follow_from(kept, place, &self.tree, self.now_ms);
        self.tell(|| {
            format!(
                "publisher {worker} starts; history lost: {}",
                lost.is_some()
            )
        });
    }

    // --- the replicas' side ---

    fn read(&mut self, replica: usize, log: usize) {
        if self.replicas[replica].up {
            let faulty = self.is_busy();
            self.replicas[replica].read(
                log,
                &self.logs[log],
                &self.plan,
                faulty,
                &mut self.rng,
                self.now_ms,
            );
        }
        // A replica that is slow for ever need not catch up; after the faults it has no reason to be.
        let read_ms = if self.is_busy() {
            self.plan.read_ms
        } else {
            QUIET_READ_MS
        };
        let pause_ms = self.rng.between(1, 2 * read_ms);
        self.after(pause_ms, Happening::Read(replica, log));
    }

    fn recover(&mut self, replica: usize) {
        self.after(LOOK_MS, Happening::Recover(replica));
        if !self.replicas[replica].may_recover() {
            return;
        }
        let needs = self.replicas[replica].cell.needs(256, None);
        let recovery = &mut self.replicas[replica].recovery;
        for need in recovery.due(needs, &mut self.rng, self.now_ms) {
            self.report.attempts += 1;
            self.tell(|| format!("replica {replica} recovers {need:?}"));
            let asks_snapshot = need.applied >= need.known;
            self.call(
                replica,
                Attempt {
                    need,
                    life: self.lives[replica],
                    answer: None,
                    asks_snapshot,
                },
            );
        }
    }

    fn call(&mut self, replica: usize, attempt: Attempt) {
        self.attempts.push(Some(attempt));
        let ms = self.rng.between(1, CALL_MS_MAX);
        self.after(ms, Happening::Answer(replica, self.attempts.len() - 1));
    }

    /// A call has come to its publisher, or its answer has come back.
    fn go_on(&mut self, replica: usize, number: usize) {
        let Some(mut attempt) = self.attempts[number].take() else {
            return;
        };
        if attempt.life != self.lives[replica] || !self.replicas[replica].up {
            return;
        }
        let key = attempt.need.key;
        let is_lost = self.is_busy() && self.rng.chance(self.plan.lost_answer_per_mille);
        let Some(records) = attempt.answer.take() else {
            match self.ask(&attempt) {
                Answer::Records(records) if !is_lost => {
                    attempt.answer = Some(records);
                    self.call(replica, attempt);
                }
                Answer::Declined if !attempt.asks_snapshot => {
                    attempt.asks_snapshot = true;
                    self.call(replica, attempt);
                }
                _ => self.end_attempt(replica, key),
            }
            return;
        };
        self.replicas[replica].take_answer(&records, &self.plan, self.now_ms);
        let lacks = self.replicas[replica].cell.need_of(key).is_some();
        if lacks && !attempt.asks_snapshot {
            attempt.asks_snapshot = true;
            self.call(replica, attempt);
        } else {
            self.end_attempt(replica, key);
        }
    }

    fn ask(&mut self, attempt: &Attempt) -> Answer {
        let need = &attempt.need;
        let publisher = &mut self.publishers[need.key.worker_id as usize];
        if !publisher.up || publisher.left {
            Answer::Unreachable
        } else if attempt.asks_snapshot {
            publisher.snapshot(&self.plan, &self.tree)
        } else {
            publisher.replay(need.epoch, need.applied + 1, &self.plan, &self.tree)
        }
    }

    fn end_attempt(&mut self, replica: usize, key: kvatlas_index::WorkerKey) {
        let recovery = &mut self.replicas[replica].recovery;
        recovery.ended(key, &mut self.rng, self.now_ms);
    }

    fn probe(&mut self, replica: usize) -> Result<(), String> {
        self.after(LOOK_MS, Happening::Probe(replica));
        if !self.replicas[replica].is_ready() {
            return Ok(());
        }
        let block = self.rng.below(self.tree.len());
        let (engines, tree) = (&self.engines, &self.tree);
        check::credits(&mut self.replicas[replica], replica, engines, tree, block)
    }
}
