//! A sequencer's place, out of one process and into another: what a replica's snapshot keeps of it.
//!
//! What is held back and half-put-together snapshots are left behind: the ids they stand for stay
//! known to exist, so the sequencer that goes on from here misses them and asks for them, like any others.

use super::{Limits, Sequencer, Speaker, Standing, State};

/// How far one worker had been followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Whose records are believed.
    pub speaker: Speaker,
    /// The last event whose effect the set holds.
    pub applied: u64,
    /// The highest event id that is known to exist; or that may have left traces in the set.
    pub known: u64,
    /// How the set stands.
    pub standing: Standing,
    /// Whether only a snapshot can tell what the set is.
    pub base_lost: bool,
    /// Whether the set before event 1 is known to be empty.
    pub opened_empty: bool,
}

impl<P> Sequencer<P> {
    /// Where it stands.
    #[must_use]
    pub fn place(&self) -> Place {
        Place {
            speaker: self.speaker,
            applied: self.applied,
            known: self.known,
            standing: self.standing(),
            base_lost: !self.base,
            opened_empty: self.opened_empty,
        }
    }

    /// One that goes on from `place`. Its set is whole only if nothing is known to be missing: until
    /// then the worker recovers, and a heartbeat's digest is not compared.
    #[must_use]
    pub fn resumed(limits: Limits, place: Place, now_ms: u64) -> Self {
        let known = place.known.max(place.applied);
        let is_whole = known == place.applied && !place.base_lost;
        let state = match place.standing {
            Standing::Closed(closing) => State::Closed(closing),
            Standing::Whole if is_whole => State::Whole,
            Standing::Whole | Standing::Recovering => State::Recovering {
                since_ms: now_ms,
                given_up: false,
            },
        };
        Self {
            speaker: place.speaker,
            state,
            applied: place.applied,
            base: !place.base_lost,
            opened_empty: place.opened_empty,
            known,
            behind_since_ms: (known > place.applied).then_some(now_ms),
            ..Self::new(limits)
        }
    }

    /// Events that are known to exist and are not in the set, and since when nothing has been applied
    /// although they are; none if there are no such events.
    #[must_use]
    pub fn lag(&self) -> Option<(u64, Option<u64>)> {
        let events = self.known.checked_sub(self.applied).filter(|&n| n > 0)?;
        Some((events, self.behind_since_ms))
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
    const SPEAKER: Speaker = Speaker {
        epoch: 5,
        instance: 9,
    };

    fn events(first_event_id: u64, count: u32) -> Events<()> {
        Events {
            first_event_id,
            count,
            closing: None,
            payload: (),
        }
    }

    fn resumed(known: u64) -> Sequencer<()> {
        let place = Place {
            speaker: SPEAKER,
            applied: 3,
            known,
            standing: Standing::Whole,
            base_lost: false,
            opened_empty: true,
        };
        Sequencer::resumed(LIMITS, place, 0)
    }

    #[test]
    fn a_place_goes_on_where_it_was_and_drops_what_it_has_seen() {
        let mut sequencer = resumed(3);
        let mut steps = Vec::new();
        assert_eq!(sequencer.place().standing, Standing::Whole);
        let seen = sequencer.on_events(SPEAKER, events(2, 2), 0, &mut steps);
        assert_eq!((seen, steps.len()), (Verdict::Seen, 0));
        let next = sequencer.on_events(SPEAKER, events(3, 2), 0, &mut steps);
        assert_eq!((next, sequencer.applied()), (Verdict::Applied, 4));
    }

    #[test]
    fn a_set_with_traces_of_later_events_is_whole_only_after_them() {
        let mut sequencer = resumed(6);
        let mut steps = Vec::new();
        assert_eq!(sequencer.lag(), Some((3, Some(0))));
        sequencer.on_events(SPEAKER, events(4, 2), 0, &mut steps);
        assert_eq!(sequencer.standing(), Standing::Recovering);
        let beat = sequencer.on_heartbeat(SPEAKER, 5, 0, &mut steps);
        assert_eq!(beat, Verdict::Seen, "a digest of event 5 is not compared");
        sequencer.on_events(SPEAKER, events(6, 1), 0, &mut steps);
        assert_eq!(sequencer.standing(), Standing::Whole);
        assert_eq!(sequencer.lag(), None);
    }

    #[test]
    fn a_place_without_a_base_waits_for_a_snapshot() {
        let place = Place {
            base_lost: true,
            ..resumed(3).place()
        };
        let sequencer = Sequencer::<()>::resumed(LIMITS, place, 0);
        assert!(sequencer.needs_snapshot());
        assert_eq!(sequencer.place().standing, Standing::Recovering);
    }
}
