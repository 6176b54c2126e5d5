//! A publisher process: follows one engine through its lives, and answers who lost records.

use kvatlas_wire::v1::shutdown::Reason;

use crate::engine::{Cache, Engine};
use crate::life::Life;
use crate::log::Record;
use crate::outlet::Outlet;
use crate::plan::Plan;
use crate::record::Speaker;
use crate::rng::Rng;
use crate::tree::Tree;

/// How long an engine may be silent before its publisher says that it is gone.
const ENGINE_GONE_MS: u64 = 1_000;

/// What outlives a process that keeps its memory.
#[derive(Clone, Copy, Debug)]
struct Checkpoint {
    generation: u32,
    place: usize,
    cache: Cache,
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
    worker: u64,
    /// It runs.
    pub up: bool,
    /// It has left, and nobody starts it again.
    pub left: bool,
    life: Option<Life>,
    ended: Option<Life>,
    /// One per log.
    pub outlets: Vec<Outlet>,
    generation: u32,
    place: usize,
    engine_seen_ms: u64,
    instance: u64,
    highest_epoch: u64,
    skew_ms: i64,
    checkpoint: Option<Checkpoint>,
}

impl Publisher {
    /// Running; it has heard of nothing.
    #[must_use]
    pub fn new(worker: u64, plan: &Plan, skew_ms: i64, rng: &mut Rng) -> Self {
        let mut publisher = Self {
            worker,
            up: false,
            left: false,
            life: None,
            ended: None,
            outlets: Vec::new(),
            generation: 0,
            place: 0,
            engine_seen_ms: 0,
            instance: 0,
            highest_epoch: 0,
            skew_ms,
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
                self.end(Reason::EngineGone, plan, tree);
            }
            return;
        }
        if engine.generation != self.generation {
            self.seal(plan, tree);
            let is_restart = self.generation != 0;
            (self.generation, self.place) = (engine.generation, 0);
            self.begin(None, plan, tree, now_ms);
            if is_restart {
                self.beat(plan, tree); // what the old life held is gone: do not wait to say so
            }
        } else if self.life.is_none() {
            self.place = 0;
            self.begin(None, plan, tree, now_ms);
        }
        let told = &engine.stream[self.place.min(engine.stream.len())..];
        self.place = engine.stream.len();
        if let Some(life) = &mut self.life {
            for &told in told {
                life.hear(told, tree);
            }
        }
        self.seal(plan, tree);
        if let Some(life) = self.life.as_ref().filter(|_| plan.checkpoints) {
            self.checkpoint = Some(Checkpoint {
                generation: self.generation,
                place: self.place,
                cache: life.cache,
                epoch: life.speaker.epoch,
            });
        }
    }

    /// Say that it lives.
    pub fn beat(&mut self, plan: &Plan, tree: &Tree) {
        self.seal(plan, tree);
        if let Some(life) = &self.life {
            let record = life.heartbeat(tree);
            for outlet in &mut self.outlets {
                outlet.push_heartbeat(&record);
            }
        }
    }

    /// It leaves in order; its last words are queued.
    pub fn leave(&mut self, plan: &Plan, tree: &Tree) {
        self.left = true;
        if self.life.is_some() {
            self.end(Reason::PublisherLeaving, plan, tree);
        }
    }

    /// It is killed.
    pub fn crash(&mut self) {
        self.up = false;
        (self.life, self.ended) = (None, None);
        self.outlets.clear();
    }

    /// It starts. With memory, it goes on from its checkpoint; without, from the beginning of the engine's
    /// stream, or, if `lost` says where the engine's own history begins by now, from there.
    pub fn start(&mut self, lost: Option<(u32, usize)>, plan: &Plan, rng: &mut Rng) {
        self.up = true;
        self.instance = rng.any();
        let outlet = |_| Outlet::new(plan.outbox_records);
        self.outlets = (0..plan.logs).map(outlet).collect();
        (self.generation, self.place) = (0, 0);
        if let Some(checkpoint) = self.checkpoint {
            self.highest_epoch = checkpoint.epoch;
        }
        if let Some((generation, place)) = lost {
            (self.generation, self.place) = (generation, place);
            self.checkpoint = None;
        }
    }

    /// Begin the life that a started process has before it hears of anything. What it remembers of its
    /// engine, and from which place of the engine's stream it goes on.
    pub fn resume(
        &mut self,
        engine: &Engine,
        plan: &Plan,
        tree: &Tree,
        now_ms: u64,
    ) -> (Cache, usize) {
        if !engine.up {
            return (Cache::default(), 0);
        }
        let checkpoint = self
            .checkpoint
            .filter(|kept| kept.generation == engine.generation);
        if let Some(kept) = checkpoint {
            (self.generation, self.place) = (kept.generation, kept.place);
            self.begin(Some(kept.cache), plan, tree, now_ms);
            return (kept.cache, kept.place);
        }
        if self.generation == engine.generation {
            self.begin(None, plan, tree, now_ms);
        }
        (Cache::default(), self.place)
    }

    /// As `Replay` answers.
    pub fn replay(&mut self, epoch: u64, from: u64, plan: &Plan, tree: &Tree) -> Answer {
        self.seal(plan, tree);
        match &self.life {
            None => Answer::Unreachable,
            Some(life) if life.speaker.epoch != epoch => Answer::Declined,
            Some(life) => life.since(from).map_or(Answer::Declined, Answer::Records),
        }
    }

    /// As `Snapshot` answers.
    pub fn snapshot(&mut self, plan: &Plan, tree: &Tree) -> Answer {
        self.seal(plan, tree);
        let records = |life: &Life| Answer::Records(life.snapshot(plan.part_hashes, tree));
        self.life.as_ref().map_or(Answer::Unreachable, records)
    }

    /// For a delivery: of this moment, of the life that runs or ran last.
    #[must_use]
    pub fn snapshot_of_this_moment(&self, plan: &Plan, tree: &Tree) -> Vec<Record> {
        let life = self.life.as_ref().or(self.ended.as_ref());
        life.map_or_else(Vec::new, |life| life.snapshot(plan.part_hashes, tree))
    }

    /// The epoch that runs.
    #[must_use]
    pub fn epoch(&self) -> Option<u64> {
        self.life.as_ref().map(|life| life.speaker.epoch)
    }

    /// Seal and queue what waits.
    pub fn seal(&mut self, plan: &Plan, tree: &Tree) {
        let Some(life) = &mut self.life else { return };
        for record in life.seal(plan.batch_events, tree) {
            for outlet in &mut self.outlets {
                outlet.push(&record);
            }
        }
    }

    fn begin(&mut self, kept: Option<Cache>, plan: &Plan, tree: &Tree, now_ms: u64) {
        let clock_us = now_ms.saturating_add_signed(self.skew_ms) * 1_000;
        self.highest_epoch = clock_us.max(self.highest_epoch + 1);
        let speaker = Speaker {
            worker: self.worker,
            epoch: self.highest_epoch,
            instance: self.instance,
        };
        if kept.is_some() {
            for outlet in &mut self.outlets {
                outlet.require_snapshot();
            }
        }
        self.engine_seen_ms = now_ms;
        self.ended = None;
        self.life = Some(Life::begin(speaker, kept, plan.replay_records, tree));
    }

    fn end(&mut self, reason: Reason, plan: &Plan, tree: &Tree) {
        self.seal(plan, tree);
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
