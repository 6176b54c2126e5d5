//! The memory budget: whose sets go when the index takes too much, and when there is room again.
//!
//! Bytes alone cannot tell. A table that is swept keeps its size until it is less than a third full, and
//! large pages go back only when all of them is free: putting workers out until the bytes fall would put
//! out nearly all. So the bytes tell *that* there are too many blocks, and blocks how many too many: while
//! the index grows, what it takes for all it holds, the dead included, gives the bytes a block takes, and
//! the budget divided by that is how many blocks may live. It is measured again only where the index
//! takes more than ever since it went over the budget. Sets that die count no more at once, so
//! they go before anybody living; what they leave behind is used again by who grows.
//!
//! Idle pages are not measured but allowed for, since how many there are depends on the past; memory that
//! waits for look-ups to end is not counted, since it goes by itself.

use kvatlas_index::{MemoryUse, SlotId, Sweep, WorkerKey};

use crate::cell::Cell;
use crate::counters::Count;
use crate::table::Table;
use crate::worker::Surroundings;

/// Of what is in use: allowed for idle pages beside it, as the index keeps them.
const IDLE_SHARE: u64 = 6;
/// Of the budget: what must stay free when somebody comes back, lest it be put out again soon.
const MARGIN_SHARE: u64 = 8;
/// Table slots of the index that one tick's clean-up looks at.
const SWEEP_SLOTS: usize = 1 << 17;
/// The same while the index is over its budget and dead sets are left in it.
const SWEEP_SLOTS_URGENT: usize = 1 << 21;

/// What the index takes, and for how much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Use {
    bytes: u64,
    blocks: u64,
}

/// How many blocks the index may hold, as far as that is known.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes_max: u64,
    /// Where it was fullest since it last went over the budget; none before it first did.
    fullest: Option<Use>,
    is_over: bool,
    /// Retired worker slots that the sweep has not given back, and the blocks they held.
    dead_slots: u64,
    dead_blocks: u64,
}

impl Budget {
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max: bytes_max as u64,
            fullest: None,
            is_over: false,
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

    /// The index takes so many bytes, with so many blocks of living workers; returns how many of these
    /// there may be. None while it is within the budget.
    pub fn observe(&mut self, bytes: u64, live_blocks: u64) -> Option<u64> {
        let was_over = std::mem::replace(&mut self.is_over, bytes > self.bytes_max);
        if self.is_over
            && self
                .fullest
                .is_none_or(|fullest| !was_over || bytes > fullest.bytes)
        {
            let blocks = live_blocks + self.dead_blocks;
            self.fullest = Some(Use { bytes, blocks });
        }
        let fullest = self.fullest.filter(|_| self.is_over)?;
        Some(scaled(fullest.blocks, self.bytes_max, fullest.bytes))
    }

    /// Blocks that somebody who was put out may come back with.
    pub fn room_blocks(&self, bytes: u64, live_blocks: u64) -> u64 {
        let Some(fullest) = self.fullest else {
            return u64::MAX;
        };
        // Both say that there is room: few blocks in tables that are still large, and few bytes for
        // blocks that have come to weigh less, by having more holders.
        let bytes_usable = self.bytes_max - self.bytes_max / MARGIN_SHARE;
        let of_bytes = |bytes| scaled(fullest.blocks, bytes, fullest.bytes);
        let by_blocks = of_bytes(bytes_usable).saturating_sub(live_blocks + self.dead_blocks);
        by_blocks.max(of_bytes(bytes_usable.saturating_sub(bytes)))
    }
}

/// `value * by / over`, rounded down.
fn scaled(value: u64, by: u64, over: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(by) / u128::from(over.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// What of its memory is held against the budget.
fn counted_bytes(memory: MemoryUse) -> u64 {
    let in_use = (memory.tables + memory.bitmaps + memory.fixed) as u64;
    in_use + in_use / IDLE_SHARE
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
        if budget.fullest.is_none() {
            return u64::MAX;
        }
        let index = self.index();
        budget.room_blocks(counted_bytes(index.memory_bytes()), index.memberships())
    }

    /// Put the largest workers out until no more blocks live than the budget is enough for.
    pub(crate) fn keep_budget(&self, table: &mut Table, now_ms: u64) {
        let index = self.index();
        let bytes = counted_bytes(index.memory_bytes());
        let mut live_blocks = index.memberships();
        let observed = self.budget.lock().observe(bytes, live_blocks);
        let Some(blocks_max) = observed.filter(|&blocks_max| live_blocks > blocks_max) else {
            return;
        };
        let sizes = table.workers.values();
        let sizes = sizes.map(|worker| (worker.blocks(index), worker.key));
        let mut sizes: Vec<_> = sizes.filter(|&(blocks, _)| blocks > 0).collect();
        sizes.sort_unstable_by(|one, other| other.cmp(one));
        for (blocks, key) in sizes {
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

    #[test]
    fn what_a_block_takes_is_measured_where_the_index_was_fullest() {
        let mut budget = Budget::new(1_000);
        assert_eq!(budget.observe(1_000, 100), None);
        assert_eq!(budget.observe(2_000, 100), Some(50));
        // Tables that have become emptier and not smaller say nothing new.
        assert_eq!(budget.observe(2_000, 50), Some(50));
        assert_eq!(budget.observe(1_500, 50), Some(50));
        assert_eq!(budget.observe(2_400, 60), Some(25));
        assert_eq!(budget.observe(900, 60), None);
        assert_eq!(budget.observe(1_100, 55), Some(50));
    }

    #[test]
    fn the_dead_are_part_of_what_takes_memory_until_they_are_swept() {
        let mut budget = Budget::new(1_000);
        budget.note_dead(60);
        assert_eq!(budget.observe(1_250, 40), Some(80));
        assert_eq!(budget.room_blocks(1_250, 5), 70 - 5 - 60);
        budget.note_swept(swept(20, 0));
        assert_eq!(budget.room_blocks(1_250, 5), 70 - 5 - 40);
        budget.note_swept(swept(10, 1));
        assert_eq!(budget.room_blocks(1_250, 5), 70 - 5);
    }

    #[test]
    fn there_is_room_by_the_number_of_blocks_or_by_what_they_take() {
        let mut budget = Budget::new(1_000);
        assert_eq!(budget.room_blocks(1_000, 1 << 40), u64::MAX);
        assert_eq!(budget.observe(2_000, 200), Some(100));
        assert_eq!(budget.room_blocks(2_000, 100), 0);
        assert_eq!(budget.room_blocks(2_000, 80), 7);
        assert_eq!(budget.room_blocks(475, 1_000), 40);
    }
}
