//! The events that the model's publishers send: two epochs, each a fixed list of changes.
//!
//! The sequencer and the outbox never look inside a payload, so the choice of events cannot change what
//! they do. The events are chosen so that every wrong decision shows: an epoch's set differs after each
//! event, every event undoes or extends another, and no set of the first epoch occurs in the second.

use kvatlas_events::sequencer::{Incarnation, Limits, SnapshotPart, TierDigest};
use kvatlas_types::Tier;

/// Hashes, each one bit.
pub type Set = u64;

pub const LIMITS: Limits = Limits {
    hold_back_batches: 2,
    hold_back_ms: 10,
    recover_ms: 100,
    snapshot_parts: 8,
    snapshot_hashes: 64,
};

/// The time at which records arrive. Only whether a bound has passed matters to the sequencer, so three
/// moments are enough: this one, one after the hold-back, and one after a recovery begun at either.
pub const T0_MS: u64 = 1_000_000;
pub const T1_MS: u64 = T0_MS + LIMITS.hold_back_ms + 1;
pub const T2_MS: u64 = T1_MS + LIMITS.recover_ms + 1;

const A: Set = 1;
const B: Set = 2;
const C: Set = 4;
const D: Set = 8;
const E: Set = 16;
const F: Set = 32;

/// Bits stored, bits removed; one entry per event.
const EPOCHS: [[(Set, Set); 5]; 2] = [
    [(A, 0), (B, 0), (0, A), (C, 0), (0, B)],
    [(D, 0), (E, 0), (0, D), (F, 0), (0, E)],
];

/// The set with which a publisher restarts from its checkpoint. It counts as event 1, which no record
/// carries. If it were event 0, a receiver that lost the opening snapshot would take the next event for
/// the first one of an empty set.
const CARRIED: Set = 64 | 128;

/// Numbered events of one epoch, by their positions in its script.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EventRange {
    pub epoch: u8,
    pub first: u8,
    pub count: u8,
}

impl EventRange {
    pub fn apply(self, skip: u32, set: &mut Set) {
        let script = EPOCHS[usize::from(self.epoch)];
        let events = script.iter().skip(usize::from(self.first) - 1);
        for (stored, removed) in events.take(usize::from(self.count)).skip(skip as usize) {
            *set = (*set | stored) & !removed;
        }
    }
}

/// The incarnation of an epoch. The instance tells whether the epoch began with a checkpoint.
pub fn incarnation(epoch: u8, carries: bool) -> Incarnation {
    Incarnation {
        epoch: 10 + u64::from(epoch),
        instance: u64::from(carries),
    }
}

/// The set that the publisher holds after `event_id` events of its epoch.
pub fn held(incarnation: Incarnation, event_id: u64) -> Set {
    let Some(epoch) = incarnation.epoch.checked_sub(10) else {
        return 0;
    };
    let carries = u64::from(incarnation.instance == 1 && event_id > 0);
    let mut set = carries * CARRIED;
    let range = EventRange {
        epoch: u8::try_from(epoch).unwrap(),
        first: u8::try_from(1 + carries).unwrap(),
        count: u8::try_from(event_id - carries).unwrap(),
    };
    range.apply(0, &mut set);
    set
}

/// The whole set after `as_of` events, in two parts where there are two hashes.
pub fn snapshot(incarnation: Incarnation, as_of: u64) -> Vec<SnapshotPart> {
    let set = held(incarnation, as_of);
    let hashes: Vec<u64> = (0..64)
        .map(|bit| 1 << bit)
        .filter(|bit| set & bit != 0)
        .collect();
    let mut digests = [TierDigest::default(); Tier::COUNT];
    digests[0] = TierDigest::of(&hashes);
    let cut = hashes.len().min(1);
    let mut pieces = vec![hashes[..cut].to_vec()];
    if hashes.len() > cut {
        pieces.push(hashes[cut..].to_vec());
    }
    let parts = u32::try_from(pieces.len()).unwrap();
    (0..parts)
        .zip(pieces)
        .map(|(part, hashes)| SnapshotPart {
            as_of,
            part,
            parts,
            tier: 0,
            hashes,
            digests,
        })
        .collect()
}
