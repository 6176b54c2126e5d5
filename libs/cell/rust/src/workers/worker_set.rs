//! A worker's set of blocks: its slot in the index, and whether look-ups match it.

use kvatlas_events::sequencer::{SnapshotPart, TierDigest};
use kvatlas_index::{Index, SlotId, Tier, WorkerKey};

use crate::apply::context::ApplyContext;
use crate::apply::decode::{Event, EventList};

/// A worker's set in the index.
pub(crate) struct WorkerSet {
    key: WorkerKey,
    slot: Option<SlotId>,
    is_matched: bool,
}

impl WorkerSet {
    /// A set in `slot`, not matched yet.
    pub fn new(key: WorkerKey, slot: Option<SlotId>) -> Self {
        Self {
            key,
            slot,
            is_matched: false,
        }
    }

    /// The slot; None while the worker has no set.
    pub fn slot(&self) -> Option<SlotId> {
        self.slot
    }

    /// Whether look-ups match the set.
    pub fn is_matched(&self) -> bool {
        self.is_matched
    }

    /// Number of blocks on any tier.
    pub fn blocks(&self, index: &Index) -> u64 {
        self.slot.map_or(0, |slot| index.summary(slot).blocks)
    }

    /// Count and digest per tier, as the index has them.
    pub fn digests(&self, index: &Index) -> [TierDigest; Tier::COUNT] {
        let summary = self.slot.map(|slot| index.summary(slot));
        summary.unwrap_or_default().tiers.map(|tier| TierDigest {
            blocks: tier.count,
            digest: tier.digest,
        })
    }

    /// Shows the set to look-ups, or hides it.
    pub fn set_matched(&mut self, context: &ApplyContext<'_>, is_matched: bool) {
        let Some(slot) = self.slot else { return };
        if is_matched == self.is_matched {
            return;
        }
        self.is_matched = is_matched;
        if is_matched {
            context.index.publish(slot);
        } else {
            context.index.suspend(slot);
        }
    }

    /// Applies the events of a list, except the first `skip`.
    pub fn apply(&mut self, context: &mut ApplyContext<'_>, list: EventList, skip: usize) {
        let mut applied = 0;
        for event in &list.events[skip..] {
            let Some(slot) = self.slot else { break };
            applied += 1;
            match event {
                Event::Store(tier, range) => {
                    let hashes = &list.hashes[range.clone()];
                    context.writes.push(slot, *tier, true, hashes);
                }
                Event::Remove(tier, range) => {
                    let hashes = &list.hashes[range.clone()];
                    context.writes.push(slot, *tier, false, hashes);
                }
                Event::Clear(None) => self.empty(context),
                Event::Clear(Some(tier)) => self.clear_tier(context, slot, *tier),
                Event::Shutdown(_) => {}
            }
        }
        context.writes.count_events(applied);
        context.writes.return_list(list);
    }

    /// Empties the set.
    pub fn empty(&mut self, context: &mut ApplyContext<'_>) {
        context.writes.flush();
        if self.slot.is_none() || self.blocks(context.index) > 0 {
            self.replace_slot(context, |_| ());
        }
    }

    /// Replaces the set by a snapshot.
    pub fn load(&mut self, context: &mut ApplyContext<'_>, parts: &[SnapshotPart]) {
        let index = context.index;
        self.replace_slot(context, |slot| {
            for part in parts {
                index.store(slot, Tier::ALL[part.tier], &part.hashes);
            }
        });
    }

    /// Gives the slot back; the worker has no set any more.
    pub fn release(&mut self, context: &mut ApplyContext<'_>) {
        context.writes.flush();
        if let Some(slot) = self.slot.take() {
            context.retire(slot);
        }
        self.is_matched = false;
    }

    fn clear_tier(&mut self, context: &mut ApplyContext<'_>, slot: SlotId, tier: Tier) {
        context.writes.flush();
        let summary = context.index.summary(slot);
        let mut others = Tier::ALL.iter().filter(|&&other| other != tier);
        if others.all(|&other| summary.tier(other).count == 0) {
            // A fresh slot is cheap, and a pass over the table is not.
            self.empty(context);
        } else {
            context.index.clear(slot, tier);
        }
    }

    /// Replaces the slot by a fresh one that `fill` has filled. Look-ups match either the old set or the new one.
    fn replace_slot(&mut self, context: &mut ApplyContext<'_>, fill: impl FnOnce(SlotId)) {
        context.writes.flush();
        let fresh = context.index.allocate(self.key).or_else(|_| {
            // Slots of retired sets come back with the sweep; a whole sweep is the last resort.
            context.budget.sweep_all(context.index);
            context.index.allocate(self.key)
        });
        if let Ok(slot) = fresh {
            fill(slot);
        }
        match (self.slot, fresh) {
            (Some(old), Ok(new)) if self.is_matched => context.replace(old, new),
            (Some(old), _) => context.retire(old),
            (None, _) => {}
        }
        self.is_matched &= fresh.is_ok();
        self.slot = fresh.ok();
    }
}
