//! Many runs in one call do what the same runs do one by one, whatever is in flight together.
//!
//! Few blocks and few slots, so that runs meet on the same ones; small tables in one shard, so that they overflow, are
//! used again and renewed in mid-call.

use std::collections::{BTreeMap, BTreeSet};

use kvatlas_hashing::sequence_step;
use kvatlas_index::{Applied, Hashes, Index, IndexConfig, Run, SlotId, Tier, WorkerKey};
use proptest::prelude::*;

const BLOCKS: u64 = 600;
const SLOTS: u64 = 4;

/// A run as numbers: slot, tier, whether it stores, from which block on, how many, whether by chunk hashes.
type Told = (usize, usize, bool, u64, u64, bool);

fn told() -> impl Strategy<Value = Told> {
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

/// Blocks fall into few lines: only the upper bits say which.
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
            initial_slots_per_shard: 16,
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

    /// One call; returns what it should have said, and what it did.
    fn play(&mut self, call: &[Told]) -> (Applied, Applied) {
        let mut expected = Applied::default();
        let given: Vec<Vec<u64>> = call
            .iter()
            .map(|&(.., from, count, _)| (from..from + count).map(hash).collect())
            .collect();
        let runs = call.iter().zip(&given).map(|(&told, given)| {
            let (slot, tier, stores, .., chunked) = told;
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
            Run {
                slot: self.slots[slot],
                tier: Tier::ALL[tier],
                stores,
                hashes,
            }
        });
        let runs: Vec<Run<'_>> = runs.collect();
        let applied = self.index.apply(runs);
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
    fn runs_of_one_call_take_effect_as_if_one_by_one(
        calls in prop::collection::vec(prop::collection::vec(told(), 0..60), 1..12)
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
fn runs_of_a_retired_slot_change_nothing_and_keep_nobody_from_others() {
    let played = Played::new();
    played.index.retire(played.slots[1]);
    let blocks: Vec<u64> = (0..BLOCKS).map(hash).collect();
    let run = |slot: usize| Run {
        slot: played.slots[slot],
        tier: Tier::Device,
        stores: true,
        hashes: Hashes::Sequences(&blocks),
    };
    let applied = played.index.apply([run(0), run(1), run(2)]);
    assert_eq!(applied.stored, 2 * blocks.len());
}
