//! One worker as an indexer keeps it: the shipped sequencer, and the set that its steps make.
//!
//! A mutation breaks one rule of the sequencer or of the outbox from outside, at the call: what is
//! shipped stays as it is, and the checker must find out that the rule is gone.

use kvatlas_events::sequencer::{
    Digest, Elapsed, Events, Sequencer, SnapshotPart, Speaker, Standing, Step, TIERS, Verdict,
};

use crate::script::{LIMITS, Said, Set, T0_MS, T1_MS, T2_MS, held};

/// A rule that is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// What an older epoch says is taken for the current one's.
    NoFencing,
    /// Events that were applied are applied again.
    NoDedup,
    /// Events after a gap are applied as if there were none.
    NoGapCheck,
    /// Each part of a snapshot is taken for the whole.
    TornSnapshot,
    /// A snapshot from before what was applied replaces the set.
    OldSnapshot,
    /// Heartbeats do not tell what exists.
    DeafToHeartbeats,
    /// An outbox that overflowed goes on without a snapshot.
    OverflowUnsaid,
    /// An acknowledgement releases what was queued since, too.
    AcknowledgesAll,
}

/// What travels.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Record {
    Events(Speaker, Events<Said>),
    Part(Speaker, SnapshotPart),
    Heartbeat(Speaker, u64, Set),
}

/// The indexer's side.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Receiver {
    pub sequencer: Sequencer<Said>,
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
            Record::Events(speaker, events) => self.take_events(speaker, events, broken),
            Record::Part(speaker, part) => self.take_part(speaker, part, broken),
            Record::Heartbeat(speaker, last, set) => {
                self.take_heartbeat(speaker, last, set, broken)
            }
        }
    }

    /// A tick so late that whatever gap is open has outlasted the hold-back, or so late that
    /// whatever recovery runs has taken too long.
    pub fn tick(&mut self, gives_up: bool) -> Elapsed {
        let mut steps = Vec::new();
        let now_ms = if gives_up { T2_MS } else { T1_MS };
        let elapsed = self.sequencer.on_tick(now_ms, &mut steps);
        self.run(steps);
        elapsed
    }

    /// As `Worker::lacks_records` has it.
    pub fn lacks_records(&self) -> bool {
        match self.sequencer.standing() {
            Standing::Whole => self.sequencer.known() > self.sequencer.applied(),
            Standing::Recovering => self.sequencer.speaker().epoch > 0,
            Standing::Closed(_) => false,
        }
    }

    fn believed(&self, speaker: Speaker, broken: Option<Mutation>) -> Speaker {
        let current = self.sequencer.speaker();
        if broken == Some(Mutation::NoFencing) && speaker.epoch < current.epoch {
            current
        } else {
            speaker
        }
    }

    fn take_events(&mut self, said: Speaker, mut events: Events<Said>, broken: Option<Mutation>) {
        let speaker = self.believed(said, broken);
        let next = self.sequencer.applied() + 1;
        let is_current = speaker == self.sequencer.speaker();
        if broken == Some(Mutation::NoGapCheck) && is_current && events.first_event_id > next {
            events.count += u32::try_from(events.first_event_id - next).unwrap();
            events.first_event_id = next;
        }
        let again = (broken == Some(Mutation::NoDedup) && is_current).then_some(events.payload);
        let mut steps = Vec::new();
        let verdict = self.sequencer.on_events(speaker, events, T0_MS, &mut steps);
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
        self.note(said, verdict);
        self.run(steps);
    }

    fn take_part(&mut self, said: Speaker, mut part: SnapshotPart, broken: Option<Mutation>) {
        let speaker = self.believed(said, broken);
        if broken == Some(Mutation::TornSnapshot) {
            (part.part, part.parts) = (0, 1);
            part.digests = [Digest::default(); TIERS];
            part.digests[part.tier] = Digest::of(&part.hashes);
        }
        let mut steps = Vec::new();
        let old = part.clone();
        let verdict = self
            .sequencer
            .on_snapshot_part(speaker, part, T0_MS, &mut steps);
        if verdict == Verdict::SnapshotOld && broken == Some(Mutation::OldSnapshot) {
            steps.push(Step::Replace(vec![old]));
        }
        self.note(said, verdict);
        self.run(steps);
    }

    fn take_heartbeat(&mut self, said: Speaker, last: u64, set: Set, broken: Option<Mutation>) {
        let speaker = self.believed(said, broken);
        let told = if broken == Some(Mutation::DeafToHeartbeats) {
            last.min(self.sequencer.applied())
        } else {
            last
        };
        let mut steps = Vec::new();
        let verdict = self
            .sequencer
            .on_heartbeat(speaker, told, T0_MS, &mut steps);
        self.note(said, verdict);
        self.run(steps);
        if said == self.sequencer.speaker() && verdict != Verdict::EpochClosed {
            self.knows_address = true;
            // The digest of a set whose hashes are bits is the set.
            if verdict == Verdict::Applied && told == last && set != self.set {
                self.sequencer.distrust(T0_MS);
            }
        }
    }

    fn note(&mut self, speaker: Speaker, verdict: Verdict) {
        let taken = matches!(
            verdict,
            Verdict::Applied | Verdict::HeldBack | Verdict::HeldBackOverflow | Verdict::PartTaken
        );
        if taken {
            self.went_back |= speaker.epoch < self.newest_epoch;
            self.newest_epoch = self.newest_epoch.max(speaker.epoch);
        }
    }

    fn run(&mut self, steps: Vec<Step<Said>>) {
        for step in steps {
            match step {
                Step::Empty | Step::Close(_) => self.set = 0,
                Step::Apply { payload, skip } => payload.apply(skip, &mut self.set),
                Step::Replace(parts) => {
                    let hashes = parts.iter().flat_map(|part| &part.hashes);
                    self.set = hashes.fold(0, |set, hash| set | hash);
                    let whole = held(self.sequencer.speaker(), parts[0].as_of);
                    self.torn |= self.set != whole;
                }
            }
        }
    }
}
