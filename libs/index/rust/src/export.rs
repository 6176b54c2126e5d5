//! Whole sets out of the index: what each of many slots holds, in one pass over the tables.
//!
//! The table knows a block's holders, not a holder's blocks, so any set costs a pass over all of it;
//! hence all of them come out of the same one. The pass goes shard by shard under each shard's writer lock and
//! keeps look-ups waiting for nothing. It is pinned as a whole, so that no slot begins another life
//! meanwhile. Writers may be at work: then a block that changes during the pass is reported as it was
//! before or after, every other one as it is.

use crate::bitmap;
use crate::index::Index;
use crate::membership::{Kind, Tables};
use crate::set::{Holders, MAX_SLOTS};
use crate::types::{SlotId, Tier, TierSummary};

/// The blocks of one slot, per tier in the order of [`Tier::ALL`], unordered.
pub type Blocks = [Vec<u64>; 4];

/// No place among the slots that were asked for.
const UNWANTED: u16 = u16::MAX;

impl Index {
    /// What each of `slots` holds, parallel to them; nothing for one whose life is over.
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

    /// Counts and digests of what each of `slots` holds, parallel to them, added up from the tables
    /// themselves: what [`Self::summary`] should say.
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

    fn visit(&self, slots: &[SlotId], mut visit: impl FnMut(usize, Tier, u64)) {
        let _pin = self.shared.grace.pin();
        let mut places = vec![UNWANTED; MAX_SLOTS];
        for (place, &id) in slots.iter().enumerate() {
            // There are fewer slots than an u16 can say.
            if self.shared.roster.writable(id) {
                places[usize::from(id.slot)] = place as u16;
            }
        }
        for shard in 0..self.shards.len() {
            self.shards.enter_shared().with(shard, |tables| {
                self.visit_shard(tables, &places, &mut visit);
            });
        }
    }

    fn visit_shard(
        &self,
        tables: &Tables,
        places: &[u16],
        visit: &mut impl FnMut(usize, Tier, u64),
    ) {
        let cells = &*self.shared.cells;
        let off_device = tables.table(Kind::OffDevice);
        let on_device = |hash: u64, slot: u16| {
            let place = self.directories[0].place(hash);
            off_device.is_none_or(|table| !table.contains(place, hash, slot, cells))
        };
        let kinds = [
            (Kind::Anywhere, Tier::Device),
            (Kind::Host, Tier::Host),
            (Kind::Disk, Tier::Disk),
            (Kind::Remote, Tier::Remote),
        ];
        for (kind, tier) in kinds {
            let Some(table) = tables.table(kind) else {
                continue;
            };
            for (hash, set) in table.held(cells) {
                let mut hold = |slot: u16| {
                    let place = places[usize::from(slot)];
                    if place != UNWANTED && (kind != Kind::Anywhere || on_device(hash, slot)) {
                        visit(usize::from(place), tier, hash);
                    }
                };
                match set.holders() {
                    Holders::Few(few) => few.ids().for_each(&mut hold),
                    Holders::Many(bits) => bitmap::slots(bits).for_each(&mut hold),
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
            initial_slots_per_shard: 16,
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
