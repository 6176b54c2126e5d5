//! What the publishers of the model say: two lives, each a fixed list of changes.
//!
//! The sequencer and the outbox never look inside what they carry, so which events are said cannot
//! change what they do. These are chosen so that every wrong choice shows: a life's set differs
//! after each of its events, every event undoes or extends another, and no set of the first life
//! is one of the second's.

use kvatlas_events::sequencer::{Digest, Limits, SnapshotPart, Speaker, TIERS};

/// Hashes, each one bit.
pub type Set = u64;

pub const LIMITS: Limits = Limits {
    hold_back_batches: 2,
    hold_back_ms: 10,
    recover_ms: 100,
    snapshot_parts: 8,
    snapshot_hashes: 64,
};

/// When records arrive. Only whether a bound has passed matters to the sequencer, so three moments
/// are all of time: this one, one past the hold-back, and one past a recovery begun at either.
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
const LIVES: [[(Set, Set); 5]; 2] = [
    [(A, 0), (B, 0), (0, A), (C, 0), (0, B)],
    [(D, 0), (E, 0), (0, D), (F, 0), (0, E)],
];

/// What a restarted publisher that kept its memory holds as its life begins. It counts as event 1,
/// which no record ever holds: were it event 0, a receiver that lost the opening snapshot would take
/// the next event for the first one of an empty set.
const CARRIED: Set = 64 | 128;

/// Numbered events of one life, by their places in its script.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Said {
    pub life: u8,
    pub first: u8,
    pub count: u8,
}

impl Said {
    pub fn apply(self, skip: u32, set: &mut Set) {
        let script = LIVES[usize::from(self.life)];
        let events = script.iter().skip(usize::from(self.first) - 1);
        for (stored, removed) in events.take(usize::from(self.count)).skip(skip as usize) {
            *set = (*set | stored) & !removed;
        }
    }
}

/// Who speaks in a life. The instance tells whether the life began with something in memory.
pub fn speaker(life: u8, carries: bool) -> Speaker {
    Speaker {
        epoch: 10 + u64::from(life),
        instance: u64::from(carries),
    }
}

/// What the publisher holds after `event_id` events of its life.
pub fn held(speaker: Speaker, event_id: u64) -> Set {
    let Some(life) = speaker.epoch.checked_sub(10) else {
        return 0;
    };
    let carries = u64::from(speaker.instance == 1 && event_id > 0);
    let mut set = carries * CARRIED;
    let said = Said {
        life: u8::try_from(life).unwrap(),
        first: u8::try_from(1 + carries).unwrap(),
        count: u8::try_from(event_id - carries).unwrap(),
    };
    said.apply(0, &mut set);
    set
}

/// The whole set after `as_of` events, in two parts where there are two hashes.
pub fn snapshot(speaker: Speaker, as_of: u64) -> Vec<SnapshotPart> {
    let set = held(speaker, as_of);
    let hashes: Vec<u64> = (0..64)
        .map(|bit| 1 << bit)
        .filter(|bit| set & bit != 0)
        .collect();
    let mut digests = [Digest::default(); TIERS];
    digests[0] = Digest::of(&hashes);
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
