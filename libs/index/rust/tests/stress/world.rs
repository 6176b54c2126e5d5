//! The workers that share the table, their prompts, and the bounds of answers at a moment.
//!
//! Writers note their progress before and after each step; a reader reads that before and after its look-up. So the bounds
//! of an answer are as narrow as can be known from outside.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use kvatlas_hashing::sequence_step;
use kvatlas_index::{Index, IndexConfig, SlotId, Tier, WorkerKey, WorkerSlot};

use crate::bounds::{Bounds, DepthRange};

/// Miri takes some thousand times as long for each.
pub const BLOCKS: usize = if cfg!(miri) { 14 } else { 90 };
pub const CROWD: u64 = 80;
pub const TOGGLED_BLOCKS: usize = if cfg!(miri) { 4 } else { 12 };
/// Workers on the ladder, and blocks from one rung to the next. Each rung has four workers.
const LADDER_WORKERS: u64 = 24;
const RUNG: usize = if cfg!(miri) { 2 } else { 10 };
/// Depth to which passing workers hold the ladder's prompt: that of one rung.
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

/// The prompt that a look-up asks for.
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
    Unknown(u64),
}

/// The progress of the writers.
#[derive(Clone, Copy)]
pub struct Progress {
    /// Lap and step of the passing worker: four steps a lap, see [`Passing`].
    passing: u64,
    tide: u64,
}

/// The steps of a passing worker.
#[derive(Clone, Copy)]
pub enum Passing {
    Joining,
    /// It has all that it will ever have, and is matchable.
    Present,
    Leaving,
    Left,
}

pub struct World {
    pub index: Index,
    /// Workers that keep their slots from start to end.
    pub fixed: Vec<(u64, SlotId)>,
    /// The first slot of the worker whose set is replaced.
    pub replaced: SlotId,
    owners: HashMap<WorkerSlot, u64>,
    /// The slot of each passing worker plus one; 0 while it is not known.
    passing_slots: Vec<AtomicU64>,
    passing: AtomicU64,
    tide: AtomicU64,
    highest: AtomicU64,
}

/// The chunk hashes of worker `who`'s prompt.
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
    /// A world with all workers that stay, for so many laps.
    pub fn new(laps: u64) -> Self {
        let index = Index::new(IndexConfig {
            shard_bits: 1,
            initial_entries_per_shard: 1,
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
                .map(|&(who, slot)| (slot.slot(), who))
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

    /// All workers that may ever be found.
    pub fn all_workers(&self) -> BTreeSet<u64> {
        let fixed = self.fixed.iter().map(|&(who, _)| who);
        let crowd = CROWDED + 1..=CROWDED + CROWD;
        let passing = (0..self.passing_slots.len() as u64).map(|lap| PASSING + lap);
        let others = crowd.chain(passing).chain([REPLACED]);
        fixed.chain(others).collect()
    }

    /// Notes the depth that the growing worker is about to have.
    pub fn note_growing(&self, depth: usize) {
        self.highest.fetch_max(depth as u64, SeqCst);
    }

    pub fn note_passing(&self, lap: u64, step: Passing) {
        self.passing.store(4 * lap + step as u64, SeqCst);
    }

    /// Notes the slot of a passing worker, before it is matchable.
    pub fn note_passing_slot(&self, lap: u64, slot: SlotId) {
        self.passing_slots[lap as usize].store(slot.slot().index() as u64 + 1, SeqCst);
    }

    /// Notes that the tide is between these depths; each note differs from every other one.
    pub fn note_tide(&self, low: usize, high: usize) {
        let turn = (self.tide.load(SeqCst) >> 32) + 1;
        self.tide
            .store(turn << 32 | (low as u64) << 16 | high as u64, SeqCst);
    }

    /// The progress at this moment.
    pub fn progress(&self) -> Progress {
        Progress {
            passing: self.passing.load(SeqCst),
            tide: self.tide.load(SeqCst),
        }
    }

    /// The lap of the passing worker.
    pub fn lap(&self) -> u64 {
        self.passing.load(SeqCst) / 4
    }

    /// The bounds of an answer that came between `before` and now.
    pub fn bounds(&self, subject: Subject, before: Progress) -> Bounds {
        let after = self.progress();
        let one = |who, range| Bounds::from([(who, range)]);
        match subject {
            Subject::Stable(who) => one(who, DepthRange::always(BLOCKS)),
            Subject::Growing => {
                let ever = self.highest.load(SeqCst) as usize;
                one(GROWING, DepthRange::between(0, ever))
            }
            Subject::Replaced => one(REPLACED, DepthRange::always(BLOCKS)),
            Subject::Passing(lap) => self
                .passed(before, after, BLOCKS)
                .filter(|&(who, _)| who == PASSING + lap)
                .collect(),
            Subject::Crowd => {
                let members = CROWDED + 1..=CROWDED + CROWD;
                let mut bounds: Bounds = members
                    .map(|who| (who, DepthRange::between(0, BLOCKS - 1)))
                    .collect();
                bounds.insert(CROWDED, DepthRange::always(BLOCKS));
                bounds
            }
            Subject::Toggled(first) => (first..first + 6)
                .map(|who| {
                    let least = if who < first + 3 { TOGGLED_BLOCKS } else { 0 };
                    (who, DepthRange::between(least, TOGGLED_BLOCKS))
                })
                .collect(),
            Subject::Ladder => (0..LADDER_WORKERS)
                .map(|place| (LADDER + place, DepthRange::always(rung(place))))
                .chain(self.passed(before, after, PASSING_ON_LADDER))
                .collect(),
            Subject::Tide if before.tide == after.tide => {
                let (low, high) = (after.tide >> 16 & 0xffff, after.tide & 0xffff);
                one(TIDE, DepthRange::between(low as usize, high as usize))
            }
            Subject::Tide => one(TIDE, DepthRange::between(0, BLOCKS)),
            Subject::Tiered => one(TIERED, DepthRange::always(BLOCKS)),
            Subject::Cleared => one(CLEARED, DepthRange::between(0, BLOCKS)),
            Subject::Unknown(_) => Bounds::new(),
        }
    }

    /// Passing workers that may have been present meanwhile, each with all its blocks. One that was present throughout must be
    /// found.
    fn passed(
        &self,
        before: Progress,
        after: Progress,
        depth: usize,
    ) -> impl Iterator<Item = (u64, DepthRange)> {
        let present = |lap: u64| 4 * lap + Passing::Present as u64;
        let left = |lap: u64| 4 * lap + Passing::Left as u64;
        (before.passing / 4..=after.passing / 4).filter_map(move |lap| {
            if before.passing >= left(lap) {
                return None;
            }
            let throughout = (before.passing, after.passing) == (present(lap), present(lap));
            let range = if throughout {
                DepthRange::always(depth)
            } else {
                DepthRange::all_or_nothing(depth)
            };
            Some((PASSING + lap, range))
        })
    }

    /// Workers that may have owned the slot, among those of the bounds and those that stay. There are several if it was
    /// reused meanwhile.
    pub fn owners(&self, slot: WorkerSlot, bounds: &Bounds) -> Vec<u64> {
        let passing = bounds.keys().copied().filter(|&who| {
            let lap = who.checked_sub(PASSING);
            let passing = lap.and_then(|lap| self.passing_slots.get(lap as usize));
            passing.is_some_and(|passing| passing.load(SeqCst) == slot.index() as u64 + 1)
        });
        let staying = self.owners.get(&slot).copied();
        passing.chain(staying).collect()
    }
}

fn rung(place: u64) -> usize {
    (place as usize / 4 + 1) * RUNG
}

impl Subject {
    /// The worker whose prompt it is.
    pub fn of(self) -> u64 {
        match self {
            Self::Stable(who) | Self::Toggled(who) | Self::Unknown(who) => who,
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

    /// Whether the slots of all workers that may be found are known.
    pub fn has_known_slots(self) -> bool {
        !matches!(self, Self::Replaced | Self::Crowd)
    }
}
