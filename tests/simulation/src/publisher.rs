//! A publisher process: follows one engine through its lives, and answers who lost records.

use std::collections::BTreeSet;

use kvatlas_wire::v1::shutdown::Reason;

use crate::engine::{Cache, Engine};
use crate::life::{Kept, Life};
use crate::log::Record;
use crate::outlet::Outlet;
use crate::plan::Plan;
use crate::record::Speaker;
use crate::rng::Rng;
use crate::tree::Tree;

/// How long an engine may be silent before its publisher says that it is gone.
const ENGINE_GONE_MS: u64 = 1_000;

/// What outlives a process that has a state directory.
#[derive(Clone, Debug)]
struct Checkpoint {
    generation: u32,
    place: usize,
    kept: Kept,
    epoch: u64,
}

/// Who an asker finds at a publisher's address.
#[derive(Debug)]
pub enum Answer {
    /// Records.
    Records(Vec<Record>),
    /// It is not there, or has no life to speak of.
    Unreachable,
    /// It does not have that.
    Declined,
}

/// One publisher.
#[derive(Debug)]
pub struct Publisher {
    name: usize,
    /// For whom it speaks.
    pub worker: u64,
    /// Which engine it follows.
    pub engine: usize,
    /// It runs.
    pub up: bool,
    /// It has left, or was told of a rival, and nobody starts it again.
    pub left: bool,
    /// The life that runs.
    pub life: Option<Life>,
    ended: Option<Life>,
    /// One per log, and then one per replica if it pushes to these.
    pub outlets: Vec<Outlet>,
    generation: u32,
    place: usize,
    /// What was known of the engine's cache where it began to follow, and from where on it hears all.
    base: (Cache, usize),
    engine_seen_ms: u64,
    instance: u64,
    highest_epoch: u64,
    own_epochs: BTreeSet<u64>,
    skew_ms: i64,
    checkpoint: Option<Checkpoint>,
}

impl Publisher {
    /// Running; it has heard of nothing.
    #[must_use]
    pub fn new(name: usize, worker: u64, engine: usize, plan: &Plan, rng: &mut Rng) -> Self {
        let mut publisher = Self {
            name,
            worker,
            engine,
            up: false,
            left: false,
            life: None,
            ended: None,
            outlets: Vec::new(),
            generation: 0,
            place: 0,
            base: (Cache::default(), 0),
            engine_seen_ms: 0,
            instance: 0,
            highest_epoch: 0,
            own_epochs: BTreeSet::new(),
            skew_ms: plan.skew(rng),
            checkpoint: None,
        };
        publisher.start(None, plan, rng);
        publisher
    }

    /// Follow the engine: hear what it told, and say it.
    pub fn follow(&mut self, engine: &Engine, plan: &Plan, tree: &Tree, now_ms: u64) {
        if engine.up {
            self.engine_seen_ms = now_ms;
        } else {
            if self.life.is_some() && now_ms - self.engine_seen_ms > ENGINE_GONE_MS {
                self.end(Reason::EngineGone, plan);
            }
            return;
        }
        if engine.generation != self.generation {
            self.seal(plan);
            let is_restart = self.generation != 0;
            self.generation = engine.generation;
            self.begin_at(0, plan, now_ms);
            if is_restart {
                self.beat(plan); // what the old life held is gone: do not wait to say so
            }
        } else if self.life.is_none() {
            self.begin_at(0, plan, now_ms);
        }
        let told = &engine.stream[self.place.min(engine.stream.len())..];
        self.place = engine.stream.len();
        if let Some(life) = &mut self.life {
            for message in told {
                life.hear(message, tree, plan.without);
            }
        }
        self.seal(plan);
    }

    /// Say that it lives.
    pub fn beat(&mut self, plan: &Plan) {
        self.seal(plan);
        if let Some(life) = &self.life {
            let record = life.heartbeat();
            for outlet in &mut self.outlets {
                outlet.push_heartbeat(&record);
            }
        }
    }

    /// Keep what a later process may go on with.
    pub fn keep(&mut self, plan: &Plan) {
        self.seal(plan);
        if let Some(life) = self.life.as_ref().filter(|_| plan.checkpoints) {
            self.checkpoint = Some(Checkpoint {
                generation: self.generation,
                place: self.place,
                kept: life.keep(),
                epoch: life.speaker.epoch,
            });
        }
    }

    /// It leaves in order; its last words are queued.
    pub fn leave(&mut self, plan: &Plan) {
        self.left = true;
        if self.life.is_some() {
            self.end(Reason::PublisherLeaving, plan);
        }
    }

    /// It is killed.
    pub fn crash(&mut self) {
        self.up = false;
        (self.life, self.ended) = (None, None);
        self.outlets.clear();
    }

    /// A receiver has told it that its worker is in this epoch; true: that is a rival's, and it exits.
    pub fn is_fenced_by(&mut self, epoch: u64) -> bool {
        let is_rival = !self.own_epochs.contains(&epoch);
        if is_rival {
            self.left = true;
            self.crash();
        }
        is_rival
    }

    /// It starts. With memory, it goes on from its checkpoint; without, from the beginning of the engine's
    /// stream, or, if `lost` says where the engine's own history begins by now, from there.
    pub fn start(&mut self, lost: Option<(u32, usize)>, plan: &Plan, rng: &mut Rng) {
        self.up = true;
        self.instance = rng.any();
        self.own_epochs.clear();
        let to_logs = (0..plan.logs).map(|_| None);
        let to_replicas = (0..plan.replicas).filter(|_| plan.direct).map(Some);
        let outlets = to_logs.chain(to_replicas);
        self.outlets = outlets
            .map(|replica| Outlet::new(plan.outbox_records, replica))
            .collect();
        (self.generation, self.place) = (0, 0);
        self.base = (Cache::default(), 0);
        if let Some(checkpoint) = &self.checkpoint {
            self.highest_epoch = checkpoint.epoch;
        }
        if let Some((generation, place)) = lost {
            (self.generation, self.place) = (generation, place);
            self.base = (Cache::default(), place);
            self.checkpoint = None;
        }
    }

    /// Begin the life that a started process has before it hears of anything, if it can know by
    /// itself that the engine is the one that it remembers. True: it goes on from its checkpoint.
    pub fn resume(&mut self, engine: &Engine, plan: &Plan, now_ms: u64) -> bool {
        if !engine.up {
            (self.generation, self.place) = (0, 0);
            self.base = (Cache::default(), 0);
            return false;
        }
        let checkpoint = self.checkpoint.take();
        let is_of_this = |kept: &Checkpoint| kept.generation == engine.generation;
        if let Some(found) = checkpoint.filter(is_of_this) {
            (self.generation, self.place) = (found.generation, found.place);
            self.base = (found.kept.heard, found.place);
            self.begin(Some(&found.kept), plan, now_ms);
            self.checkpoint = Some(found);
            return true;
        }
        if self.generation == engine.generation {
            self.begin(None, plan, now_ms);
        }
        false
    }

    /// What this process can know of its engine's cache once it has heard all that was told.
    #[must_use]
    pub fn knowable(&self, engine: &Engine, tree: &Tree) -> Cache {
        let (kept, place) = self.base;
        engine.known_from(kept, place, tree)
    }

    /// As `Replay` answers.
    pub fn replay(&mut self, epoch: u64, from: u64, plan: &Plan) -> Answer {
        self.seal(plan);
        match &self.life {
            None => Answer::Unreachable,
            Some(life) if life.speaker.epoch != epoch => Answer::Declined,
            Some(life) => life.since(from).map_or(Answer::Declined, Answer::Records),
        }
    }

    /// As `Snapshot` answers.
    pub fn snapshot(&mut self, plan: &Plan) -> Answer {
        self.seal(plan);
        let records = |life: &Life| Answer::Records(life.snapshot(plan.part_hashes));
        self.life.as_ref().map_or(Answer::Unreachable, records)
    }

    /// For a delivery: of this moment, of the life that runs or ran last.
    #[must_use]
    pub fn snapshot_of_this_moment(&self, plan: &Plan) -> Vec<Record> {
        let life = self.life.as_ref().or(self.ended.as_ref());
        life.map_or_else(Vec::new, |life| life.snapshot(plan.part_hashes))
    }

    /// The epoch that runs.
    #[must_use]
    pub fn epoch(&self) -> Option<u64> {
        self.life.as_ref().map(|life| life.speaker.epoch)
    }

    /// The highest epoch that it has opened.
    #[must_use]
    pub fn highest_epoch(&self) -> u64 {
        self.highest_epoch
    }

    /// Seal and queue what waits.
    pub fn seal(&mut self, plan: &Plan) {
        let Some(life) = &mut self.life else { return };
        for record in life.seal(plan.batch_events) {
            for outlet in &mut self.outlets {
                outlet.push(&record);
            }
        }
    }

    fn begin_at(&mut self, place: usize, plan: &Plan, now_ms: u64) {
        self.place = place;
        self.base = (Cache::default(), place);
        self.begin(None, plan, now_ms);
    }

    fn begin(&mut self, kept: Option<&Kept>, plan: &Plan, now_ms: u64) {
        let clock_us = now_ms.saturating_add_signed(self.skew_ms) * 1_000;
        self.highest_epoch = clock_us.max(self.highest_epoch + 1);
        self.own_epochs.insert(self.highest_epoch);
        let speaker = Speaker {
            worker: self.worker,
            epoch: self.highest_epoch,
            instance: self.instance,
            name: self.name,
        };
        if kept.is_some() {
            for outlet in &mut self.outlets {
                outlet.require_snapshot();
            }
        }
        self.engine_seen_ms = now_ms;
        self.ended = None;
        self.life = Some(Life::begin(speaker, kept, plan.replay_records));
    }

    fn end(&mut self, reason: Reason, plan: &Plan) {
        self.seal(plan);
        let Some(mut life) = self.life.take() else {
            return;
        };
        let farewell = life.shut_down(reason);
        for outlet in &mut self.outlets {
            outlet.push(&farewell);
        }
        self.ended = Some(life);
    }
}
