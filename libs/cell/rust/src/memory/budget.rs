//! The memory budget: how many blocks the index may hold, and how many an evicted worker may bring back.
//!
//! Bytes alone cannot decide that. A swept table keeps its size until it is less than a third full, and a large page goes
//! back to the system only when all of it is free. Evicting workers until the bytes fall would evict nearly all. So
//! the bytes tell *whether* the index holds too many blocks, and the cost per block
//! ([`super::bytes_per_block`]) tells how many are too many. Retired sets stop counting as live at once, so they go
//! before any living worker, and growing sets use their space again.
//!
//! The budget counts bytes in use and allows a sixth more for idle pages, whose real number depends on the past. It leaves
//! out memory that waits for running look-ups to end, since that goes by itself. The fixed parts of the
//! index are subtracted from the budget.

use kvatlas_index::{Index, Sweep};
use parking_lot::Mutex;

use super::bytes_per_block::{BytesPerBlock, Usage};

/// Idle pages are allowed one byte for this many bytes in use, as the index keeps them.
const IDLE_SHARE: u64 = 6;
/// One part in this many of the budget must stay free when an evicted worker comes back, so that it is not evicted
/// again soon.
const MARGIN_SHARE: u64 = 8;
/// Table entries that one tick's sweep visits.
const SWEEP_ENTRIES: usize = 1 << 17;
/// The same while the index is over its budget and retired sets remain in it.
const SWEEP_ENTRIES_URGENT: usize = 1 << 21;

/// One reading of the index: bytes of its blocks, the budget for them, and the number of live blocks.
#[derive(Clone, Copy, Debug)]
struct Reading {
    bytes: u64,
    bytes_max: u64,
    live_blocks: u64,
}

/// How many blocks the index may hold. Share it by reference; it locks itself.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    bytes_max: u64,
    state: Mutex<State>,
}

#[derive(Default, Debug)]
struct State {
    cost: BytesPerBlock,
    is_over: bool,
    /// Whether the index was ever over its budget. Before that, no worker was evicted.
    was_over: bool,
    /// Retired worker slots that the sweep has not given back, and the blocks they held.
    retired_slots: u64,
    retired_blocks: u64,
}

impl MemoryBudget {
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max: bytes_max as u64,
            state: Mutex::default(),
        }
    }

    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Counts a set of this many blocks as retired.
    pub fn note_retired(&self, blocks: u64) {
        self.state.lock().note_retired(blocks);
    }

    /// Sweeps a slice of the index's tables.
    pub fn sweep(&self, index: &Index) {
        let entries = self.state.lock().entries_to_sweep();
        let sweep = index.sweep(entries);
        self.state.lock().note_swept(sweep);
    }

    /// Sweeps all retired sets out of the index, since worker slots have run out.
    pub fn sweep_all(&self, index: &Index) {
        loop {
            let sweep = index.sweep(usize::MAX);
            self.state.lock().note_swept(sweep);
            if sweep.freed == 0 {
                return;
            }
        }
    }

    /// Measures the index. Returns how many blocks may live if it is over the budget.
    pub fn observe(&self, index: &Index) -> Option<u64> {
        self.state.lock().observe(self.read(index))
    }

    /// Number of blocks that evicted workers may bring back.
    pub fn readmission_blocks(&self, index: &Index) -> u64 {
        let state = self.state.lock();
        if !state.was_over {
            return u64::MAX;
        }
        state.readmission_blocks(self.read(index))
    }

    fn read(&self, index: &Index) -> Reading {
        let memory = index.memory_bytes();
        let bytes_max = self.bytes_max.saturating_sub(with_idle(memory.fixed));
        Reading {
            bytes: with_idle(memory.tables + memory.bitmaps),
            bytes_max,
            live_blocks: index.memberships(),
        }
    }
}

impl State {
    fn note_retired(&mut self, blocks: u64) {
        self.retired_slots += 1;
        self.retired_blocks += blocks;
    }

    /// Growing tables drop retired blocks, too, without a report. So the block count is exact only at 0 slots.
    fn note_swept(&mut self, sweep: Sweep) {
        self.retired_slots = self.retired_slots.saturating_sub(sweep.freed as u64);
        self.retired_blocks = self.retired_blocks.saturating_sub(sweep.removed as u64);
        if self.retired_slots == 0 {
            self.retired_blocks = 0;
        }
    }

    fn entries_to_sweep(&self) -> usize {
        if self.is_over && self.retired_slots > 0 {
            SWEEP_ENTRIES_URGENT
        } else {
            SWEEP_ENTRIES
        }
    }

    fn observe(&mut self, now: Reading) -> Option<u64> {
        self.is_over = now.bytes > now.bytes_max;
        self.was_over |= self.is_over;
        let usage = Usage {
            bytes: now.bytes,
            blocks: now.live_blocks + self.retired_blocks,
        };
        let is_exact = self.retired_slots == 0;
        self.cost.observe(usage, now.bytes_max, is_exact);
        let blocks_max = self.cost.blocks_in(now.bytes_max);
        blocks_max.filter(|_| self.is_over)
    }

    fn readmission_blocks(&self, now: Reading) -> u64 {
        // Either may show that there is room: few blocks in tables that are still large, or few bytes for
        // blocks that have become cheaper by having more holders.
        let bytes_usable = now.bytes_max - now.bytes_max / MARGIN_SHARE;
        let by_blocks = self.cost.blocks_in(bytes_usable);
        let by_bytes = self.cost.blocks_in(bytes_usable.saturating_sub(now.bytes));
        let (Some(by_blocks), Some(by_bytes)) = (by_blocks, by_bytes) else {
            return u64::MAX;
        };
        let held_blocks = now.live_blocks + self.retired_blocks;
        by_bytes.max(by_blocks.saturating_sub(held_blocks))
    }
}

/// Bytes in use, and the allowance for idle pages.
fn with_idle(in_use: usize) -> u64 {
    in_use as u64 + in_use as u64 / IDLE_SHARE
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
    fn retired_blocks_take_memory_until_they_are_swept() {
        let mut state = State::default();
        state.note_retired(60);
        assert_eq!(state.observe(reading(1_250, 40)), Some(80));
        let now = reading(1_250, 5);
        assert_eq!(state.readmission_blocks(now), 70 - 5 - 60);
        state.note_swept(swept(20, 0));
        assert_eq!(state.readmission_blocks(now), 70 - 5 - 40);
        state.note_swept(swept(10, 1));
        assert_eq!(state.readmission_blocks(now), 70 - 5);
    }

    #[test]
    fn there_is_room_by_the_number_of_blocks_or_by_their_bytes() {
        let mut state = State::default();
        assert_eq!(state.readmission_blocks(reading(1_000, 1 << 40)), u64::MAX);
        assert_eq!(state.observe(reading(2_000, 200)), Some(100));
        assert_eq!(state.readmission_blocks(reading(2_000, 100)), 0);
        assert_eq!(state.readmission_blocks(reading(2_000, 80)), 7);
        assert_eq!(state.readmission_blocks(reading(475, 1_000)), 40);
    }

    #[test]
    fn an_evicted_worker_has_room_once_the_others_have_left_though_tables_keep_their_size() {
        let mut state = State::default();
        assert_eq!(state.observe(reading(1_100, 110)), Some(100));
        assert_eq!(state.observe(reading(990, 10)), None);
        // Slightly over the budget with few blocks: no worker is evicted.
        assert_eq!(state.observe(reading(1_010, 11)), Some(100));
        assert_eq!(state.readmission_blocks(reading(1_010, 11)), 87 - 11);
    }
}
