//! Many searches of one call are under way at a time. None may pass by what another of them does.

use std::collections::BTreeSet;

use kvatlas_index::{Applied, Hashes, Index, IndexConfig, Run, SlotId, Tier, WorkerKey};
use proptest::prelude::*;

/// Numbers that look random, the same in every run.
fn spread(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// In a nearly full table with some emptied slots, a search passes full lines, notes an emptied slot on them, and takes it
/// at its end. A second search for the same block must not go by the first one's choice.
#[test]
fn a_block_named_twice_in_one_call_is_stored_once_also_in_place_of_an_emptied_one() {
    for round in 0..300 {
        let index = Index::new(IndexConfig {
            shard_bits: 0,
            initial_slots_per_shard: 64,
        });
        let worker = WorkerKey {
            worker_id: 1,
            dp_rank: 0,
        };
        let slot = index.allocate(worker).unwrap();
        let blocks: Vec<u64> = (0..58).map(|at| spread(round * 64 + at)).collect();
        let (held, new) = blocks.split_at(54);
        index.store(slot, Tier::Device, held);
        index.remove(slot, Tier::Device, &held[..10]);
        // Nobody is pinned, so a few slices of the clean-up end the grace period of what was emptied.
        for _ in 0..6 {
            let _ = index.sweep(1);
        }
        let twice: Vec<u64> = new.iter().flat_map(|&block| [block, block]).collect();
        assert_eq!(index.store(slot, Tier::Device, &twice), new.len());

        let mut listed = index.hashes(slot, Tier::Device);
        let mut wanted = [&held[10..], new].concat();
        listed.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(listed, wanted, "round {round}");
        assert_eq!(index.remove(slot, Tier::Device, &twice), new.len());
        assert!(
            !new.iter()
                .any(|&block| index.holds(slot, Tier::Device, block))
        );
    }
}

/// As above, and a removal must not go by it either: neither by the store of the same worker, nor, because it meets the
/// block on an earlier line, by the store of a worker that is on its way to where the first one's ended.
#[test]
fn a_block_stored_and_removed_in_one_call_is_gone_also_where_it_took_an_emptied_place() {
    for round in 0..2000 {
        let index = Index::new(IndexConfig {
            shard_bits: 0,
            initial_slots_per_shard: 64,
        });
        let [one, other] = [1, 2].map(|worker_id| {
            let slot = index.allocate(WorkerKey {
                worker_id,
                dp_rank: 0,
            });
            slot.unwrap()
        });
        let blocks: Vec<u64> = (0..60).map(|at| spread(round * 64 + at)).collect();
        let (held, new) = blocks.split_at(52);
        index.store(one, Tier::Device, held);
        index.remove(one, Tier::Device, &held[..10]);
        for _ in 0..6 {
            let _ = index.sweep(1);
        }
        // Searches that pass by in between, of a number that differs.
        let others = &held[10..10 + round as usize % 20];
        let run = |slot: SlotId, stores: bool, hashes| Run {
            slot,
            tier: Tier::Device,
            stores,
            hashes: Hashes::Sequences(hashes),
        };
        let (count, again) = (new.len(), others.len());
        let first = index.apply([run(one, true, new), run(one, false, new)]);
        assert_eq!((first.stored, first.removed), (count, count), "{round}");
        for _ in 0..6 {
            let _ = index.sweep(1);
        }
        let second = index.apply([
            run(one, true, new),
            run(one, true, others),
            run(other, true, new),
            run(other, true, others),
            run(other, false, new),
        ]);
        assert_eq!(
            (second.stored, second.removed),
            (2 * count + again, count),
            "{round}"
        );
    }
}

/// A run: whose it is, whether it stores, and which blocks.
type Told = (usize, bool, Vec<u64>);

fn told() -> impl Strategy<Value = Told> {
    let blocks = prop::collection::vec(0u64..70, 1..6);
    (0usize..4, any::<bool>(), blocks)
}

proptest! {
    /// Few blocks of four workers in a small table with places that were emptied, many of them again and again in one call.
    #[test]
    fn runs_of_one_call_count_as_if_one_by_one_where_places_are_taken_again(
        seed in 0u64..1000,
        filled in 40u64..60,
        emptied in prop::collection::vec(0u64..60, 0..20),
        calls in prop::collection::vec(prop::collection::vec(told(), 1..40), 1..6),
    ) {
        let index = Index::new(IndexConfig {
            shard_bits: 0,
            initial_slots_per_shard: 64,
        });
        let slots = [0, 1, 2, 3].map(|worker_id| {
            let slot = index.allocate(WorkerKey {
                worker_id,
                dp_rank: 0,
            });
            slot.unwrap()
        });
        let hash = |block: u64| spread(seed * 100 + block);
        let mut held = [(); 4].map(|()| BTreeSet::new());
        held[0].extend((0..filled).map(hash));
        let filled: Vec<u64> = held[0].iter().copied().collect();
        index.store(slots[0], Tier::Device, &filled);
        let emptied: Vec<u64> = emptied.into_iter().map(hash).collect();
        index.remove(slots[0], Tier::Device, &emptied);
        for hash in &emptied {
            held[0].remove(hash);
        }
        for call in &calls {
            for _ in 0..6 {
                let _ = index.sweep(1);
            }
            let hashes: Vec<Vec<u64>> = call
                .iter()
                .map(|(_, _, blocks)| blocks.iter().map(|&block| hash(block)).collect())
                .collect();
            let mut expected = Applied::default();
            for (&(worker, stores, _), hashes) in call.iter().zip(&hashes) {
                for &hash in hashes {
                    if stores {
                        expected.stored += usize::from(held[worker].insert(hash));
                    } else {
                        expected.removed += usize::from(held[worker].remove(&hash));
                    }
                }
            }
            let runs = call.iter().zip(&hashes).map(|(&(worker, stores, _), hashes)| Run {
                slot: slots[worker],
                tier: Tier::Device,
                stores,
                hashes: Hashes::Sequences(hashes),
            });
            prop_assert_eq!(index.apply(runs), expected);
            for (&slot, held) in slots.iter().zip(&held) {
                let listed: BTreeSet<u64> = index.hashes(slot, Tier::Device).into_iter().collect();
                prop_assert_eq!(&listed, held);
            }
        }
    }
}
