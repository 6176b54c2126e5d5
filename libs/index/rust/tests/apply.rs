//! Many changes in one call have the effect of the same changes one by one, whatever is in flight together.
//!
//! There are few blocks and few slots, so that changes meet on the same ones, and small tables in one shard, so that they
//! overflow, reuse tombstones, and are resized in the middle of a call.

use std::collections::{BTreeMap, BTreeSet};

use kvatlas_hashing::sequence_step;
use kvatlas_index::{Applied, Change, Hashes, Index, IndexConfig, SlotId, Tier, WorkerKey};
use proptest::prelude::*;

const BLOCKS: u64 = 600;
const SLOTS: u64 = 4;

/// A change as numbers: slot, tier, whether it stores, first block, number of blocks, whether by chunk hashes.
type Drawn = (usize, usize, bool, u64, u64, bool);

fn drawn() -> impl Strategy<Value = Drawn> {
    let tier = prop_oneof![8 => Just(0usize), 1 => 1usize..4];
    (
        0..SLOTS as usize,
        tier,
        any::<bool>(),
        0..BLOCKS,
        0u64..80,
        any::<bool>(),
    )
}

/// Hashes of blocks fall into few lines, since only their upper bits differ.
fn hash(block: u64) -> u64 {
    (block % BLOCKS) * ((1 << 52) + 1)
}

struct Played {
    index: Index,
    slots: Vec<SlotId>,
    model: BTreeMap<(usize, usize), BTreeSet<u64>>,
}

impl Played {
    fn new() -> Self {
        let index = Index::new(IndexConfig {
            shard_bits: 0,
            initial_entries_per_shard: 16,
        });
        let slots = (0..SLOTS).map(|worker_id| {
            let slot = index.allocate(WorkerKey {
                worker_id,
                dp_rank: 0,
            });
            slot.unwrap()
        });
        Self {
            slots: slots.collect(),
            index,
            model: BTreeMap::new(),
        }
    }

    /// Plays one call; returns the result that is expected, and the one that came.
    fn play(&mut self, call: &[Drawn]) -> (Applied, Applied) {
        let mut expected = Applied::default();
        let given: Vec<Vec<u64>> = call
            .iter()
            .map(|&(.., from, count, _)| (from..from + count).map(hash).collect())
            .collect();
        let changes = call.iter().zip(&given).map(|(&drawn, given)| {
            let (slot, tier, stores, .., chunked) = drawn;
            let hashes = if chunked && stores {
                Hashes::Chunks {
                    parent: given.first().copied(),
                    chunks: given,
                }
            } else {
                Hashes::Sequences(given)
            };
            let mut last = given.first().copied().unwrap_or(0);
            for &chunk in given {
                last = sequence_step(last, chunk);
                let hash = if chunked && stores { last } else { chunk };
                let held = self.model.entry((slot, tier)).or_default();
                if stores {
                    expected.stored += usize::from(held.insert(hash));
                } else {
                    expected.removed += usize::from(held.remove(&hash));
                }
            }
            Change {
                slot: self.slots[slot],
                tier: Tier::ALL[tier],
                stores,
                hashes,
            }
        });
        let changes: Vec<Change<'_>> = changes.collect();
        let applied = self.index.apply(changes);
        (expected, applied)
    }

    fn check(&self) {
        for slot in 0..SLOTS as usize {
            let summary = self.index.summary(self.slots[slot]);
            for tier in 0..4 {
                let held = self.model.get(&(slot, tier)).cloned().unwrap_or_default();
                let mut found = self.index.hashes(self.slots[slot], Tier::ALL[tier]);
                found.sort_unstable();
                assert_eq!(found, held.iter().copied().collect::<Vec<_>>());
                let digest = held.iter().fold(0, |digest, hash| digest ^ hash);
                let tier = summary.tier(Tier::ALL[tier]);
                assert_eq!((tier.count, tier.digest), (held.len() as u64, digest));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn changes_of_one_call_take_effect_as_if_one_by_one(
        calls in prop::collection::vec(prop::collection::vec(drawn(), 0..60), 1..12)
    ) {
        let mut played = Played::new();
        for call in &calls {
            let (expected, applied) = played.play(call);
            prop_assert_eq!(applied, expected);
            while played.index.sweep(1 << 20).removed > 0 {}
        }
        played.check();
    }
}

#[test]
fn changes_of_a_retired_slot_do_nothing_and_do_not_stop_others() {
    let played = Played::new();
    played.index.retire(played.slots[1]);
    let blocks: Vec<u64> = (0..BLOCKS).map(hash).collect();
    let change = |slot: usize| Change {
        slot: played.slots[slot],
        tier: Tier::Device,
        stores: true,
        hashes: Hashes::Sequences(&blocks),
    };
    let applied = played.index.apply([change(0), change(1), change(2)]);
    assert_eq!(applied.stored, 2 * blocks.len());
}
