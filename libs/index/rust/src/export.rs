//! Whole sets out of the index: the blocks of many slots, in one pass over the tables.
//!
//! The table knows a block's holders, not a holder's blocks, so any set costs a pass over all of it. Hence all of them come
//! out of the same pass. It goes shard by shard under each shard's writer lock, and look-ups never wait for it. It is pinned
//! as a whole, so that no slot is allocated again meanwhile. Writers may be at work: a block that changes during the pass is
//! reported as it was before or after, every other one as it is.

use crate::index::Index;
use crate::table::bitmap;
use crate::table::set_word::Holders;
use crate::table::tier_tables::{TableKind, TierTables};
use crate::types::{SlotId, Tier, TierSummary, WorkerSlot};

/// The blocks of one slot, per tier in the order of [`Tier::ALL`], unordered.
pub type Blocks = [Vec<u64>; 4];

/// Place of a slot that was not asked for.
const UNWANTED: u16 = u16::MAX;

impl Index {
    /// The blocks that each of `slots` holds, parallel to them; none for a retired one.
    #[must_use]
    pub fn blocks_of(&self, slots: &[SlotId]) -> Vec<Blocks> {
        let summaries = slots.iter().map(|&slot| self.summary(slot));
        let mut sets: Vec<Blocks> = summaries
            .map(|held| {
                held.tiers
                    .map(|tier| Vec::with_capacity(tier.count as usize))
            })
            .collect();
        self.visit(slots, |place, tier, hash| {
            sets[place][tier as usize].push(hash);
        });
        sets
    }

    /// Counts and digests of what each of `slots` holds, parallel to them, added up from the tables themselves. They should
    /// equal [`Self::summary`].
    #[must_use]
    pub fn recount(&self, slots: &[SlotId]) -> Vec<[TierSummary; 4]> {
        let mut sums = vec![[TierSummary::default(); 4]; slots.len()];
        self.visit(slots, |place, tier, hash| {
            let sum = &mut sums[place][tier as usize];
            sum.count += 1;
            sum.digest ^= hash;
        });
        sums
    }

    /// Calls `visit` with every block of the slots: the slot's place in `slots`, the tier, the hash.
    fn visit(&self, slots: &[SlotId], mut visit: impl FnMut(usize, Tier, u64)) {
        let _pin = self.shared.reclaimer.pin();
        let mut places = vec![UNWANTED; WorkerSlot::COUNT];
        for (place, &id) in slots.iter().enumerate() {
            // There are fewer slots than a u16 can count.
            if self.shared.workers.is_writable(id) {
                places[id.slot.index()] = place as u16;
            }
        }
        for shard in 0..self.shards.len() {
            self.shards.lock_shared().with_shard(shard, |tables| {
                self.visit_shard(tables, &places, &mut visit);
            });
        }
    }

    fn visit_shard(
        &self,
        tables: &TierTables,
        places: &[u16],
        visit: &mut impl FnMut(usize, Tier, u64),
    ) {
        let spilled = &*self.shared.spilled;
        let off_device = tables.table(TableKind::OffDevice);
        let on_device = |hash: u64, slot: WorkerSlot| {
            let home = self.directories[0].home_of(hash);
            off_device.is_none_or(|table| !table.contains(home, hash, slot, spilled))
        };
        let kinds = [
            (TableKind::Main, Tier::Device),
            (TableKind::Host, Tier::Host),
            (TableKind::Disk, Tier::Disk),
            (TableKind::Remote, Tier::Remote),
        ];
        for (kind, tier) in kinds {
            let Some(table) = tables.table(kind) else {
                continue;
            };
            for (hash, set) in table.held(spilled) {
                let mut hold = |slot: WorkerSlot| {
                    let place = places[slot.index()];
                    if place != UNWANTED && (kind != TableKind::Main || on_device(hash, slot)) {
                        visit(usize::from(place), tier, hash);
                    }
                };
                match set.holders() {
                    Holders::Inline(inline) => inline.slots().for_each(&mut hold),
                    Holders::Bitmap(words) => bitmap::slots(words).for_each(&mut hold),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{IndexConfig, WorkerKey};

    fn index() -> Index {
        Index::new(IndexConfig {
            shard_bits: 3,
            initial_entries_per_shard: 16,
        })
    }

    fn slot(index: &Index, worker_id: u64) -> SlotId {
        let key = WorkerKey {
            worker_id,
            dp_rank: 0,
        };
        index.allocate(key).unwrap()
    }

    fn sorted(mut blocks: Blocks) -> Blocks {
        blocks.iter_mut().for_each(|tier| tier.sort_unstable());
        blocks
    }

    #[test]
    fn one_pass_says_what_a_pass_per_slot_and_tier_says() {
        const OWN: u64 = if cfg!(miri) { 20 } else { 300 };
        let index = index();
        let workers = if cfg!(miri) { 5 } else { 9 };
        let slots: Vec<_> = (0..workers).map(|id| slot(&index, id)).collect();
        for (place, &slot) in slots.iter().enumerate() {
            let from = OWN / 3 * place as u64;
            let shared: Vec<u64> = (0..OWN / 6).collect();
            let own: Vec<u64> = (from..from + OWN).collect();
            index.store(slot, Tier::Device, &shared);
            index.store(slot, Tier::ALL[place % 4], &own);
            index.remove(slot, Tier::Device, &own[..7]);
        }
        let sets = index.blocks_of(&slots);
        let sums = index.recount(&slots);
        for (place, &slot) in slots.iter().enumerate() {
            let one_by_one = Tier::ALL.map(|tier| index.hashes(slot, tier));
            assert_eq!(sorted(sets[place].clone()), sorted(one_by_one));
            assert_eq!(sums[place], index.summary(slot).tiers);
        }
    }

    #[test]
    fn only_the_slots_asked_for_come_out_and_a_retired_one_is_empty() {
        let index = index();
        let (kept, other, retired) = (slot(&index, 1), slot(&index, 2), slot(&index, 3));
        for id in [kept, other, retired] {
            index.store(id, Tier::Device, &[1, 2, 3]);
        }
        index.retire(retired);
        let sets = index.blocks_of(&[retired, kept]);
        assert_eq!(sets[0], Blocks::default());
        assert_eq!(sorted(sets[1].clone())[0], [1, 2, 3]);
    }
}
