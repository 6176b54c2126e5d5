//! The indexer's sequencer: one small state machine per worker.
//!
//! It decides which of a worker's records are applied, in which order, and whether the worker's set can be
//! believed. It knows neither bytes, nor the index, nor a clock: payloads belong to the caller, time comes in
//! as milliseconds, and the changes to make come out as [`Step`]s, in order.
//!
//! ```text
//!                 event 1, or a heartbeat at 0, or a complete snapshot
//!   (first seen) ────────────────────────────────────────────────▶ Whole ──▶ Closed
//!        │                                                        ▲     │
//!        │ anything else    snapshot complete, or gap closed      │     │ a gap outlasts the hold-back,
//!        ▼                                                        │     ▼ or a digest differs
//!    Recovering ──────────────────────────────────────────────────┴── Recovering
//!        └── longer than `recover_ms`: emptied once, counted, and still waiting
//! ```
//!
//! Rules for epochs:
//! - A batch of an older epoch is dropped. A newer epoch replaces the worker's set.
//! - Within one epoch only the instance that was seen first is accepted.
//! - An epoch more than [`EPOCH_AHEAD_MS_MAX`] ahead of the clock is refused.
//! - `Shutdown(engine gone)` removes the worker. `Shutdown(publisher leaving)` leaves it without a set.
//!
//! Rules within an epoch:
//! - The next event is applied. An event that was applied before is dropped, also as part of a batch.
//! - A batch behind a gap is held back, within the limits.
//! - An event id more than [`EVENT_ID_JUMP_MAX`] above the highest known one is refused. The first record of an epoch
//!   has nothing to compare with; the epoch's next snapshot makes the sequencer forget such an id.
//! - The worker is *recovering*, and so not matched, if its first record is not event 1, if a gap outlasts the hold-back,
//!   or if a digest differs. A snapshot with `as_of` at or above the applied events, or the missing records, end that.
//! - A recovery longer than `recover_ms` empties the set. The worker goes on waiting.
//!
//! No lost event goes unnoticed: `known` is the highest event id that any batch or heartbeat has named, and a
//! worker with `applied < known` stays whole only as long as the hold-back lasts. The limits bound the memory,
//! whatever ids a record claims.

mod resume_point;
mod snapshot;
mod types;

use std::collections::BTreeMap;

pub use kvatlas_types::TierDigest;
pub use resume_point::ResumePoint;
pub use snapshot::SnapshotPart;
use snapshot::{Progress, SnapshotAssembly};
pub use types::{
    EPOCH_AHEAD_MS_MAX, EVENT_ID_JUMP_MAX, Events, Incarnation, Limits, SequencerState,
    ShutdownReason, Step, TickOutcome, Verdict,
};

/// [`SequencerState`] with the data of a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Whole,
    Recovering { since_ms: u64, given_up: bool },
    Closed(ShutdownReason),
}

/// One worker's state machine. The caller owns the worker's set; the sequencer owns the batches held back.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Sequencer<P> {
    limits: Limits,
    incarnation: Incarnation,
    phase: Phase,
    /// If `has_base`, the set is the effect of exactly the events up to this id.
    applied: u64,
    /// False while only a snapshot can tell what the set is. Then nothing is applied.
    has_base: bool,
    /// Whether the set before event 1 is known to be empty. It is not if the epoch opened with a snapshot.
    opened_empty: bool,
    /// The highest event id that is known to exist.
    known: u64,
    /// Start of the time without progress while `applied < known`.
    behind_since_ms: Option<u64>,
    /// Batches behind a gap, by their first event id.
    held_back: BTreeMap<u64, Events<P>>,
    assembly: Option<SnapshotAssembly>,
}

impl<P> Sequencer<P> {
    /// The sequencer of a worker without records. Its first record fixes the epoch.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            incarnation: Incarnation {
                epoch: 0,
                instance: 0,
            },
            phase: Phase::Recovering {
                since_ms: 0,
                given_up: false,
            },
            applied: 0,
            has_base: true,
            opened_empty: true,
            known: 0,
            behind_since_ms: None,
            held_back: BTreeMap::new(),
            assembly: None,
        }
    }

    /// The incarnation whose records are accepted; epoch 0 before the first record.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
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

    /// Whether the worker's set can be believed.
    #[must_use]
    pub fn state(&self) -> SequencerState {
        match self.phase {
            Phase::Whole => SequencerState::Whole,
            Phase::Recovering { .. } => SequencerState::Recovering,
            Phase::Closed(reason) => SequencerState::Closed(reason),
        }
    }

    /// Whether the worker is recovering, so that a snapshot would help.
    #[must_use]
    pub fn needs_snapshot(&self) -> bool {
        self.state() == SequencerState::Recovering
    }

    /// Whether a recovery was given up and the set emptied.
    #[must_use]
    pub fn given_up(&self) -> bool {
        matches!(self.phase, Phase::Recovering { given_up: true, .. })
    }

    /// Number of events that are held back behind a gap.
    #[must_use]
    pub fn held_back_events(&self) -> u64 {
        let batches = self.held_back.values();
        batches.map(|events| u64::from(events.count)).sum()
    }

    /// The number of known events that are not applied, and the start of the time without progress. None if there are
    /// no such events.
    #[must_use]
    pub fn lag(&self) -> Option<(u64, Option<u64>)> {
        let events = self.known.checked_sub(self.applied).filter(|&n| n > 0)?;
        Some((events, self.behind_since_ms))
    }

    /// Takes a batch of numbered events.
    pub fn on_events(
        &mut self,
        incarnation: Incarnation,
        events: Events<P>,
        now_ms: u64,
        steps: &mut Vec<Step<P>>,
    ) -> Verdict {
        match self.fence(incarnation, now_ms, steps) {
            Fence::Refused(verdict) => return verdict,
            Fence::Began if events.first_event_id == 1 => self.phase = Phase::Whole,
            Fence::Current if self.is_jump(events.last_event_id()) => return Verdict::EventIdJump,
            Fence::Began | Fence::Current => {}
        }
        let last = events.last_event_id();
        if last <= self.applied {
            return Verdict::Seen;
        }
        self.known = self.known.max(last);
        if let Some(reason) = events.shutdown {
            // Events before the end no longer matter, so a shutdown does not wait for them.
            self.close(reason, steps);
            return Verdict::Applied;
        }
        if !self.has_base || events.first_event_id > self.applied + 1 {
            self.behind_since_ms.get_or_insert(now_ms);
            return self.hold_back(events, now_ms);
        }
        self.apply(events, steps);
        self.apply_held_back(now_ms, steps);
        Verdict::Applied
    }

    /// Takes a heartbeat of a publisher that has numbered events up to `last_event_id`.
    ///
    /// [`Verdict::Applied`]: the set is whole and the effect of exactly these events, so digests can be compared.
    /// [`Verdict::HeldBack`]: events are missing.
    pub fn on_heartbeat(
        &mut self,
        incarnation: Incarnation,
        last_event_id: u64,
        now_ms: u64,
        steps: &mut Vec<Step<P>>,
    ) -> Verdict {
        match self.fence(incarnation, now_ms, steps) {
            Fence::Refused(verdict) => return verdict,
            Fence::Began if last_event_id == 0 => self.phase = Phase::Whole,
            Fence::Current if self.is_jump(last_event_id) => return Verdict::EventIdJump,
            Fence::Began | Fence::Current => {}
        }
        if last_event_id > self.applied {
            self.known = self.known.max(last_event_id);
            self.behind_since_ms.get_or_insert(now_ms);
            return Verdict::HeldBack;
        }
        if last_event_id == self.applied && self.phase == Phase::Whole {
            Verdict::Applied
        } else {
            Verdict::Seen
        }
    }

    /// Takes one part of a snapshot of the worker's whole set.
    pub fn on_snapshot_part(
        &mut self,
        incarnation: Incarnation,
        part: SnapshotPart,
        now_ms: u64,
        steps: &mut Vec<Step<P>>,
    ) -> Verdict {
        match self.fence(incarnation, now_ms, steps) {
            Fence::Refused(verdict) => return verdict,
            Fence::Began => {
                self.has_base = false;
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
            _ => SnapshotAssembly::new(&part),
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
                self.has_base = true;
                self.phase = Phase::Whole;
                self.forget_jumps();
                self.apply_held_back(now_ms, steps);
                Verdict::Applied
            }
        }
    }

    /// Whether this event id is implausibly far above the highest known one.
    fn is_jump(&self, event_id: u64) -> bool {
        event_id.saturating_sub(self.known) > EVENT_ID_JUMP_MAX
    }

    /// Forgets implausible event ids. The first record of an epoch may name any id, since nothing was there to compare it
    /// with; the epoch's snapshot is the first that can be compared.
    fn forget_jumps(&mut self) {
        let most = self.applied.saturating_add(EVENT_ID_JUMP_MAX);
        self.held_back
            .retain(|_, events| events.last_event_id() <= most);
        if self.known > most {
            let held_back = self.held_back.values().map(Events::last_event_id).max();
            self.known = held_back.unwrap_or(0).max(self.applied);
        }
    }

    /// Marks the set as wrong, since its digest differs from the publisher's. Only a snapshot corrects it.
    pub fn on_digest_mismatch(&mut self, now_ms: u64) {
        if self.phase == Phase::Whole {
            self.has_base = false;
            self.recover(now_ms);
        }
    }

    /// Checks whether a gap or a recovery has lasted too long.
    pub fn on_tick(&mut self, now_ms: u64, steps: &mut Vec<Step<P>>) -> TickOutcome {
        let outlasted = |since: u64, bound: u64| now_ms.saturating_sub(since) > bound;
        match self.phase {
            Phase::Whole => match self.behind_since_ms {
                Some(since) if outlasted(since, self.limits.hold_back_ms) => {
                    self.recover(now_ms);
                    TickOutcome::GapTimedOut
                }
                _ => TickOutcome::Nothing,
            },
            Phase::Recovering {
                since_ms,
                given_up: false,
            } if outlasted(since_ms, self.limits.recover_ms) => {
                self.give_up(steps);
                TickOutcome::RecoveryTimedOut
            }
            Phase::Recovering { .. } | Phase::Closed(_) => TickOutcome::Nothing,
        }
    }

    /// Restarts the time of a recovery while no log answers: the missing records may be in a log.
    pub fn on_tick_without_log(&mut self, now_ms: u64) {
        if let Phase::Recovering {
            since_ms,
            given_up: false,
        } = &mut self.phase
        {
            *since_ms = now_ms;
        }
    }

    /// Empties the set and waits for a snapshot, or for every event since the first.
    pub fn give_up(&mut self, steps: &mut Vec<Step<P>>) {
        steps.push(Step::Empty);
        // The empty set is the effect of no event, so a log that is read again from event 1 fills it, too.
        self.applied = 0;
        self.has_base = self.opened_empty;
        self.phase = Phase::Recovering {
            since_ms: 0,
            given_up: true,
        };
    }

    /// Compares a record's incarnation with the current one; a newer epoch starts over.
    fn fence(&mut self, incarnation: Incarnation, now_ms: u64, steps: &mut Vec<Step<P>>) -> Fence {
        if incarnation == self.incarnation {
            return match self.phase {
                Phase::Closed(_) => Fence::Refused(Verdict::EpochClosed),
                _ => Fence::Current,
            };
        }
        if incarnation.epoch < self.incarnation.epoch {
            return Fence::Refused(Verdict::OlderEpoch);
        }
        if incarnation.epoch == self.incarnation.epoch {
            return Fence::Refused(Verdict::RivalInstance);
        }
        if incarnation.epoch / 1000 > now_ms.saturating_add(EPOCH_AHEAD_MS_MAX) {
            return Fence::Refused(Verdict::EpochAhead);
        }
        *self = Self::new(self.limits);
        self.incarnation = incarnation;
        self.recover(now_ms);
        steps.push(Step::Empty);
        Fence::Began
    }

    fn recover(&mut self, now_ms: u64) {
        self.phase = Phase::Recovering {
            since_ms: now_ms,
            given_up: false,
        };
    }

    fn hold_back(&mut self, events: Events<P>, now_ms: u64) -> Verdict {
        // If two batches have the same first event, the longer one contains the other and is kept.
        let first = events.first_event_id;
        if self
            .held_back
            .get(&first)
            .is_none_or(|held_back| held_back.count < events.count)
        {
            self.held_back.insert(first, events);
        }
        if self.held_back.len() <= self.limits.hold_back_batches {
            return Verdict::HeldBack;
        }
        // The oldest batch is the one that the next snapshot most likely contains.
        self.held_back.pop_first();
        if self.phase == Phase::Whole {
            self.recover(now_ms);
        }
        Verdict::HeldBackOverflow
    }

    fn apply(&mut self, events: Events<P>, steps: &mut Vec<Step<P>>) {
        let skip = self.applied + 1 - events.first_event_id;
        self.applied = events.last_event_id();
        // `skip` is less than `count`, since the last event is new.
        let skip = u32::try_from(skip).unwrap_or(events.count);
        steps.push(Step::Apply {
            payload: events.payload,
            skip,
        });
    }

    /// Applies the batches held back that now follow, and updates the phase.
    fn apply_held_back(&mut self, now_ms: u64, steps: &mut Vec<Step<P>>) {
        while let Some(entry) = self.held_back.first_entry() {
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
            self.phase = Phase::Whole;
        }
    }

    fn close(&mut self, reason: ShutdownReason, steps: &mut Vec<Step<P>>) {
        steps.push(Step::Close(reason));
        self.phase = Phase::Closed(reason);
        self.applied = self.known;
        self.behind_since_ms = None;
        self.held_back.clear();
        self.assembly = None;
    }
}

/// The result of comparing a record's incarnation with the current one.
enum Fence {
    /// The same incarnation, and its epoch is open.
    Current,
    /// A newer epoch, which has just begun.
    Began,
    Refused(Verdict),
}
