//! One run: virtual time, and a queue of actions.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::check::{self, Failure};
use crate::counts::Counts;
use crate::engine::Engine;
use crate::log::Log;
use crate::plan::{BEAT_MS, Mutation, Plan, QUIET_MS, START_MS, TICK_MS};
use crate::publisher::Publisher;
use crate::recovery::Attempt;
use crate::replica::{Replica, index_bytes};
use crate::rng::Rng;
use crate::saved_states::State;
use crate::tree::Tree;

/// Interval at which a replica's answers are checked, and its recoveries begin.
pub(crate) const CHECK_MS: u64 = 150;
/// Blocks of an index: more than a run has, and fewer than under memory pressure.
const FEW_BLOCKS: u64 = 200;
const MANY_BLOCKS: u64 = 1_800;
/// Time from the end of the faults to the end of the memory pressure.
const PRESSURE_ENDS_MS: u64 = 500;

/// An action in the queue.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Action {
    Engine(usize),
    Follow(usize),
    Heartbeat(usize),
    Deliver(usize, usize),
    Read(usize, usize),
    Tick(usize),
    Recover(usize),
    Answer(usize, usize),
    Check(usize),
    SaveState(usize),
    Fault,
    PressureEnds,
    StartEngine(usize),
    StartPublisher(usize),
    EndReplica(usize),
    StartReplica(usize),
    ReplicaUp(usize),
}

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Report {
    /// Number of records appended to logs.
    pub appended: u64,
    /// Faults and their consequences, by kind.
    pub counts: Counts,
    /// Number of attempts to recover.
    pub attempts: u64,
    /// The violated invariant, if there is one.
    pub failure: Option<Failure>,
}

/// Runs one seed; `trace` is called with the time and the text of each step.
pub fn run(seed: u64, mutation: Option<Mutation>, trace: &mut dyn FnMut(u64, String)) -> Report {
    let mut rng = Rng::new(seed);
    let mut plan = Plan::draw(&mut rng);
    plan.mutation = mutation;
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
    /// Number of starts of each replica: answers to an earlier process are dropped.
    pub(crate) starts: Vec<u64>,
    /// A peer's state on its way to a replica that starts.
    pub(crate) arriving: Vec<Option<State>>,
    /// Number of times that small workers came.
    pub(crate) pressure_rounds: u64,
    pub(crate) attempts: Vec<Option<Attempt>>,
    pub(crate) queue: BinaryHeap<Reverse<(u64, u64, Action)>>,
    pub(crate) queued: u64,
    pub(crate) now_ms: u64,
    pub(crate) report: Report,
    pub(crate) tracer: &'a mut dyn FnMut(u64, String),
}

impl<'a> World<'a> {
    fn new(mut plan: Plan, mut rng: Rng, trace: &'a mut dyn FnMut(u64, String)) -> Self {
        if let Some(per_mille) = plan.memory_per_mille {
            let (few, many) = (index_bytes(FEW_BLOCKS), index_bytes(MANY_BLOCKS));
            let pressure_bytes = many.saturating_sub(few) * per_mille as usize / 1_000;
            plan.memory_bytes_max = few + pressure_bytes;
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
            starts: vec![0; replicas.len()],
            arriving: replicas.iter().map(|_| None).collect(),
            pressure_rounds: 0,
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
            tracer: trace,
        }
    }

    fn run(&mut self) -> Result<(), String> {
        for name in 0..self.plan.workers {
            self.after(self.plan.engine_ms, Action::Engine(name));
            self.begin_publisher(name);
        }
        for replica in 0..self.plan.replicas {
            self.begin_replica(replica);
        }
        self.after(self.plan.fault_ms, Action::Fault);
        let gone_ms = self.plan.busy_ms + PRESSURE_ENDS_MS;
        self.after(gone_ms, Action::PressureEnds);
        let end_ms = START_MS + self.plan.busy_ms + QUIET_MS;
        while let Some(Reverse((at_ms, _, next))) = self.queue.pop() {
            if at_ms > end_ms {
                break;
            }
            self.now_ms = at_ms;
            self.act(next)?;
        }
        let (workers, tree) = (self.plan.workers, &self.tree);
        let sources = (&self.engines[..], &self.publishers[..]);
        check::mirrors_are_exact(workers, sources, tree)?;
        for (name, replica) in self.replicas.iter_mut().enumerate() {
            check::replica_is_exact(replica, name, workers, sources, tree)?;
        }
        Ok(())
    }

    pub(crate) fn begin_publisher(&mut self, name: usize) {
        self.after(self.plan.follow_ms, Action::Follow(name));
        self.after(BEAT_MS, Action::Heartbeat(name));
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.now_ms < START_MS + self.plan.busy_ms
    }

    pub(crate) fn after(&mut self, ms: u64, next: Action) {
        self.queued += 1;
        let at_ms = self.now_ms.saturating_add(ms);
        self.queue.push(Reverse((at_ms, self.queued, next)));
    }

    pub(crate) fn trace(&mut self, what: impl FnOnce() -> String) {
        (self.tracer)(self.now_ms - START_MS, what());
    }

    fn begin_replica(&mut self, replica: usize) {
        for log in 0..self.plan.logs {
            self.after(1, Action::Read(replica, log));
        }
        self.after(TICK_MS, Action::Tick(replica));
        self.after(CHECK_MS, Action::Recover(replica));
        self.after(CHECK_MS, Action::Check(replica));
        if let Some(save_ms) = self.plan.save_ms {
            self.after(save_ms, Action::SaveState(replica));
        }
    }

    fn act(&mut self, next: Action) -> Result<(), String> {
        match next {
            Action::Engine(worker) => self.work(worker),
            Action::Follow(worker) => self.follow(worker),
            Action::Heartbeat(worker) => self.send_heartbeat(worker),
            Action::Deliver(worker, log) => self.deliver(worker, log),
            Action::Read(replica, log) => self.read(replica, log),
            Action::Tick(replica) => {
                self.replicas[replica].apply_delayed(&self.plan, self.now_ms);
                let counts = &mut self.report.counts;
                self.replicas[replica].tick(TICK_MS, &self.plan, counts, self.now_ms);
                self.after(TICK_MS, Action::Tick(replica));
            }
            Action::Recover(replica) => self.recover(replica),
            Action::Answer(replica, attempt) => self.on_answer(replica, attempt),
            Action::Check(replica) => return self.check(replica),
            Action::SaveState(replica) => self.save_state(replica),
            Action::Fault => self.inject_fault(),
            Action::PressureEnds => self.end_memory_pressure(),
            Action::StartEngine(worker) => {
                self.trace(|| format!("engine {worker} starts"));
                self.engines[worker].start(self.now_ms);
            }
            Action::StartPublisher(worker) => self.start_publisher(worker),
            Action::EndReplica(replica) => self.kill_by_system(replica),
            Action::StartReplica(replica) => self.start_replica(replica),
            Action::ReplicaUp(replica) => return self.bring_replica_up(replica),
        }
        Ok(())
    }
}
