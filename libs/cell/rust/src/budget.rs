//! The memory budget: whose sets go when the index takes too much, and when there is room again.
//!
//! Bytes alone cannot tell. A table that is swept keeps its size until it is less than a third full, and
//! large pages go back only when all of them is free: putting workers out until the bytes fall would put
//! out nearly all. So the bytes tell *that* there are too many blocks, and blocks how many too many: what
//! a block takes is measured while tables are used ([`crate::weight`]), and the budget divided by that is how many
//! may live. Sets that die count no more at once, so they go before anybody living; what they leave
//! behind is used again by who grows.
//!
//! Idle pages are not measured but allowed for, since how many there are depends on the past; memory that
//! waits for look-ups to end is not counted, since it goes by itself. What the index takes without any block
//! is taken off the budget.

use kvatlas_index::{Index, SlotId, Sweep, WorkerKey};

use crate::cell::Cell;
use crate::counters::Count;
use crate::table::Table;
use crate::weight::{Use, Weight};
use crate::worker::Surroundings;

/// Of what is in use: allowed for idle pages beside it, as the index keeps them.
const IDLE_SHARE: u64 = 6;
/// Of the budget: what must stay free when somebody comes back, lest it be put out again soon.
const MARGIN_SHARE: u64 = 8;
/// Table slots of the index that one tick's clean-up looks at.
const SWEEP_SLOTS: usize = 1 << 17;
/// The same while the index is over its budget and dead sets are left in it.
const SWEEP_SLOTS_URGENT: usize = 1 << 21;

/// What counts: the bytes that its blocks take in the index, those that they may take, and how many live.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    bytes: u64,
    bytes_max: u64,
    live_blocks: u64,
}

impl Reading {
    fn of(index: &Index, bytes_max: u64) -> Self {
        let memory = index.memory_bytes();
        Self {
            bytes: with_idle(memory.tables + memory.bitmaps),
            bytes_max: bytes_max.saturating_sub(with_idle(memory.fixed)),
            live_blocks: index.memberships(),
        }
    }
}

/// How many blocks the index may hold, as far as that is known.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes_max: u64,
    weight: Weight,
    is_over: bool,
    /// Whether it ever was; before, nobody has been put out.
    was_over: bool,
    /// Retired worker slots that the sweep has not given back, and the blocks they held.
    dead_slots: u64,
    dead_blocks: u64,
}

impl Budget {
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max: bytes_max as u64,
            weight: Weight::default(),
            is_over: false,
            was_over: false,
            dead_slots: 0,
            dead_blocks: 0,
        }
    }

    /// A set of so many blocks is about to be retired.
    pub fn note_dead(&mut self, blocks: u64) {
        self.dead_slots += 1;
        self.dead_blocks += blocks;
    }

    /// What the clean-up did. Growing tables drop dead blocks too, and tell nobody.
    pub fn note_swept(&mut self, sweep: Sweep) {
        self.dead_slots = self.dead_slots.saturating_sub(sweep.freed as u64);
        self.dead_blocks = self.dead_blocks.saturating_sub(sweep.removed as u64);
        if self.dead_slots == 0 {
            self.dead_blocks = 0;
        }
    }

    fn slots_to_sweep(&self) -> usize {
        if self.is_over && self.dead_slots > 0 {
            SWEEP_SLOTS_URGENT
        } else {
            SWEEP_SLOTS
        }
    }

    /// What the index takes by now; returns how many blocks may live. None while it is within the budget.
    pub fn observe(&mut self, now: Reading) -> Option<u64> {
        self.is_over = now.bytes > now.bytes_max;
        self.was_over |= self.is_over;
        let blocks = now.live_blocks + self.dead_blocks;
        let taken = Use {
            bytes: now.bytes,
            blocks,
        };
        // Growing tables drop dead blocks, too, and tell nobody.
        let is_exact = self.dead_slots == 0;
        self.weight.observe(taken, now.bytes_max, is_exact);
        let blocks_max = self.weight.fit(now.bytes_max);
        blocks_max.filter(|_| self.is_over)
    }

    /// Blocks that somebody who was put out may come back with.
    pub fn room_blocks(&self, now: Reading) -> u64 {
        // Both say that there is room: few blocks in tables that are still large, and few bytes for
        // blocks that have come to weigh less, by having more holders.
        let bytes_usable = now.bytes_max - now.bytes_max / MARGIN_SHARE;
        let by_blocks = self.weight.fit(bytes_usable);
        let by_bytes = self.weight.fit(bytes_usable.saturating_sub(now.bytes));
        let (Some(by_blocks), Some(by_bytes)) = (by_blocks, by_bytes) else {
            return u64::MAX;
        };
        let held_blocks = now.live_blocks + self.dead_blocks;
        by_bytes.max(by_blocks.saturating_sub(held_blocks))
    }
}

/// Bytes in use, and what is allowed for idle pages beside them.
fn with_idle(in_use: usize) -> u64 {
    in_use as u64 + in_use as u64 / IDLE_SHARE
}

impl Surroundings<'_> {
    /// Take a set out of matches for ever.
    pub fn retire(&self, slot: SlotId) {
        self.note_dead(slot);
        self.index.retire(slot);
    }

    /// Show `new` where `old` was.
    pub fn replace(&self, old: SlotId, new: SlotId) {
        self.note_dead(old);
        self.index.replace(old, new);
    }

    /// Clean up all that can be: worker slots have run out.
    pub fn sweep_all(&self) {
        loop {
            let sweep = self.index.sweep(usize::MAX);
            self.budget.lock().note_swept(sweep);
            if sweep.freed == 0 {
                return;
            }
        }
    }

    fn note_dead(&self, slot: SlotId) {
        let blocks = self.index.summary(slot).blocks;
        self.budget.lock().note_dead(blocks);
    }
}

impl Cell {
    /// A slice of the index's clean-up.
    pub(crate) fn sweep(&self) {
        let slots = self.budget.lock().slots_to_sweep();
        let sweep = self.index().sweep(slots);
        self.budget.lock().note_swept(sweep);
    }

    /// Blocks that workers who were put out may come back with.
    pub(crate) fn room_blocks(&self) -> u64 {
        let budget = self.budget.lock();
        if !budget.was_over {
            return u64::MAX;
        }
        budget.room_blocks(Reading::of(self.index(), budget.bytes_max))
    }

    /// Put workers out until no more blocks live than the budget is enough for: first those that are
    /// silent, since they are not matched anyway, and the largest of either kind first.
    pub(crate) fn keep_budget(&self, table: &mut Table, now_ms: u64) {
        let index = self.index();
        let now = Reading::of(index, self.config.memory_bytes_max as u64);
        let mut live_blocks = now.live_blocks;
        let observed = self.budget.lock().observe(now);
        let Some(blocks_max) = observed.filter(|&blocks_max| live_blocks > blocks_max) else {
            return;
        };
        let sizes = table.workers.values();
        let sizes = sizes.map(|worker| (worker.is_silent(), worker.blocks(index), worker.key));
        let mut sizes: Vec<_> = sizes.filter(|&(_, blocks, _)| blocks > 0).collect();
        sizes.sort_unstable_by(|one, other| other.cmp(one));
        for (_, blocks, key) in sizes {
            if live_blocks <= blocks_max {
                break;
            }
            self.put_out(table, key, now_ms);
            live_blocks = live_blocks.saturating_sub(blocks);
        }
    }

    fn put_out(&self, table: &mut Table, key: WorkerKey, now_ms: u64) {
        let Some(worker) = table.workers.get_mut(&key) else {
            return;
        };
        let mut around = self.surroundings(0);
        worker.put_over_budget(&mut around, now_ms);
        self.counters.add(Count::WorkersOverBudget);
        table.note_need(key, false);
        let WorkerKey { worker_id, dp_rank } = key;
        table.note(format!(
            "worker {worker_id}/{dp_rank} is over budget: the index may use {} bytes; it is not matched until there is room for its whole set",
            self.config.memory_bytes_max
        ));
        self.mark(table, key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn swept(removed: usize, freed: usize) -> Sweep {
        Sweep {
            removed,
            freed,
            ..Sweep::default()
        }
    }

    fn reading(bytes: u64, live_blocks: u64) -> Reading {
        Reading {
            bytes,
            bytes_max: 1_000,
            live_blocks,
        }
    }

    #[test]
    fn the_dead_are_part_of_what_takes_memory_until_they_are_swept() {
        let mut budget = Budget::new(1_000);
        budget.note_dead(60);
        assert_eq!(budget.observe(reading(1_250, 40)), Some(80));
        let now = reading(1_250, 5);
        assert_eq!(budget.room_blocks(now), 70 - 5 - 60);
        budget.note_swept(swept(20, 0));
        assert_eq!(budget.room_blocks(now), 70 - 5 - 40);
        budget.note_swept(swept(10, 1));
        assert_eq!(budget.room_blocks(now), 70 - 5);
    }

    #[test]
    fn there_is_room_by_the_number_of_blocks_or_by_what_they_take() {
        let mut budget = Budget::new(1_000);
        assert_eq!(budget.room_blocks(reading(1_000, 1 << 40)), u64::MAX);
        assert_eq!(budget.observe(reading(2_000, 200)), Some(100));
        assert_eq!(budget.room_blocks(reading(2_000, 100)), 0);
        assert_eq!(budget.room_blocks(reading(2_000, 80)), 7);
        assert_eq!(budget.room_blocks(reading(475, 1_000)), 40);
    }

    #[test]
    fn whoever_is_out_has_room_again_once_the_others_have_left_tables_that_keep_their_size() {
        let mut budget = Budget::new(1_000);
        assert_eq!(budget.observe(reading(1_100, 110)), Some(100));
        assert_eq!(budget.observe(reading(990, 10)), None);
        // Over the budget again, by a little, for little: nobody goes.
        assert_eq!(budget.observe(reading(1_010, 11)), Some(100));
        assert_eq!(budget.room_blocks(reading(1_010, 11)), 87 - 11);
    }
}
