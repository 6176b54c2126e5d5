//! All that can happen between one publisher and one indexer, as a `stateright` model.
//!
//! ```text
//!   script ─▶ publisher ─▶ outbox ─append─▶ log ─deliver─▶ sequencer ─▶ set
//!                 └────────── replay, snapshot (answers) ─────▲
//! ```
//!
//! Steps are either the protocol's own, which a fair run takes sooner or later, or faults, which are
//! counted and may never come. A state without a step of the protocol is *quiet*.

use kvatlas_events::sequencer::{SequencerState, TickOutcome};
use stateright::{Model, Property};

use crate::publisher::Publisher;
use crate::receiver::{Mutation, Receiver, Record};
use crate::script::held;

/// Faults that may still come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Faults {
    /// A record of the log is lost.
    pub drops: u8,
    /// A record is delivered, and once more.
    pub duplicates: u8,
    /// A record is overtaken by the one behind it.
    pub reorderings: u8,
    /// An append's acknowledgement is lost, so it is repeated.
    pub lost_acks: u8,
    pub publisher_crashes: u8,
    pub indexer_crashes: u8,
    /// A bit of the indexer's set turns over.
    pub flips: u8,
}

/// One configuration: bounds of what happens.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub name: &'static str,
    /// Number of events in each epoch.
    pub events: [u64; 2],
    /// At most 2.
    pub batch_events: u64,
    /// Something may happen between an append and its acknowledgement.
    pub acks_late: bool,
    pub outbox_records: usize,
    /// Events that `Replay` can still give.
    pub ring: u64,
    /// Heartbeats among the events.
    pub beats: u8,
    /// A restarted publisher opens with a snapshot of what it remembers.
    pub carries: bool,
    /// The last epoch ends with a shutdown.
    pub leaves: bool,
    /// A restarted indexer reads the log again from its beginning, not from where it stood.
    pub rereads: bool,
    pub faults: Faults,
    pub broken: Option<Mutation>,
}

/// One for each fault that can come after another, and one.
const LATE_BEATS: u8 = 5;

/// A recovery's stage.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Asked {
    Nothing,
    Replay,
    Snapshot,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    pub faults: Faults,
    pub beats: u8,
    /// Heartbeats that may still come once all is quiet; more must not be needed.
    pub late_beats: u8,
    pub publisher: Publisher,
    pub log: Vec<Record>,
    /// The records read so far, kept while the log may be read again.
    pub read: Vec<Record>,
    pub asked: Asked,
    pub answer: Vec<Record>,
    pub receiver: Receiver,
    /// The last event that the log explains, by epoch; None: the log holds nothing of the epoch.
    pub explained: [Option<u64>; 2],
    /// Something was appended that does not follow from what is in the log.
    pub unexplained: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    Publish,
    PublishTwo,
    Leave,
    Beat,
    BeatAgain,
    Append,
    Acknowledge,
    Deliver,
    ReceiveAnswer,
    Ask,
    AskForSnapshot,
    EndAttempt,
    GapOutlasts,
    RecoveryOutlasts,
    LoseAck,
    Drop,
    Duplicate,
    Overtake,
    CrashPublisher,
    CrashIndexer,
    Flip,
}

impl Action {
    pub fn is_fault(self) -> bool {
        self as u8 >= Self::LoseAck as u8
    }
}

impl World {
    /// The indexer has exactly the publisher's set, or knows that the publisher has gone.
    pub fn is_healed(&self, bounds: &Bounds) -> bool {
        let (publisher, receiver) = (&self.publisher, &self.receiver);
        let sequencer = &receiver.sequencer;
        if publisher.left {
            let unknown = sequencer.incarnation().epoch == 0;
            let closed = matches!(sequencer.state(), SequencerState::Closed(_));
            return bounds.leaves && receiver.set == 0 && (closed || unknown);
        }
        sequencer.incarnation() == publisher.incarnation()
            && sequencer.state() == SequencerState::Whole
            && sequencer.applied() == publisher.published
            && sequencer.known() == publisher.published
            && receiver.set == held(publisher.incarnation(), publisher.published)
    }

    /// The set is what the publisher held at the event that counts as applied; or it is empty, and
    /// not matched.
    pub fn is_true(&self) -> bool {
        let sequencer = &self.receiver.sequencer;
        let whole = held(sequencer.incarnation(), sequencer.applied());
        match sequencer.state() {
            SequencerState::Whole => self.receiver.set == whole,
            SequencerState::Recovering => self.receiver.set == whole || self.receiver.set == 0,
            SequencerState::Closed(_) => self.receiver.set == 0,
        }
    }

    /// Whether a late heartbeat would change the indexer. Others only renew its lease; they are left out,
    /// since otherwise every state would have a successor for ever.
    fn heartbeat_would_help(&self) -> bool {
        let (publisher, sequencer) = (&self.publisher, &self.receiver.sequencer);
        let is_idle = publisher.is_idle() && self.log.is_empty() && self.asked == Asked::Nothing;
        let differs = sequencer.state() == SequencerState::Whole
            && sequencer.applied() == publisher.published
            && self.receiver.set != held(publisher.incarnation(), publisher.published);
        is_idle
            && !publisher.left
            && (sequencer.incarnation() != publisher.incarnation()
                || sequencer.known() < publisher.published
                || !self.receiver.knows_address
                || differs)
    }

    fn note_appended(&mut self, record: &Record) {
        let (incarnation, needs, gives) = match record {
            Record::Events(incarnation, events) => {
                let last = events.last_event_id();
                (incarnation, events.first_event_id - 1, Some(last))
            }
            Record::Heartbeat(incarnation, last, _) => (incarnation, *last, None),
            Record::Part(incarnation, part) => {
                let is_last = part.part + 1 == part.parts;
                (incarnation, 0, is_last.then_some(part.as_of))
            }
        };
        let epoch = usize::try_from(incarnation.epoch - 10).unwrap();
        let so_far = self.explained[epoch];
        if !matches!(record, Record::Part(..)) {
            self.unexplained |= so_far.is_none_or(|last| last < needs);
        }
        self.explained[epoch] = so_far.max(gives);
    }

    fn lose(&mut self) -> Record {
        self.log.remove(0)
    }

    fn deliver(&mut self, record: Record, bounds: &Bounds) {
        if bounds.rereads && self.faults.indexer_crashes > 0 {
            self.read.push(record.clone());
        }
        self.receiver.take(record, bounds.broken);
    }

    fn answer_with(&mut self, asked: Asked, answer: Vec<Record>) {
        (self.asked, self.answer) = (asked, answer);
    }

    fn ask(&mut self, bounds: &Bounds) {
        let sequencer = &self.receiver.sequencer;
        let (applied, known) = (sequencer.applied(), sequencer.known());
        let is_current = sequencer.incarnation() == self.publisher.incarnation();
        let replay = (applied < known && is_current)
            .then(|| self.publisher.replay(applied + 1, bounds.ring))
            .flatten();
        match replay {
            Some(records) => self.answer_with(Asked::Replay, records),
            None => self.ask_for_snapshot(),
        }
    }

    fn ask_for_snapshot(&mut self) {
        let parts = self.publisher.snapshot_records();
        self.answer_with(Asked::Snapshot, parts);
    }

    fn protocol(&self, bounds: &Bounds, actions: &mut Vec<Action>) {
        let mut allow = |action, allowed: bool| {
            if allowed {
                actions.push(action);
            }
        };
        let publisher = &self.publisher;
        let left = bounds.events[usize::from(publisher.epoch)].saturating_sub(publisher.published);
        let is_last_epoch = publisher.epoch == 1 || self.faults.publisher_crashes == 0;
        let lacks = self.receiver.lacks_records();
        let tick = |gives_up| self.receiver.clone().tick(gives_up);
        allow(Action::Publish, left > 0);
        allow(Action::PublishTwo, left > 1 && bounds.batch_events > 1);
        allow(
            Action::Leave,
            bounds.leaves && is_last_epoch && left == 0 && !publisher.left,
        );
        allow(Action::Beat, self.beats > 0 && !publisher.left);
        allow(
            Action::BeatAgain,
            self.late_beats > 0 && self.heartbeat_would_help(),
        );
        let waits = !publisher.outbox.is_empty() || publisher.outbox.awaits_snapshot();
        allow(Action::Append, waits && publisher.in_flight.is_none());
        allow(Action::Acknowledge, publisher.in_flight.is_some());
        allow(Action::Deliver, !self.log.is_empty());
        allow(Action::ReceiveAnswer, !self.answer.is_empty());
        let can_ask = lacks && self.receiver.knows_address && !publisher.left;
        allow(Action::Ask, can_ask && self.asked == Asked::Nothing);
        let is_answered = self.asked != Asked::Nothing && self.answer.is_empty();
        let goes_on = can_ask && self.asked == Asked::Replay;
        allow(Action::AskForSnapshot, is_answered && goes_on);
        allow(Action::EndAttempt, is_answered && !goes_on);
        allow(Action::GapOutlasts, tick(false) == TickOutcome::GapTimedOut);
        allow(
            Action::RecoveryOutlasts,
            tick(true) == TickOutcome::RecoveryTimedOut,
        );
    }

    fn faults(&self, bounds: &Bounds, actions: &mut Vec<Action>) {
        let faults = self.faults;
        let mut allow = |action, left: u8, allowed: bool| {
            if allowed && left > 0 {
                actions.push(action);
            }
        };
        let logged = self.log.len();
        let whole = self.receiver.sequencer.state() == SequencerState::Whole;
        let in_flight = self.publisher.in_flight.is_some();
        allow(Action::LoseAck, faults.lost_acks, in_flight);
        allow(Action::Drop, faults.drops, logged > 0);
        allow(Action::Duplicate, faults.duplicates, logged > 0);
        allow(Action::Overtake, faults.reorderings, logged > 1);
        let can_restart = self.publisher.epoch == 0 && bounds.events[1] > 0;
        allow(
            Action::CrashPublisher,
            faults.publisher_crashes,
            can_restart,
        );
        allow(Action::CrashIndexer, faults.indexer_crashes, true);
        allow(Action::Flip, faults.flips, whole);
    }

    fn step(&mut self, action: Action, bounds: &Bounds) {
        let broken = bounds.broken;
        match action {
            Action::Publish => self.publisher.publish(1, broken),
            Action::PublishTwo => self.publisher.publish(2, broken),
            Action::Leave => self.publisher.leave(broken),
            Action::Beat => {
                self.beats -= 1;
                self.publisher.beat();
            }
            Action::BeatAgain => {
                self.late_beats -= 1;
                self.publisher.beat();
            }
            Action::Append => {
                let records = self.publisher.append();
                for record in records {
                    self.note_appended(&record);
                    self.log.push(record);
                }
                if !bounds.acks_late {
                    self.publisher.acknowledged(broken);
                }
            }
            Action::Acknowledge => self.publisher.acknowledged(broken),
            Action::Deliver => {
                let record = self.lose();
                self.deliver(record, bounds);
            }
            Action::ReceiveAnswer => {
                let record = self.answer.remove(0);
                self.receiver.take(record, broken);
            }
            Action::Ask => self.ask(bounds),
            Action::AskForSnapshot => self.ask_for_snapshot(),
            Action::EndAttempt => self.asked = Asked::Nothing,
            Action::GapOutlasts => {
                self.receiver.tick(false);
            }
            Action::RecoveryOutlasts => {
                self.receiver.tick(true);
            }
            fault => self.fail(fault, bounds),
        }
    }

    fn fail(&mut self, fault: Action, bounds: &Bounds) {
        let faults = &mut self.faults;
        match fault {
            Action::LoseAck => {
                faults.lost_acks -= 1;
                self.publisher.in_flight = None;
            }
            Action::Drop => {
                faults.drops -= 1;
                self.lose();
            }
            Action::Duplicate => {
                faults.duplicates -= 1;
                let record = self.log[0].clone();
                self.receiver.take(record, bounds.broken);
            }
            Action::Overtake => {
                faults.reorderings -= 1;
                self.log.swap(0, 1);
            }
            Action::CrashPublisher => {
                faults.publisher_crashes -= 1;
                self.publisher = Publisher::new(1, bounds.carries, bounds.outbox_records);
                self.answer_with(Asked::Nothing, Vec::new());
            }
            Action::CrashIndexer => {
                faults.indexer_crashes -= 1;
                self.receiver = Receiver::new();
                self.answer_with(Asked::Nothing, Vec::new());
                let mut log = std::mem::take(&mut self.read);
                log.append(&mut self.log);
                self.log = log;
            }
            Action::Flip => {
                faults.flips -= 1;
                self.receiver.set ^= 1;
            }
            _ => unreachable!("not a fault: {fault:?}"),
        }
    }
}

impl Bounds {
    /// Whether only faults could go on from here.
    pub fn is_quiet(&self, world: &World) -> bool {
        let mut actions = Vec::new();
        world.protocol(self, &mut actions);
        actions.is_empty()
    }
}

impl Model for Bounds {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            faults: self.faults,
            beats: self.beats,
            late_beats: LATE_BEATS,
            publisher: Publisher::new(0, false, self.outbox_records),
            log: Vec::new(),
            read: Vec::new(),
            asked: Asked::Nothing,
            answer: Vec::new(),
            receiver: Receiver::new(),
            explained: [Some(0), (!self.carries).then_some(0)],
            unexplained: false,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        world.protocol(self, actions);
        world.faults(self, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        world.step(action, self);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(TRUE, |bounds, world: &World| {
                bounds.faults.flips > 0 || world.is_true()
            }),
            Property::always(FORWARD, |_, world: &World| !world.receiver.went_back),
            Property::always(UNTORN, |_, world: &World| !world.receiver.torn),
            Property::always(EXPLAINED, |_, world: &World| !world.unexplained),
            Property::always(HEALED, |bounds, world: &World| {
                !bounds.is_quiet(world) || world.is_healed(bounds)
            }),
        ]
    }
}

/// The properties, each true of every state.
pub const TRUE: &str = "the set is what the publisher held at the event that is applied";
pub const FORWARD: &str = "nothing of an older epoch is taken after a newer one";
pub const UNTORN: &str = "a snapshot is seen whole";
pub const EXPLAINED: &str = "what an outbox gives out follows from what it gave out before";
pub const HEALED: &str = "what is quiet is healed";
