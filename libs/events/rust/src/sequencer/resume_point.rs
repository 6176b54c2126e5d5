//! A sequencer's state without its buffers: the part that a replica's state file keeps.
//!
//! Held-back batches and half-assembled snapshots are left out. Their event ids stay in `known`, so the
//! sequencer that starts from here finds these events missing and recovers them like any lost record.

use super::{Incarnation, Limits, Phase, Sequencer, SequencerState};

/// How far one worker was followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResumePoint {
    /// The incarnation whose records are accepted.
    pub incarnation: Incarnation,
    /// The last event whose effect the set holds.
    pub applied: u64,
    /// The highest event id that is known to exist, or that may have left traces in the set.
    pub known: u64,
    /// Whether the set could be believed.
    pub state: SequencerState,
    /// Whether only a snapshot can tell what the set is.
    pub base_lost: bool,
    /// Whether the set before event 1 is known to be empty.
    pub opened_empty: bool,
}

impl<P> Sequencer<P> {
    /// The point from which another sequencer can go on.
    #[must_use]
    pub fn resume_point(&self) -> ResumePoint {
        ResumePoint {
            incarnation: self.incarnation,
            applied: self.applied,
            known: self.known,
            state: self.state(),
            base_lost: !self.has_base,
            opened_empty: self.opened_empty,
        }
    }

    /// A sequencer that goes on from `point`.
    ///
    /// Its set is whole only if no event is known to be missing. Until then the worker recovers, and
    /// heartbeats' digests are not compared.
    #[must_use]
    pub fn resume(limits: Limits, point: ResumePoint, now_ms: u64) -> Self {
        let known = point.known.max(point.applied);
        let is_whole = known == point.applied && !point.base_lost;
        let phase = match point.state {
            SequencerState::Closed(reason) => Phase::Closed(reason),
            SequencerState::Whole if is_whole => Phase::Whole,
            SequencerState::Whole | SequencerState::Recovering => Phase::Recovering {
                since_ms: now_ms,
                given_up: false,
            },
        };
        Self {
            incarnation: point.incarnation,
            phase,
            applied: point.applied,
            has_base: !point.base_lost,
            opened_empty: point.opened_empty,
            known,
            behind_since_ms: (known > point.applied).then_some(now_ms),
            ..Self::new(limits)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Events, Verdict};
    use super::*;

    const LIMITS: Limits = Limits {
        hold_back_batches: 4,
        hold_back_ms: 100,
        recover_ms: 1_000,
        snapshot_parts: 8,
        snapshot_hashes: 64,
    };
    const INCARNATION: Incarnation = Incarnation {
        epoch: 5,
        instance: 9,
    };

    fn events(first_event_id: u64, count: u32) -> Events<()> {
        Events {
            first_event_id,
            count,
            shutdown: None,
            payload: (),
        }
    }

    fn resumed(known: u64) -> Sequencer<()> {
        let point = ResumePoint {
            incarnation: INCARNATION,
            applied: 3,
            known,
            state: SequencerState::Whole,
            base_lost: false,
            opened_empty: true,
        };
        Sequencer::resume(LIMITS, point, 0)
    }

    #[test]
    fn a_resumed_sequencer_goes_on_and_drops_what_was_applied() {
        let mut sequencer = resumed(3);
        let mut steps = Vec::new();
        assert_eq!(sequencer.resume_point().state, SequencerState::Whole);
        let seen = sequencer.on_events(INCARNATION, events(2, 2), 0, &mut steps);
        assert_eq!((seen, steps.len()), (Verdict::Seen, 0));
        let next = sequencer.on_events(INCARNATION, events(3, 2), 0, &mut steps);
        assert_eq!((next, sequencer.applied()), (Verdict::Applied, 4));
    }

    #[test]
    fn a_set_with_traces_of_later_events_is_whole_once_they_are_applied() {
        let mut sequencer = resumed(6);
        let mut steps = Vec::new();
        assert_eq!(sequencer.lag(), Some((3, Some(0))));
        sequencer.on_events(INCARNATION, events(4, 2), 0, &mut steps);
        assert_eq!(sequencer.state(), SequencerState::Recovering);
        let beat = sequencer.on_heartbeat(INCARNATION, 5, 0, &mut steps);
        assert_eq!(beat, Verdict::Seen, "a digest of event 5 is not compared");
        sequencer.on_events(INCARNATION, events(6, 1), 0, &mut steps);
        assert_eq!(sequencer.state(), SequencerState::Whole);
        assert_eq!(sequencer.lag(), None);
    }

    #[test]
    fn a_resumed_sequencer_without_a_base_waits_for_a_snapshot() {
        let point = ResumePoint {
            base_lost: true,
            ..resumed(3).resume_point()
        };
        let sequencer = Sequencer::<()>::resume(LIMITS, point, 0);
        assert!(sequencer.needs_snapshot());
        assert_eq!(sequencer.resume_point().state, SequencerState::Recovering);
    }
}
