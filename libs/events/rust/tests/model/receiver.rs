//! One worker in an indexer: the shipped sequencer, and the set that its steps produce.
//!
//! A mutation breaks one rule of the sequencer or of the outbox from outside, at the call. The shipped
//! code stays as it is, and the checker must notice that the rule is gone.

use kvatlas_events::sequencer::{
    Events, Incarnation, Sequencer, SequencerState, SnapshotPart, Step, TickOutcome, TierDigest,
    Verdict,
};
use kvatlas_types::Tier;

use crate::script::{EventRange, LIMITS, Set, T0_MS, T1_MS, T2_MS, held};

/// A rule that is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// Records of an older epoch count as the current one's.
    NoFencing,
    /// Events that were applied are applied again.
    NoDedup,
    /// Events after a gap are applied as if there were none.
    NoGapCheck,
    /// Each part of a snapshot is taken for the whole.
    TornSnapshot,
    /// A snapshot from before what was applied replaces the set.
    OldSnapshot,
    /// Heartbeats do not announce missing events.
    HeartbeatsIgnored,
    /// An outbox that overflowed goes on without a snapshot.
    OverflowIgnored,
    /// An acknowledgement releases what was queued since, too.
    AcknowledgesAll,
}

/// A record on its way.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Record {
    Events(Incarnation, Events<EventRange>),
    Part(Incarnation, SnapshotPart),
    Heartbeat(Incarnation, u64, Set),
}

/// The indexer's side of the model.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Receiver {
    pub sequencer: Sequencer<EventRange>,
    pub set: Set,
    /// The publisher's address is known: recoveries can ask it.
    pub knows_address: bool,
    /// The newest epoch that anything was taken from.
    pub newest_epoch: u64,
    /// A snapshot was loaded that is no set its publisher ever held.
    pub torn: bool,
    /// Something was taken from an epoch older than the newest.
    pub went_back: bool,
}

impl Receiver {
    pub fn new() -> Self {
        Self {
            sequencer: Sequencer::new(LIMITS),
            set: 0,
            knows_address: false,
            newest_epoch: 0,
            torn: false,
            went_back: false,
        }
    }

    pub fn take(&mut self, record: Record, broken: Option<Mutation>) {
        match record {
            Record::Events(incarnation, events) => self.take_events(incarnation, events, broken),
            Record::Part(incarnation, part) => self.take_part(incarnation, part, broken),
            Record::Heartbeat(incarnation, last, set) => {
                self.take_heartbeat(incarnation, last, set, broken)
            }
        }
    }

    /// A tick after the hold-back of any open gap, or, with `gives_up`, after the end of any recovery.
    pub fn tick(&mut self, gives_up: bool) -> TickOutcome {
        let mut steps = Vec::new();
        let now_ms = if gives_up { T2_MS } else { T1_MS };
        let outcome = self.sequencer.on_tick(now_ms, &mut steps);
        self.run(steps);
        outcome
    }

    /// The same rule as the cell's `Worker::lacks_records`.
    pub fn lacks_records(&self) -> bool {
        match self.sequencer.state() {
            SequencerState::Whole => self.sequencer.known() > self.sequencer.applied(),
            SequencerState::Recovering => self.sequencer.incarnation().epoch > 0,
            SequencerState::Closed(_) => false,
        }
    }

    fn fenced(&self, incarnation: Incarnation, broken: Option<Mutation>) -> Incarnation {
        let current = self.sequencer.incarnation();
        if broken == Some(Mutation::NoFencing) && incarnation.epoch < current.epoch {
            current
        } else {
            incarnation
        }
    }

    fn take_events(
        &mut self,
        sender: Incarnation,
        mut events: Events<EventRange>,
        broken: Option<Mutation>,
    ) {
        let incarnation = self.fenced(sender, broken);
        let next = self.sequencer.applied() + 1;
        let is_current = incarnation == self.sequencer.incarnation();
        if broken == Some(Mutation::NoGapCheck) && is_current && events.first_event_id > next {
            events.count += u32::try_from(events.first_event_id - next).unwrap();
            events.first_event_id = next;
        }
        let again = (broken == Some(Mutation::NoDedup) && is_current).then_some(events.payload);
        let mut steps = Vec::new();
        let verdict = self
            .sequencer
            .on_events(incarnation, events, T0_MS, &mut steps);
        if let Some(payload) = again {
            if verdict == Verdict::Seen {
                steps.push(Step::Apply { payload, skip: 0 });
            }
            for step in &mut steps {
                if let Step::Apply { skip, .. } = step {
                    *skip = 0;
                }
            }
        }
        self.note(sender, verdict);
        self.run(steps);
    }

    fn take_part(&mut self, sender: Incarnation, mut part: SnapshotPart, broken: Option<Mutation>) {
        let incarnation = self.fenced(sender, broken);
        if broken == Some(Mutation::TornSnapshot) {
            (part.part, part.parts) = (0, 1);
            part.digests = [TierDigest::default(); Tier::COUNT];
            part.digests[part.tier] = TierDigest::of(&part.hashes);
        }
        let mut steps = Vec::new();
        let old = part.clone();
        let verdict = self
            .sequencer
            .on_snapshot_part(incarnation, part, T0_MS, &mut steps);
        if verdict == Verdict::SnapshotOld && broken == Some(Mutation::OldSnapshot) {
            steps.push(Step::Replace(vec![old]));
        }
        self.note(sender, verdict);
        self.run(steps);
    }

    fn take_heartbeat(
        &mut self,
        sender: Incarnation,
        last: u64,
        set: Set,
        broken: Option<Mutation>,
    ) {
        let incarnation = self.fenced(sender, broken);
        let last_seen = if broken == Some(Mutation::HeartbeatsIgnored) {
            last.min(self.sequencer.applied())
        } else {
            last
        };
        let mut steps = Vec::new();
        let verdict = self
            .sequencer
            .on_heartbeat(incarnation, last_seen, T0_MS, &mut steps);
        self.note(sender, verdict);
        self.run(steps);
        if sender == self.sequencer.incarnation() && verdict != Verdict::EpochClosed {
            self.knows_address = true;
            // The digest of a set whose hashes are bits is the set.
            if verdict == Verdict::Applied && last_seen == last && set != self.set {
                self.sequencer.on_digest_mismatch(T0_MS);
            }
        }
    }

    fn note(&mut self, incarnation: Incarnation, verdict: Verdict) {
        let taken = matches!(
            verdict,
            Verdict::Applied | Verdict::HeldBack | Verdict::HeldBackOverflow | Verdict::PartTaken
        );
        if taken {
            self.went_back |= incarnation.epoch < self.newest_epoch;
            self.newest_epoch = self.newest_epoch.max(incarnation.epoch);
        }
    }

    fn run(&mut self, steps: Vec<Step<EventRange>>) {
        for step in steps {
            match step {
                Step::Empty | Step::Close(_) => self.set = 0,
                Step::Apply { payload, skip } => payload.apply(skip, &mut self.set),
                Step::Replace(parts) => {
                    let hashes = parts.iter().flat_map(|part| &part.hashes);
                    self.set = hashes.fold(0, |set, hash| set | hash);
                    let whole = held(self.sequencer.incarnation(), parts[0].as_of);
                    self.torn |= self.set != whole;
                }
            }
        }
    }
}
