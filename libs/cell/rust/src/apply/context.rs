//! Everything that applying a record needs besides the record and its worker.

use kvatlas_events::sequencer::Step;
use kvatlas_index::{Index, SlotId};

use super::decode::EventList;
use super::index_writes::IndexWrites;
use crate::counters::Counters;
use crate::memory::budget::MemoryBudget;

/// The index, the counters and the bounds for one call of `Cell::apply` or `Cell::tick`.
pub(crate) struct ApplyContext<'a> {
    pub index: &'a Index,
    pub counters: &'a Counters,
    /// Changes on their way to the index.
    pub writes: IndexWrites<'a>,
    /// A reusable buffer for the sequencer's steps.
    pub steps: Vec<Step<EventList>>,
    pub lease_ms: u64,
    /// Number of blocks that evicted workers may bring back during this call.
    pub readmission_blocks: u64,
    pub budget: &'a MemoryBudget,
}

impl<'a> ApplyContext<'a> {
    pub fn new(
        index: &'a Index,
        counters: &'a Counters,
        budget: &'a MemoryBudget,
        lease_ms: u64,
    ) -> Self {
        Self {
            index,
            counters,
            writes: IndexWrites::new(index, counters),
            steps: Vec::new(),
            lease_ms,
            readmission_blocks: budget.readmission_blocks(index),
            budget,
        }
    }

    /// Removes a set from all matches for ever.
    pub fn retire(&self, slot: SlotId) {
        self.budget.note_retired(self.index.summary(slot).blocks);
        self.index.retire(slot);
    }

    /// Makes look-ups match `new` instead of `old`, and retires `old`.
    pub fn replace(&self, old: SlotId, new: SlotId) {
        self.budget.note_retired(self.index.summary(old).blocks);
        self.index.replace(old, new);
    }
}
