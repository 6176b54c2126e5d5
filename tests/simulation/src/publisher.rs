//! A publisher process: follows one engine through its restarts, and answers replicas that lost records.

use std::collections::BTreeSet;

use kvatlas_wire::v1::shutdown::Reason;

use crate::delivery::Delivery;
use crate::engine::{Cache, Engine};
use crate::log::Record;
use crate::open_epoch::{MirrorCheckpoint, OpenEpoch};
use crate::plan::Plan;
use crate::record::RecordEncoder;
use crate::rng::Rng;
use crate::tree::Tree;

/// Time without the engine after which its publisher ends the epoch.
const ENGINE_GONE_MS: u64 = 1_000;

/// The checkpoint of a process that has a state directory.
#[derive(Clone, Debug)]
struct Checkpoint {
    generation: u32,
    position: usize,
    mirror: MirrorCheckpoint,
    epoch: u64,
}

/// A publisher's answer to a replica.
#[derive(Debug)]
pub enum Answer {
    /// The requested records.
    Records(Vec<Record>),
    /// The publisher does not run, or has no open epoch.
    Unreachable,
    /// It does not have the records.
    Declined,
}

/// One publisher.
#[derive(Debug)]
pub struct Publisher {
    name: usize,
    /// Its worker.
    pub worker: u64,
    /// The engine that it follows.
    pub engine: usize,
    /// Whether it runs.
    pub is_up: bool,
    /// Whether it has left, or was fenced by a rival, and is not started again.
    pub has_left: bool,
    /// The open epoch.
    pub open_epoch: Option<OpenEpoch>,
    ended_epoch: Option<OpenEpoch>,
    /// One per log, and one per replica if it pushes to replicas.
    pub deliveries: Vec<Delivery>,
    generation: u32,
    /// Number of messages applied of the engine's stream.
    position: usize,
    /// The known cache and the position in the stream at which it began to follow.
    base: (Cache, usize),
    engine_seen_ms: u64,
    instance: u64,
    highest_epoch: u64,
    own_epochs: BTreeSet<u64>,
    skew_ms: i64,
    checkpoint: Option<Checkpoint>,
}

impl Publisher {
    /// A running publisher that knows nothing yet.
    #[must_use]
    pub fn new(name: usize, worker: u64, engine: usize, plan: &Plan, rng: &mut Rng) -> Self {
        let mut publisher = Self {
            name,
            worker,
            engine,
            is_up: false,
            has_left: false,
            open_epoch: None,
            ended_epoch: None,
            deliveries: Vec::new(),
            generation: 0,
            position: 0,
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

    /// Applies the engine's new messages and queues the resulting records.
    pub fn follow(&mut self, engine: &Engine, plan: &Plan, tree: &Tree, now_ms: u64) {
        if engine.is_up {
            self.engine_seen_ms = now_ms;
        } else {
            if self.open_epoch.is_some() && now_ms - self.engine_seen_ms > ENGINE_GONE_MS {
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
                self.send_heartbeat(plan); // replicas empty the old set at once
            }
        } else if self.open_epoch.is_none() {
            self.begin_at(0, plan, now_ms);
        }
        let messages = &engine.stream[self.position.min(engine.stream.len())..];
        self.position = engine.stream.len();
        if let Some(open_epoch) = &mut self.open_epoch {
            for message in messages {
                open_epoch.apply(message, tree, plan.mutation);
            }
        }
        self.seal(plan);
    }

    /// Queues a heartbeat.
    pub fn send_heartbeat(&mut self, plan: &Plan) {
        self.seal(plan);
        if let Some(open_epoch) = &self.open_epoch {
            let record = open_epoch.heartbeat();
            for delivery in &mut self.deliveries {
                delivery.push_heartbeat(&record);
            }
        }
    }

    /// Writes the checkpoint from which a later process may go on.
    pub fn write_checkpoint(&mut self, plan: &Plan) {
        self.seal(plan);
        if let Some(open_epoch) = self.open_epoch.as_ref().filter(|_| plan.checkpoints) {
            self.checkpoint = Some(Checkpoint {
                generation: self.generation,
                position: self.position,
                mirror: open_epoch.checkpoint(),
                epoch: open_epoch.encoder.epoch,
            });
        }
    }

    /// Leaves in order; the last record is queued.
    pub fn leave(&mut self, plan: &Plan) {
        self.has_left = true;
        if self.open_epoch.is_some() {
            self.end(Reason::PublisherLeaving, plan);
        }
    }

    /// Is killed.
    pub fn crash(&mut self) {
        self.is_up = false;
        (self.open_epoch, self.ended_epoch) = (None, None);
        self.deliveries.clear();
    }

    /// Handles a receiver's answer with a newer epoch. True: the epoch is a rival's, and this publisher exits.
    pub fn is_fenced_by(&mut self, epoch: u64) -> bool {
        let is_rival = !self.own_epochs.contains(&epoch);
        if is_rival {
            self.has_left = true;
            self.crash();
        }
        is_rival
    }

    /// Starts. It goes on from its checkpoint, or from the beginning of the engine's stream, or from `lost`: the generation
    /// and position at which the engine's own history begins by now.
    pub fn start(&mut self, lost: Option<(u32, usize)>, plan: &Plan, rng: &mut Rng) {
        self.is_up = true;
        self.instance = rng.any();
        self.own_epochs.clear();
        let to_logs = (0..plan.logs).map(|_| None);
        let to_replicas = (0..plan.replicas).filter(|_| plan.direct).map(Some);
        let deliveries = to_logs.chain(to_replicas);
        self.deliveries = deliveries
            .map(|replica| Delivery::new(plan.outbox_records, replica))
            .collect();
        (self.generation, self.position) = (0, 0);
        self.base = (Cache::default(), 0);
        if let Some(checkpoint) = &self.checkpoint {
            self.highest_epoch = checkpoint.epoch;
        }
        if let Some((generation, position)) = lost {
            (self.generation, self.position) = (generation, position);
            self.base = (Cache::default(), position);
            self.checkpoint = None;
        }
    }

    /// Opens an epoch at the start if the engine is known to be the one that was followed before. True: the publisher goes
    /// on from its checkpoint.
    pub fn resume(&mut self, engine: &Engine, plan: &Plan, now_ms: u64) -> bool {
        if !engine.is_up {
            (self.generation, self.position) = (0, 0);
            self.base = (Cache::default(), 0);
            return false;
        }
        let checkpoint = self.checkpoint.take();
        let is_of_this = |checkpoint: &Checkpoint| checkpoint.generation == engine.generation;
        if let Some(found) = checkpoint.filter(is_of_this) {
            (self.generation, self.position) = (found.generation, found.position);
            self.base = (found.mirror.expected, found.position);
            self.begin(Some(&found.mirror), plan, now_ms);
            self.checkpoint = Some(found);
            return true;
        }
        if self.generation == engine.generation {
            self.begin(None, plan, now_ms);
        }
        false
    }

    /// The part of the engine's cache that this process can know from all messages.
    #[must_use]
    pub fn knowable(&self, engine: &Engine, tree: &Tree) -> Cache {
        let (known, position) = self.base;
        engine.known_from(known, position, tree)
    }

    /// Answers `Replay`.
    pub fn replay(&mut self, epoch: u64, from: u64, plan: &Plan) -> Answer {
        self.seal(plan);
        match &self.open_epoch {
            None => Answer::Unreachable,
            Some(open_epoch) if open_epoch.encoder.epoch != epoch => Answer::Declined,
            Some(open_epoch) => open_epoch
                .since(from)
                .map_or(Answer::Declined, Answer::Records),
        }
    }

    /// Answers `Snapshot`.
    pub fn snapshot(&mut self, plan: &Plan) -> Answer {
        self.seal(plan);
        let records =
            |open_epoch: &OpenEpoch| Answer::Records(open_epoch.snapshot(plan.part_hashes));
        self.open_epoch
            .as_ref()
            .map_or(Answer::Unreachable, records)
    }

    /// The snapshot for a delivery: of the open epoch, or of the last one.
    #[must_use]
    pub fn delivery_snapshot(&self, plan: &Plan) -> Vec<Record> {
        let open_epoch = self.open_epoch.as_ref().or(self.ended_epoch.as_ref());
        open_epoch.map_or_else(Vec::new, |open_epoch| open_epoch.snapshot(plan.part_hashes))
    }

    /// The number of the open epoch.
    #[must_use]
    pub fn epoch(&self) -> Option<u64> {
        self.open_epoch
            .as_ref()
            .map(|open_epoch| open_epoch.encoder.epoch)
    }

    /// The highest epoch that it has opened.
    #[must_use]
    pub fn highest_epoch(&self) -> u64 {
        self.highest_epoch
    }

    /// Seals and queues pending events.
    pub fn seal(&mut self, plan: &Plan) {
        let Some(open_epoch) = &mut self.open_epoch else {
            return;
        };
        for record in open_epoch.seal(plan.batch_events) {
            for delivery in &mut self.deliveries {
                delivery.push(&record);
            }
        }
    }

    fn begin_at(&mut self, position: usize, plan: &Plan, now_ms: u64) {
        self.position = position;
        self.base = (Cache::default(), position);
        self.begin(None, plan, now_ms);
    }

    fn begin(&mut self, checkpoint: Option<&MirrorCheckpoint>, plan: &Plan, now_ms: u64) {
        let clock_us = now_ms.saturating_add_signed(self.skew_ms) * 1_000;
        self.highest_epoch = clock_us.max(self.highest_epoch + 1);
        self.own_epochs.insert(self.highest_epoch);
        let encoder = RecordEncoder {
            worker: self.worker,
            epoch: self.highest_epoch,
            instance: self.instance,
            name: self.name,
        };
        if checkpoint.is_some() {
            for delivery in &mut self.deliveries {
                delivery.require_snapshot();
            }
        }
        self.engine_seen_ms = now_ms;
        self.ended_epoch = None;
        self.open_epoch = Some(OpenEpoch::begin(encoder, checkpoint, plan.replay_records));
    }

    fn end(&mut self, reason: Reason, plan: &Plan) {
        self.seal(plan);
        let Some(mut open_epoch) = self.open_epoch.take() else {
            return;
        };
        let shutdown = open_epoch.shut_down(reason);
        for delivery in &mut self.deliveries {
            delivery.push(&shutdown);
        }
        self.ended_epoch = Some(open_epoch);
    }
}
