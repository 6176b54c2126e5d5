//! One run: virtual time, and one queue of what happens next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::asking::Attempt;
use crate::check::{self, Failure};
use crate::engine::Engine;
use crate::keeping::State;
use crate::log::Log;
use crate::plan::{BEAT_MS, Plan, QUIET_MS, START_MS, TICK_MS, Without};
use crate::publisher::Publisher;
use crate::replica::{Replica, index_bytes};
use crate::rng::Rng;
use crate::tally::Tally;
use crate::tree::Tree;

/// Between two looks at a replica's answers, and at the workers that lack records.
pub(crate) const LOOK_MS: u64 = 150;
/// More than there are in a run, and fewer than with the neighbours.
const FEW_BLOCKS: u64 = 200;
const MANY_BLOCKS: u64 = 1_800;
/// After the faults have stopped, until the neighbours have gone.
const NEIGHBOURS_GONE_MS: u64 = 500;

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
    Keep(usize),
    Fault,
    NeighboursGone,
    StartEngine(usize),
    StartPublisher(usize),
    EndReplica(usize),
    StartReplica(usize),
    UpReplica(usize),
}

/// What a run was like.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Report {
    /// Records appended to logs.
    pub appended: u64,
    /// What was done to it, and what came of it, by kind.
    pub tally: Tally,
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
    /// A peer's state on its way to a replica that starts.
    pub(crate) arriving: Vec<Option<State>>,
    /// How often neighbours came.
    pub(crate) neighbours: u64,
    pub(crate) attempts: Vec<Option<Attempt>>,
    pub(crate) queue: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    pub(crate) queued: u64,
    pub(crate) now_ms: u64,
    pub(crate) report: Report,
    pub(crate) trace: &'a mut dyn FnMut(u64, String),
}

impl<'a> World<'a> {
    fn new(mut plan: Plan, mut rng: Rng, trace: &'a mut dyn FnMut(u64, String)) -> Self {
        if let Some(per_mille) = plan.room_per_mille {
            let (few, many) = (index_bytes(FEW_BLOCKS), index_bytes(MANY_BLOCKS));
            let room_bytes = many.saturating_sub(few) * per_mille as usize / 1_000;
            plan.memory_bytes_max = few + room_bytes;
        }
        let tree = Tree::grow(&mut rng);
        let engines = (0..plan.workers).map(|_| Engine::new(&mut rng)).collect();
        let publishers = (0..plan.workers)
            .map(|name| Publisher::new(name, name as u64, name, &plan, &mut rng))
            .collect();
        let logs = (0..plan.logs)
            .map(|_| Log::new(plan.log_records, plan.skew(&mut rng)))
            .collect();
        let replicas: Vec<Replica> = (0..plan.replicas)
            .map(|_| Replica::start(&plan, plan.skew(&mut rng)))
            .collect();
        Self {
            lives: vec![0; replicas.len()],
            arriving: replicas.iter().map(|_| None).collect(),
            neighbours: 0,
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
        for name in 0..self.plan.workers {
            self.after(self.plan.engine_ms, Happening::Engine(name));
            self.begin_publisher(name);
        }
        for replica in 0..self.plan.replicas {
            self.begin_replica(replica);
        }
        self.after(self.plan.fault_ms, Happening::Fault);
        let gone_ms = self.plan.busy_ms + NEIGHBOURS_GONE_MS;
        self.after(gone_ms, Happening::NeighboursGone);
        let end_ms = START_MS + self.plan.busy_ms + QUIET_MS;
        while let Some(Reverse((at_ms, _, next))) = self.queue.pop() {
            if at_ms > end_ms {
                break;
            }
            self.now_ms = at_ms;
            self.happen(next)?;
        }
        let (workers, tree) = (self.plan.workers, &self.tree);
        let voices = (&self.engines[..], &self.publishers[..]);
        check::mirrored(workers, voices, tree)?;
        for (name, replica) in self.replicas.iter_mut().enumerate() {
            check::healed(replica, name, workers, voices, tree)?;
        }
        Ok(())
    }

    pub(crate) fn begin_publisher(&mut self, name: usize) {
        self.after(self.plan.follow_ms, Happening::Follow(name));
        self.after(BEAT_MS, Happening::Beat(name));
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
        if let Some(keep_ms) = self.plan.keep_ms {
            self.after(keep_ms, Happening::Keep(replica));
        }
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
                let tally = &mut self.report.tally;
                self.replicas[replica].tick(TICK_MS, &self.plan, tally, self.now_ms);
                self.after(TICK_MS, Happening::Tick(replica));
            }
            Happening::Recover(replica) => self.recover(replica),
            Happening::Answer(replica, attempt) => self.go_on(replica, attempt),
            Happening::Probe(replica) => return self.probe(replica),
            Happening::Keep(replica) => self.keep(replica),
            Happening::Fault => self.fail(),
            Happening::NeighboursGone => self.leave_neighbours(),
            Happening::StartEngine(worker) => {
                self.tell(|| format!("engine {worker} starts"));
                self.engines[worker].start(self.now_ms);
            }
            Happening::StartPublisher(worker) => self.start_publisher(worker),
            Happening::EndReplica(replica) => self.run_short(replica),
            Happening::StartReplica(replica) => self.start_replica(replica),
            Happening::UpReplica(replica) => return self.up_replica(replica),
        }
        Ok(())
    }
}
