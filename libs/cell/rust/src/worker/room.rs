//! A worker that is out for lack of memory: how it goes, and how it comes back.
//!
//! It keeps its place in the sequencer and what its heartbeats say, and no set: events are passed over,
//! digests not compared, nobody is asked for what it lacks. It comes back by a snapshot that there is room
//! for, or by a new life that begins with nothing.

use kvatlas_events::sequencer::{SnapshotPart, Standing};
use kvatlas_index::Tier;

use super::{Surroundings, Worker};
use crate::counters::Count;

impl Worker {
    /// Empty the worker for lack of memory; it is not recovered until there is room.
    pub fn put_over_budget(&mut self, around: &mut Surroundings<'_>, now_ms: u64) {
        let mut steps = Vec::new();
        self.over_budget = Some(self.blocks(around.index));
        self.sequencer.give_up(&mut steps);
        self.run(around, steps, now_ms);
        self.settle(around);
    }

    /// Its set is empty, whatever has been sequenced, and must not be taken for the effect of that: neither here
    /// nor by who starts from its state, which does not say that it was out.
    pub(super) fn pass_over(&mut self) {
        if self.sequencer.standing() == Standing::Whole || self.sequencer.applied() > 0 {
            self.sequencer.give_up(&mut Vec::new());
        }
    }

    /// Whether its set is not the effect of all that was sequenced; it can be so while it is stale, too.
    pub fn is_incomplete(&self) -> bool {
        self.over_budget.is_some() || self.sequencer.standing() == Standing::Recovering
    }

    /// Blocks that there must be room for before it may come back.
    pub fn blocks_left_out(&self) -> u64 {
        self.over_budget.unwrap_or_default()
    }

    /// Take the whole set of a snapshot, if it was not put out or may come back with it.
    pub(super) fn load(&mut self, around: &mut Surroundings<'_>, parts: &[SnapshotPart]) {
        if self.over_budget.is_some() {
            let blocks = parts.iter().map(|part| part.hashes.len() as u64).sum();
            let Some(room_blocks) = around.room_blocks.checked_sub(blocks) else {
                self.over_budget = Some(blocks);
                around.counters.add(Count::SnapshotsNoRoom);
                return;
            };
            around.room_blocks = room_blocks;
            self.over_budget = None;
        }
        let index = around.index;
        self.change_slot_to(around, |slot| {
            for part in parts {
                index.store(slot, Tier::ALL[part.tier], &part.hashes);
            }
        });
        around.counters.add(Count::SnapshotsLoaded);
    }
}
