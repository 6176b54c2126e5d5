//! The indexer's sequencer: one small state machine per worker.
//!
//! It decides what of a worker's records is applied, in what order, and when its set can no longer
//! be believed. It knows neither bytes, nor the index, nor a clock: payloads are the caller's, time
//! comes in as milliseconds, and what is to be done comes out as [`Step`]s, in order.
//!
//! ```text
//!                 event 1, or a heartbeat at 0, or a whole snapshot
//!   (first seen) ────────────────────────────────────────────────▶ Whole ──▶ Closed
//!        │                                                        ▲     │
//!        │ anything else        snapshot whole, or gap closed     │     │ a gap outlasts the hold-back,
//!        ▼                                                        │     ▼ or the digest is wrong
//!    Recovering ──────────────────────────────────────────────────┴── Recovering
//!        └── longer than `recover_ms`: emptied once, counted, and still waiting
//! ```
//!
//! Epochs fence: an older one is dropped, a newer one starts over, and within one epoch the instance
//! that was seen first is the only one believed. Nothing that was not applied is passed over in
//! silence: every id known to exist, from batches and from heartbeats, is in `known`, and a worker
//! with `applied < known` is whole only as long as the hold-back lasts. Memory is bounded by the
//! limits, whatever ids a record claims.

mod assembly;
mod resume;
mod types;

use std::collections::BTreeMap;

use assembly::{Assembly, Progress};
pub use assembly::{Digest, SnapshotPart, TIERS};
pub use resume::Place;
pub use types::{
    Closing, EPOCH_AHEAD_MS_MAX, EVENT_ID_JUMP_MAX, Elapsed, Events, Limits, Speaker, Standing,
    Step, Verdict,
};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum State {
    Whole,
    Recovering { since_ms: u64, given_up: bool },
    Closed(Closing),
}

/// One worker's state machine. The caller owns the set; this owns what is held back.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Sequencer<P> {
    limits: Limits,
    speaker: Speaker,
    state: State,
    /// The set is the effect of exactly the events up to here, if `base` holds.
    applied: u64,
    /// False while only a snapshot can tell what the set is; then nothing is applied.
    base: bool,
    /// Whether the set before event 1 is known to be empty: a life that opens with a snapshot is not.
    opened_empty: bool,
    /// The highest event id that is known to exist.
    known: u64,
    /// Since when `applied < known` without progress.
    behind_since_ms: Option<u64>,
    held: BTreeMap<u64, Events<P>>,
    assembly: Option<Assembly>,
}

impl<P> Sequencer<P> {
    /// A worker of which nothing has been seen; the first record fixes everything.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            speaker: Speaker {
                epoch: 0,
                instance: 0,
            },
            state: State::Recovering {
                since_ms: 0,
                given_up: false,
            },
            applied: 0,
            base: true,
            opened_empty: true,
            known: 0,
            behind_since_ms: None,
            held: BTreeMap::new(),
            assembly: None,
        }
    }

    /// Whose records are believed.
    #[must_use]
    pub fn speaker(&self) -> Speaker {
        self.speaker
    }

    /// The last event whose effect the set holds.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// The highest event id that is known to exist.
    #[must_use]
    pub fn known(&self) -> u64 {
        self.known
    }

    /// How the set stands.
    #[must_use]
    pub fn standing(&self) -> Standing {
        match self.state {
            State::Whole => Standing::Whole,
            State::Recovering { .. } => Standing::Recovering,
            State::Closed(closing) => Standing::Closed(closing),
        }
    }

    /// Whether the receiver can go on from what comes next: no gap, and no lost base.
    #[must_use]
    pub fn needs_snapshot(&self) -> bool {
        matches!(self.state, State::Recovering { .. })
    }

    /// Whether a recovery has taken too long and the set was emptied.
    #[must_use]
    pub fn given_up(&self) -> bool {
        matches!(self.state, State::Recovering { given_up: true, .. })
    }

    /// Events that wait for what is missing before them.
    #[must_use]
    pub fn held_back_events(&self) -> u64 {
        self.held
            .values()
            .map(|events| u64::from(events.count))
            .sum()
    }

    /// Numbered events arrived.
    pub fn on_events(
        &mut self,
        speaker: Speaker,
        events: Events<P>,
        now_ms: u64,
        steps: &mut Vec<Step<P>>,
    ) -> Verdict {
        match self.fence(speaker, now_ms, steps) {
            Fence::Refused(verdict) => return verdict,
            Fence::Began if events.first_event_id == 1 => self.state = State::Whole,
            Fence::Current if self.is_jump(events.last_event_id()) => return Verdict::EventIdJump,
            Fence::Began | Fence::Current => {}
        }
        let last = events.last_event_id();
        if last <= self.applied {
            return Verdict::Seen;
        }
        self.known = self.known.max(last);
        if let Some(closing) = events.closing {
            // What came before the end no longer matters, so a shutdown waits for nothing.
            self.close(closing, steps);
            return Verdict::Applied;
        }
        if !self.base || events.first_event_id > self.applied + 1 {
            self.behind_since_ms.get_or_insert(now_ms);
            return self.hold_back(events, now_ms);
        }
        self.apply(events, steps);
        self.drain(now_ms, steps);
        Verdict::Applied
    }

    /// The publisher lives, and has numbered events up to `last_event_id`.
    ///
    /// [`Verdict::Applied`] if exactly that much is applied and the set is whole, so that a digest
    /// of that event can be compared; [`Verdict::HeldBack`] if events are missing.
    pub fn on_heartbeat(
        &mut self,
        speaker: Speaker,
        last_event_id: u64,
        now_ms: u64,
        steps: &mut Vec<Step<P>>,
    ) -> Verdict {
        match self.fence(speaker, now_ms, steps) {
            Fence::Refused(verdict) => return verdict,
            Fence::Began if last_event_id == 0 => self.state = State::Whole,
            Fence::Current if self.is_jump(last_event_id) => return Verdict::EventIdJump,
            Fence::Began | Fence::Current => {}
        }
        if last_event_id > self.applied {
            self.known = self.known.max(last_event_id);
            self.behind_since_ms.get_or_insert(now_ms);
            return Verdict::HeldBack;
        }
        let comparable = last_event_id == self.applied && self.state == State::Whole;
        if comparable {
            Verdict::Applied
        } else {
            Verdict::Seen
        }
    }

    /// One part of the worker's whole set arrived.
    pub fn on_snapshot_part(
        &mut self,
        speaker: Speaker,
        part: SnapshotPart,
        now_ms: u64,
        steps: &mut Vec<Step<P>>,
    ) -> Verdict {
        match self.fence(speaker, now_ms, steps) {
            Fence::Refused(verdict) => return verdict,
            Fence::Began => {
                self.base = false;
                self.opened_empty = false;
            }
            Fence::Current if self.is_jump(part.as_of) => return Verdict::EventIdJump,
            Fence::Current => {}
        }
        let as_of = part.as_of;
        let wanted = as_of > self.applied || (as_of == self.applied && self.needs_snapshot());
        let newest = self.assembly.as_ref().map_or(0, |assembly| assembly.as_of);
        if !wanted || as_of < newest {
            return Verdict::SnapshotOld;
        }
        self.known = self.known.max(as_of);
        if as_of > self.applied {
            self.behind_since_ms.get_or_insert(now_ms);
        }
        let mut assembly = match self.assembly.take() {
            Some(assembly) if assembly.continues(&part) => assembly,
            _ => Assembly::new(&part),
        };
        match assembly.add(
            part,
            self.limits.snapshot_parts,
            self.limits.snapshot_hashes,
        ) {
            Progress::TooLarge => Verdict::SnapshotTooLarge,
            Progress::Incomplete => {
                self.assembly = Some(assembly);
                Verdict::PartTaken
            }
            Progress::Mismatch => {
                self.assembly = Some(assembly);
                Verdict::SnapshotMismatch
            }
            Progress::Complete => {
                steps.push(Step::Replace(assembly.into_parts()));
                self.applied = as_of;
                self.base = true;
                self.state = State::Whole;
                self.forget_jumps();
                self.drain(now_ms, steps);
                Verdict::Applied
            }
        }
    }

    /// Whether a life that is known cannot have come to this event.
    fn is_jump(&self, event_id: u64) -> bool {
        event_id.saturating_sub(self.known) > EVENT_ID_JUMP_MAX
    }

    /// The first record of a life may name any event, for there is nothing to compare it with. The life's own snapshot is.
    fn forget_jumps(&mut self) {
        let most = self.applied.saturating_add(EVENT_ID_JUMP_MAX);
        self.held.retain(|_, events| events.last_event_id() <= most);
        if self.known > most {
            let held = self.held.values().map(Events::last_event_id).max();
            self.known = held.unwrap_or(0).max(self.applied);
        }
    }

    /// The set was found to differ from the publisher's: only a snapshot heals it.
    pub fn distrust(&mut self, now_ms: u64) {
        if self.state == State::Whole {
            self.base = false;
            self.state = State::Recovering {
                since_ms: now_ms,
                given_up: false,
            };
        }
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now_ms: u64, steps: &mut Vec<Step<P>>) -> Elapsed {
        let outlasted = |since: u64, bound: u64| now_ms.saturating_sub(since) > bound;
        match self.state {
            State::Whole => match self.behind_since_ms {
                Some(since) if outlasted(since, self.limits.hold_back_ms) => {
                    self.recover(now_ms);
                    Elapsed::GapOutlasted
                }
                _ => Elapsed::Nothing,
            },
            State::Recovering {
                since_ms,
                given_up: false,
            } if outlasted(since_ms, self.limits.recover_ms) => {
                self.give_up(steps);
                Elapsed::GivenUp
            }
            State::Recovering { .. } | State::Closed(_) => Elapsed::Nothing,
        }
    }

    /// No log answers: what is missing may lie in one, so a recovery's time begins when one does.
    pub fn on_tick_without_log(&mut self, now_ms: u64) {
        if let State::Recovering {
            since_ms,
            given_up: false,
        } = &mut self.state
        {
            *since_ms = now_ms;
        }
    }

    /// Empty the set and wait for a snapshot, or for every event since the first.
    pub fn give_up(&mut self, steps: &mut Vec<Step<P>>) {
        steps.push(Step::Empty);
        // An empty set is the effect of no event, so a log read again from event 1 heals it too.
        self.applied = 0;
        self.base = self.opened_empty;
        self.state = State::Recovering {
            since_ms: 0,
            given_up: true,
        };
    }

    fn fence(&mut self, speaker: Speaker, now_ms: u64, steps: &mut Vec<Step<P>>) -> Fence {
        if speaker == self.speaker {
            return match self.state {
                State::Closed(_) => Fence::Refused(Verdict::EpochClosed),
                _ => Fence::Current,
            };
        }
        if speaker.epoch < self.speaker.epoch {
            return Fence::Refused(Verdict::OlderEpoch);
        }
        if speaker.epoch == self.speaker.epoch {
            return Fence::Refused(Verdict::RivalInstance);
        }
        if speaker.epoch / 1000 > now_ms.saturating_add(EPOCH_AHEAD_MS_MAX) {
            return Fence::Refused(Verdict::EpochAhead);
        }
        *self = Self::new(self.limits);
        self.speaker = speaker;
        self.recover(now_ms);
        steps.push(Step::Empty);
        Fence::Began
    }

    fn recover(&mut self, now_ms: u64) {
        self.state = State::Recovering {
            since_ms: now_ms,
            given_up: false,
        };
    }

    fn hold_back(&mut self, events: Events<P>, now_ms: u64) -> Verdict {
        // Of two batches that begin alike the longer one is kept; they say the same.
        let first = events.first_event_id;
        if self
            .held
            .get(&first)
            .is_none_or(|held| held.count < events.count)
        {
            self.held.insert(first, events);
        }
        if self.held.len() <= self.limits.hold_back_batches {
            return Verdict::HeldBack;
        }
        // A snapshot will be newer than the oldest batch more likely than any other.
        self.held.pop_first();
        if self.state == State::Whole {
            self.recover(now_ms);
        }
        Verdict::HeldBackOverflow
    }

    fn apply(&mut self, events: Events<P>, steps: &mut Vec<Step<P>>) {
        let skip = self.applied + 1 - events.first_event_id;
        self.applied = events.last_event_id();
        // `skip` is less than `count`, since the last event was not applied yet.
        let skip = u32::try_from(skip).unwrap_or(events.count);
        steps.push(Step::Apply {
            payload: events.payload,
            skip,
        });
    }

    /// Apply what is held back and can be applied now, and see whether anything is still missing.
    fn drain(&mut self, now_ms: u64, steps: &mut Vec<Step<P>>) {
        while let Some(entry) = self.held.first_entry() {
            if *entry.key() > self.applied + 1 {
                break;
            }
            let events = entry.remove();
            if events.last_event_id() > self.applied {
                self.apply(events, steps);
            }
        }
        if self
            .assembly
            .as_ref()
            .is_some_and(|assembly| assembly.as_of <= self.applied)
        {
            self.assembly = None;
        }
        if self.applied < self.known {
            self.behind_since_ms = Some(now_ms);
        } else {
            self.behind_since_ms = None;
            self.state = State::Whole;
        }
    }

    fn close(&mut self, closing: Closing, steps: &mut Vec<Step<P>>) {
        steps.push(Step::Close(closing));
        self.state = State::Closed(closing);
        self.applied = self.known;
        self.behind_since_ms = None;
        self.held.clear();
        self.assembly = None;
    }
}

enum Fence {
    Current,
    Began,
    Refused(Verdict),
}
