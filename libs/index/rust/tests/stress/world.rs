//! Who shares the table, what each holds, and what is known of it at a moment.
//!
//! Writers tell, before and after each step, how far they are; a reader looks at that before and after its look-up. So
//! the promise about an answer is as narrow as can be known from outside.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use kvatlas_hashing::sequence_step;
use kvatlas_index::{Index, IndexConfig, SlotId, Tier, WorkerKey};

use crate::promise::{Promise, Range};

/// Miri takes some thousand times as long for each.
pub const BLOCKS: usize = if cfg!(miri) { 14 } else { 90 };
pub const CROWD: u64 = 80;
pub const TOGGLED_BLOCKS: usize = if cfg!(miri) { 4 } else { 12 };
/// Workers on the ladder, and blocks from one rung to the next; each rung has four workers.
const LADDER_WORKERS: u64 = 24;
const RUNG: usize = if cfg!(miri) { 2 } else { 10 };
/// How deep those who pass by hold the ladder's prompt: as deep as those of one rung.
pub const PASSING_ON_LADDER: usize = 4 * RUNG;

pub const STABLE: u64 = 1_000;
const STABLE_WORKERS: u64 = 8;
pub const GROWING: u64 = 2_000;
pub const REPLACED: u64 = 3_000;
pub const PASSING: u64 = 4_000_000;
pub const CROWDED: u64 = 5_000;
pub const TOGGLED: u64 = 6_000;
pub const LADDER: u64 = 7_000;
pub const TIDE: u64 = 8_000;
pub const TIERED: u64 = 8_100;
pub const CLEARED: u64 = 8_200;

/// What a look-up asks for: a prompt, and how many of its blocks.
#[derive(Clone, Copy, Debug)]
pub enum Subject {
    Stable(u64),
    Growing,
    Replaced,
    Passing(u64),
    Crowd,
    Toggled(u64),
    Ladder,
    Tide,
    Tiered,
    Cleared,
    Nobody(u64),
}

/// How far the writers are.
#[derive(Clone, Copy)]
pub struct Told {
    /// Four steps a lap, see [`Passing`].
    passing: u64,
    tide: u64,
}

/// The steps of a worker's life that passes by.
#[derive(Clone, Copy)]
pub enum Passing {
    Coming,
    /// It has all that it will ever have, and is matchable.
    There,
    Leaving,
    Gone,
}

pub struct World {
    pub index: Index,
    /// Slots that are of one worker from start to end, by worker.
    pub fixed: Vec<(u64, SlotId)>,
    /// The first slot of the one whose set is replaced.
    pub replaced: SlotId,
    owners: HashMap<u16, u64>,
    /// The slot of each who passes by; 0: not yet known; else its number and one.
    passing_slots: Vec<AtomicU64>,
    passing: AtomicU64,
    tide: AtomicU64,
    highest: AtomicU64,
}

/// The chunk hashes of the prompt that stands for `who`.
pub fn chunks(who: u64) -> Vec<u64> {
    let first = who.wrapping_mul(0x2545_f491_4f6c_dd1d);
    let others = (1..BLOCKS as u64).map(|block| who << 16 | block);
    std::iter::once(first).chain(others).collect()
}

/// Its sequence hashes.
pub fn prompt(who: u64) -> Vec<u64> {
    let mut hashes: Vec<u64> = Vec::with_capacity(BLOCKS);
    for chunk in chunks(who) {
        let hash = hashes
            .last()
            .map_or(chunk, |&last| sequence_step(last, chunk));
        hashes.push(hash);
    }
    hashes
}

pub fn allocated(index: &Index, worker_id: u64) -> SlotId {
    let dp_rank = 0;
    let key = WorkerKey { worker_id, dp_rank };
    index.allocate(key).unwrap()
}

pub fn live(index: &Index, worker_id: u64, hashes: &[u64]) -> SlotId {
    let slot = allocated(index, worker_id);
    assert_eq!(index.store(slot, Tier::Device, hashes), hashes.len());
    index.publish(slot);
    slot
}

impl World {
    /// With everybody in it who stays, for so many laps.
    pub fn new(laps: u64) -> Self {
        let index = Index::new(IndexConfig {
            shard_bits: 1,
            initial_slots_per_shard: 1,
        });
        let mut fixed = Vec::new();
        let mut settle = |who: u64, of: u64, depth: usize| {
            let slot = live(&index, who, &prompt(of)[..depth]);
            fixed.push((who, slot));
        };
        for who in STABLE..STABLE + STABLE_WORKERS {
            settle(who, who, BLOCKS);
        }
        settle(CROWDED, CROWDED, BLOCKS);
        for first in [TOGGLED, TOGGLED + 10] {
            for who in first..first + 6 {
                settle(who, first, if who < first + 3 { TOGGLED_BLOCKS } else { 0 });
            }
        }
        for place in 0..LADDER_WORKERS {
            settle(LADDER + place, LADDER, rung(place));
        }
        for who in [GROWING, TIDE, CLEARED] {
            settle(who, who, 0);
        }
        settle(TIERED, TIERED, BLOCKS);
        let replaced = live(&index, REPLACED, &prompt(REPLACED));
        Self {
            owners: fixed
                .iter()
                .map(|&(who, slot)| (slot.number(), who))
                .collect(),
            index,
            fixed,
            replaced,
            passing_slots: (0..laps).map(|_| AtomicU64::new(0)).collect(),
            passing: AtomicU64::new(0),
            tide: AtomicU64::new(0),
            highest: AtomicU64::new(0),
        }
    }

    pub fn slot(&self, who: u64) -> SlotId {
        let found = self.fixed.iter().find(|&&(worker, _)| worker == who);
        found.unwrap().1
    }

    /// Everybody who may ever be found.
    pub fn everybody(&self) -> BTreeSet<u64> {
        let fixed = self.fixed.iter().map(|&(who, _)| who);
        let crowd = CROWDED + 1..=CROWDED + CROWD;
        let passing = (0..self.passing_slots.len() as u64).map(|lap| PASSING + lap);
        let others = crowd.chain(passing).chain([REPLACED]);
        fixed.chain(others).collect()
    }

    /// How deep the growing one is about to be.
    pub fn tell_growing(&self, depth: usize) {
        self.highest.fetch_max(depth as u64, SeqCst);
    }

    pub fn tell_passing(&self, lap: u64, step: Passing) {
        self.passing.store(4 * lap + step as u64, SeqCst);
    }

    /// Before it is matchable.
    pub fn tell_passing_slot(&self, lap: u64, slot: SlotId) {
        self.passing_slots[lap as usize].store(u64::from(slot.number()) + 1, SeqCst);
    }

    /// The tide is between these depths; each call is told from every other one.
    pub fn tell_tide(&self, low: usize, high: usize) {
        let turn = (self.tide.load(SeqCst) >> 32) + 1;
        self.tide
            .store(turn << 32 | (low as u64) << 16 | high as u64, SeqCst);
    }

    pub fn told(&self) -> Told {
        Told {
            passing: self.passing.load(SeqCst),
            tide: self.tide.load(SeqCst),
        }
    }

    /// The lap of those who pass by.
    pub fn lap(&self) -> u64 {
        self.passing.load(SeqCst) / 4
    }

    /// What an answer may say that came between `before` and now.
    pub fn promise(&self, subject: Subject, before: Told) -> Promise {
        let after = self.told();
        let one = |who, range| Promise::from([(who, range)]);
        match subject {
            Subject::Stable(who) => one(who, Range::always(BLOCKS)),
            Subject::Growing => {
                let ever = self.highest.load(SeqCst) as usize;
                one(GROWING, Range::between(0, ever))
            }
            Subject::Replaced => one(REPLACED, Range::always(BLOCKS)),
            Subject::Passing(lap) => self
                .passed(before, after, BLOCKS)
                .filter(|&(who, _)| who == PASSING + lap)
                .collect(),
            Subject::Crowd => {
                let members = CROWDED + 1..=CROWDED + CROWD;
                let mut promise: Promise = members
                    .map(|who| (who, Range::between(0, BLOCKS - 1)))
                    .collect();
                promise.insert(CROWDED, Range::always(BLOCKS));
                promise
            }
            Subject::Toggled(first) => (first..first + 6)
                .map(|who| {
                    let least = if who < first + 3 { TOGGLED_BLOCKS } else { 0 };
                    (who, Range::between(least, TOGGLED_BLOCKS))
                })
                .collect(),
            Subject::Ladder => (0..LADDER_WORKERS)
                .map(|place| (LADDER + place, Range::always(rung(place))))
                .chain(self.passed(before, after, PASSING_ON_LADDER))
                .collect(),
            Subject::Tide if before.tide == after.tide => {
                let (low, high) = (after.tide >> 16 & 0xffff, after.tide & 0xffff);
                one(TIDE, Range::between(low as usize, high as usize))
            }
            Subject::Tide => one(TIDE, Range::between(0, BLOCKS)),
            Subject::Tiered => one(TIERED, Range::always(BLOCKS)),
            Subject::Cleared => one(CLEARED, Range::between(0, BLOCKS)),
            Subject::Nobody(_) => Promise::new(),
        }
    }

    /// Those who may have been there meanwhile, each with all its blocks. Whoever was there from before to after, must be.
    fn passed(
        &self,
        before: Told,
        after: Told,
        depth: usize,
    ) -> impl Iterator<Item = (u64, Range)> {
        let there = |lap: u64| 4 * lap + Passing::There as u64;
        let gone = |lap: u64| 4 * lap + Passing::Gone as u64;
        (before.passing / 4..=after.passing / 4).filter_map(move |lap| {
            if before.passing >= gone(lap) {
                return None;
            }
            let throughout = (before.passing, after.passing) == (there(lap), there(lap));
            let range = if throughout {
                Range::always(depth)
            } else {
                Range::whole_or_not(depth)
            };
            Some((PASSING + lap, range))
        })
    }

    /// Whose slot it may have been, among those of the promise and those who stay: more than one if it was handed on meanwhile.
    pub fn owners(&self, number: u16, promise: &Promise) -> Vec<u64> {
        let passing = promise.keys().copied().filter(|&who| {
            let lap = who.checked_sub(PASSING);
            let slot = lap.and_then(|lap| self.passing_slots.get(lap as usize));
            slot.is_some_and(|slot| slot.load(SeqCst) == u64::from(number) + 1)
        });
        let staying = self.owners.get(&number).copied();
        passing.chain(staying).collect()
    }
}

fn rung(place: u64) -> usize {
    (place as usize / 4 + 1) * RUNG
}

impl Subject {
    /// Whose prompt it is.
    pub fn of(self) -> u64 {
        match self {
            Self::Stable(who) | Self::Toggled(who) | Self::Nobody(who) => who,
            Self::Growing => GROWING,
            Self::Replaced => REPLACED,
            Self::Passing(lap) => PASSING + lap,
            Self::Crowd => CROWDED,
            Self::Ladder => LADDER,
            Self::Tide => TIDE,
            Self::Tiered => TIERED,
            Self::Cleared => CLEARED,
        }
    }

    /// Whether whoever may be found is known by the number of their slots.
    pub fn has_known_slots(self) -> bool {
        !matches!(self, Self::Replaced | Self::Crowd)
    }
}
