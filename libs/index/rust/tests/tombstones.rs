//! Tombstones and many probes in flight: no probe of a call may miss what another of them has just done.

use std::collections::BTreeSet;

use kvatlas_index::{Applied, Change, Hashes, Index, IndexConfig, SlotId, Tier, WorkerKey};
use proptest::prelude::*;

/// Numbers that look random, the same in every run.
fn spread(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// In a nearly full table with some tombstones, a probe passes full lines, notes a tombstone on them, and takes it at its
/// end. A second probe for the same block must not miss that.
#[test]
fn a_block_named_twice_in_one_call_is_stored_once_also_in_a_tombstone() {
    for round in 0..300 {
        let index = Index::new(IndexConfig {
            shard_bits: 0,
            initial_entries_per_shard: 64,
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
        // Nobody is pinned, so a few slices of the sweep end the grace period of the tombstones.
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

/// A removal must not miss a store either: not that of the same worker, and not that of another worker which is still on its
/// way to the line where the first one ended.
#[test]
fn a_block_stored_and_removed_in_one_call_is_gone_also_where_it_took_a_tombstone() {
    for round in 0..2000 {
        let index = Index::new(IndexConfig {
            shard_bits: 0,
            initial_entries_per_shard: 64,
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
        // Other probes in between, a different number in each round.
        let others = &held[10..10 + round as usize % 20];
        let change = |slot: SlotId, stores: bool, hashes| Change {
            slot,
            tier: Tier::Device,
            stores,
            hashes: Hashes::Sequences(hashes),
        };
        let (count, again) = (new.len(), others.len());
        let first = index.apply([change(one, true, new), change(one, false, new)]);
        assert_eq!((first.stored, first.removed), (count, count), "{round}");
        for _ in 0..6 {
            let _ = index.sweep(1);
        }
        let second = index.apply([
            change(one, true, new),
            change(one, true, others),
            change(other, true, new),
            change(other, true, others),
            change(other, false, new),
        ]);
        assert_eq!(
            (second.stored, second.removed),
            (2 * count + again, count),
            "{round}"
        );
    }
}

/// A change: the worker, whether it stores, and the blocks.
type Drawn = (usize, bool, Vec<u64>);

fn drawn() -> impl Strategy<Value = Drawn> {
    let blocks = prop::collection::vec(0u64..70, 1..6);
    (0usize..4, any::<bool>(), blocks)
}

proptest! {
    /// Few blocks of four workers in a small table with tombstones; one call names many blocks again and again.
    #[test]
    fn changes_of_one_call_count_as_if_one_by_one_where_tombstones_are_reused(
        seed in 0u64..1000,
        filled in 40u64..60,
        emptied in prop::collection::vec(0u64..60, 0..20),
        calls in prop::collection::vec(prop::collection::vec(drawn(), 1..40), 1..6),
    ) {
        let index = Index::new(IndexConfig {
            shard_bits: 0,
            initial_entries_per_shard: 64,
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
            let changes = call.iter().zip(&hashes).map(|(&(worker, stores, _), hashes)| Change {
                slot: slots[worker],
                tier: Tier::Device,
                stores,
                hashes: Hashes::Sequences(hashes),
            });
            prop_assert_eq!(index.apply(changes), expected);
            for (&slot, held) in slots.iter().zip(&held) {
                let listed: BTreeSet<u64> = index.hashes(slot, Tier::Device).into_iter().collect();
                prop_assert_eq!(&listed, held);
            }
        }
    }
}
