//! The behaviour that callers may rely on, one sentence per test. Public interface only.

use std::sync::Arc;

use kvatlas_hashing::sequence_step;
use kvatlas_index::{
    FindOptions, Index, IndexConfig, IndexError, Matches, Query, SlotId, Tier, WorkerKey,
};

fn worker(worker_id: u64, dp_rank: u32) -> WorkerKey {
    WorkerKey { worker_id, dp_rank }
}

fn tiny() -> Index {
    Index::new(IndexConfig {
        shard_bits: 1,
        initial_entries_per_shard: 8,
    })
}

fn chain(chunks: &[u64]) -> Vec<u64> {
    let mut out: Vec<u64> = Vec::new();
    for &chunk in chunks {
        out.push(
            out.last()
                .map_or(chunk, |&parent| sequence_step(parent, chunk)),
        );
    }
    out
}

fn live(index: &Index, key: WorkerKey) -> SlotId {
    let slot = index.allocate(key).unwrap();
    index.publish(slot);
    slot
}

fn ask(index: &Index, query: Query<'_>, limit: usize, exact: bool) -> Vec<(u64, u32, u32)> {
    let mut out = Matches::default();
    let options = FindOptions {
        limit,
        exact,
        ..FindOptions::default()
    };
    index.find(query, &options, &mut out);
    assert_eq!(out.workers.len(), out.depths.len());
    out.workers
        .iter()
        .zip(&out.depths)
        .map(|(w, &d)| (w.worker_id, w.dp_rank, d))
        .collect()
}

fn sweep_all(index: &Index) {
    while index.sweep(64).more {}
}

#[test]
fn an_index_is_shared_between_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    shared(&Arc::new(tiny()));
}

#[test]
fn depth_is_the_number_of_leading_blocks_held_deepest_first_then_by_worker_and_rank() {
    let index = tiny();
    let hashes = chain(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    for (key, depth) in [
        ((9, 0), 4),
        ((3, 1), 10),
        ((3, 0), 10),
        ((1, 0), 4),
        ((7, 0), 0),
    ] {
        let slot = live(&index, worker(key.0, key.1));
        assert_eq!(index.store(slot, Tier::Device, &hashes[..depth]), depth);
    }
    let expected = vec![(3, 0, 10), (3, 1, 10), (1, 0, 4), (9, 0, 4)];
    for exact in [false, true] {
        assert_eq!(
            ask(&index, Query::SequenceHashes(&hashes), 0, exact),
            expected
        );
    }
}

#[test]
fn every_form_of_query_gives_the_same_answer() {
    let index = tiny();
    let chunks: Vec<u64> = (0..300).map(|i| 77 * i + 5).collect();
    let hashes = chain(&chunks);
    let slot = live(&index, worker(4, 2));
    index.store(slot, Tier::Device, &hashes[..211]);
    // One stray byte in front puts every hash at an odd address; one behind is no complete hash.
    let bytes = |words: &[u64]| -> Vec<u8> {
        let mut out = vec![0xff];
        out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        out.push(0xee);
        out
    };
    let (chunk_bytes, hash_bytes) = (bytes(&chunks), bytes(&hashes));
    for query in [
        Query::ChunkHashes(&chunks),
        Query::SequenceHashes(&hashes),
        Query::ChunkHashesLe(&chunk_bytes[1..]),
        Query::SequenceHashesLe(&hash_bytes[1..]),
    ] {
        assert_eq!(ask(&index, query, 0, false), vec![(4, 2, 211)]);
        assert_eq!(ask(&index, query, 0, true), vec![(4, 2, 211)]);
    }
}

#[test]
fn an_empty_query_an_empty_index_and_an_unknown_prompt_match_nothing() {
    let index = tiny();
    assert!(ask(&index, Query::ChunkHashes(&[]), 0, false).is_empty());
    assert!(ask(&index, Query::SequenceHashesLe(&[1, 2, 3]), 0, true).is_empty());
    assert!(ask(&index, Query::ChunkHashes(&[1, 2, 3]), 0, false).is_empty());
    let slot = live(&index, worker(1, 0));
    index.store(slot, Tier::Device, &[1, 2, 3]);
    assert!(ask(&index, Query::SequenceHashes(&[4, 5]), 0, false).is_empty());
}

#[test]
fn any_hash_is_legal_also_the_extremes() {
    let index = tiny();
    let slot = live(&index, worker(1, 0));
    let hashes = [0, u64::MAX, 1, 1 << 63, 1 << 60, (1 << 60) - 1];
    assert!(ask(&index, Query::SequenceHashes(&[0]), 0, false).is_empty());
    assert_eq!(index.store(slot, Tier::Device, &hashes), 6);
    assert_eq!(
        ask(&index, Query::SequenceHashes(&hashes), 0, true),
        vec![(1, 0, 6)]
    );
    assert_eq!(index.remove(slot, Tier::Device, &[0]), 1);
    assert!(ask(&index, Query::SequenceHashes(&[0]), 0, false).is_empty());
}

#[test]
fn stores_and_removals_are_idempotent_and_count_only_changes() {
    let index = tiny();
    let slot = live(&index, worker(1, 0));
    assert_eq!(index.remove(slot, Tier::Device, &[5, 6]), 0);
    assert_eq!(index.store(slot, Tier::Device, &[5, 6, 5]), 2);
    assert_eq!(index.store(slot, Tier::Device, &[5, 6, 7]), 1);
    assert_eq!(index.memberships(), 3);
    let summary = index.summary(slot);
    assert_eq!(summary.tier(Tier::Device).count, 3);
    assert_eq!(summary.tier(Tier::Device).digest, 5 ^ 6 ^ 7);
    assert_eq!(index.remove(slot, Tier::Device, &[6, 6, 9]), 1);
    assert_eq!(index.summary(slot).tier(Tier::Device).digest, 5 ^ 7);
    let mut held = index.hashes(slot, Tier::Device);
    held.sort_unstable();
    assert_eq!(held, vec![5, 7]);
}

#[test]
fn a_slot_is_matched_only_between_publish_and_suspend_or_retire() {
    let index = tiny();
    let query = Query::SequenceHashes(&[1, 2]);
    let slot = index.allocate(worker(1, 0)).unwrap();
    index.store(slot, Tier::Device, &[1, 2]);
    assert!(ask(&index, query, 0, false).is_empty());
    index.publish(slot);
    assert_eq!(ask(&index, query, 0, false), vec![(1, 0, 2)]);
    index.suspend(slot);
    assert!(ask(&index, query, 0, false).is_empty());
    assert_eq!(index.summary(slot).blocks, 2);
    index.publish(slot);
    assert_eq!(ask(&index, query, 0, true), vec![(1, 0, 2)]);
    index.retire(slot);
    assert!(ask(&index, query, 0, true).is_empty());
    index.publish(slot);
    assert!(ask(&index, query, 0, true).is_empty());
}

#[test]
fn a_retired_slot_takes_no_more_stores_and_is_reused_only_when_swept() {
    let index = tiny();
    let old = live(&index, worker(1, 0));
    index.store(old, Tier::Device, &[1, 2, 3]);
    index.retire(old);
    assert_eq!(index.store(old, Tier::Device, &[4]), 0);
    assert_eq!(index.remove(old, Tier::Device, &[1]), 0);
    let beside = live(&index, worker(2, 0));
    assert_eq!(index.events().slot_reuses, 0);
    sweep_all(&index);
    let again = live(&index, worker(3, 0));
    assert_eq!(index.events().slot_reuses, 1);
    index.store(again, Tier::Device, &[1]);
    assert_eq!(
        ask(&index, Query::SequenceHashes(&[1, 2, 3]), 0, true),
        vec![(3, 0, 1)]
    );
    assert_eq!(
        index.store(old, Tier::Device, &[9]),
        0,
        "an outdated id must not reach the next owner"
    );
    assert_eq!(index.summary(old).blocks, 0);
    assert!(index.hashes(old, Tier::Device).is_empty());
    assert_ne!(beside, again);
}

#[test]
fn after_replace_exactly_one_of_the_two_sets_is_matched() {
    let index = tiny();
    let key = worker(8, 1);
    let old = live(&index, key);
    index.store(old, Tier::Device, &[1, 2, 3]);
    let new = index.allocate(key).unwrap();
    index.store(new, Tier::Device, &[1]);
    assert_eq!(
        ask(&index, Query::SequenceHashes(&[1, 2, 3]), 0, false),
        vec![(8, 1, 3)]
    );
    index.replace(old, new);
    assert_eq!(
        ask(&index, Query::SequenceHashes(&[1, 2, 3]), 0, false),
        vec![(8, 1, 1)]
    );
    sweep_all(&index);
    assert_eq!(
        ask(&index, Query::SequenceHashes(&[1, 2, 3]), 0, true),
        vec![(8, 1, 1)]
    );
    assert_eq!(index.memberships(), 1);
}

#[test]
fn a_block_matches_while_it_is_held_on_any_tier() {
    let index = tiny();
    let slot = live(&index, worker(1, 0));
    let query = Query::SequenceHashes(&[1]);
    for (first, second) in [(Tier::Device, Tier::Host), (Tier::Disk, Tier::Device)] {
        assert_eq!(index.store(slot, first, &[1]), 1);
        assert_eq!(index.store(slot, second, &[1]), 1);
        assert_eq!(index.summary(slot).blocks, 1);
        assert!(index.holds(slot, first, 1) && index.holds(slot, second, 1));
        assert_eq!(index.remove(slot, first, &[1]), 1);
        assert_eq!(ask(&index, query, 0, false), vec![(1, 0, 1)]);
        assert!(!index.holds(slot, first, 1) && index.holds(slot, second, 1));
        assert_eq!(index.hashes(slot, second), vec![1]);
        assert!(index.hashes(slot, first).is_empty());
        assert_eq!(index.remove(slot, second, &[1]), 1);
        assert!(ask(&index, query, 0, false).is_empty());
    }
}

#[test]
fn clear_empties_one_tier_of_one_slot() {
    let index = tiny();
    let (a, b) = (live(&index, worker(1, 0)), live(&index, worker(2, 0)));
    for slot in [a, b] {
        index.store(slot, Tier::Device, &[1, 2, 3]);
        index.store(slot, Tier::Host, &[1, 9]);
    }
    index.clear(a, Tier::Device);
    assert_eq!(
        ask(&index, Query::SequenceHashes(&[1, 2, 3]), 0, true),
        vec![(2, 0, 3), (1, 0, 1)]
    );
    assert_eq!(index.summary(a).tier(Tier::Device).count, 0);
    assert_eq!(index.summary(a).tier(Tier::Device).digest, 0);
    assert_eq!(index.summary(a).blocks, 2);
    index.clear(a, Tier::Host);
    assert_eq!(index.summary(a).blocks, 0);
    assert_eq!(index.summary(b).blocks, 4);
}

#[test]
fn exact_stops_at_the_first_hole() {
    let index = tiny();
    let slot = live(&index, worker(1, 0));
    let hashes: Vec<u64> = (1..=50).collect();
    index.store(slot, Tier::Device, &hashes);
    for hole in [49, 30, 2] {
        index.remove(slot, Tier::Device, &[hashes[hole]]);
        assert_eq!(
            ask(&index, Query::SequenceHashes(&hashes), 0, true),
            vec![(1, 0, u32::try_from(hole).unwrap())]
        );
    }
}

#[test]
fn the_limit_keeps_the_deepest_and_picks_among_equals_by_the_stated_hash() {
    let index = tiny();
    let (short, long) = (chain(&[1, 2, 3]), chain(&[1, 2, 3, 4]));
    let deep = live(&index, worker(500, 3));
    index.store(deep, Tier::Device, &long);
    for id in 0..100 {
        let slot = live(&index, worker(id, 0));
        index.store(slot, Tier::Device, &short);
    }
    let mut equals: Vec<(u64, u64)> = (0..100u64)
        .map(|id| {
            let mut bytes = id.to_le_bytes().to_vec();
            bytes.extend(0u32.to_le_bytes());
            bytes.extend(short[2].to_le_bytes());
            (xxhash_rust::xxh3::xxh3_64(&bytes), id)
        })
        .collect();
    equals.sort_unstable();
    let mut kept: Vec<u64> = equals[..9].iter().map(|&(_, id)| id).collect();
    kept.sort_unstable();
    let mut expected = vec![(500, 3, 4)];
    expected.extend(kept.iter().map(|&id| (id, 0, 3)));
    assert_eq!(
        ask(&index, Query::SequenceHashes(&long), 10, false),
        expected
    );
    assert_eq!(
        ask(&index, Query::SequenceHashes(&long), 10, true),
        expected
    );
    assert_eq!(
        ask(&index, Query::SequenceHashes(&long), 1, false),
        expected[..1]
    );
    assert_eq!(
        ask(&index, Query::SequenceHashes(&long), 1000, false).len(),
        101
    );
}

#[test]
fn worker_slots_run_out_with_an_error_and_come_back_after_a_sweep() {
    let index = tiny();
    let mut last = None;
    let mut count = 0u64;
    let error = loop {
        match index.allocate(worker(count, 0)) {
            Ok(slot) => last = Some(slot),
            Err(error) => break error,
        }
        count += 1;
    };
    assert!(count >= 8192);
    assert_eq!(
        error,
        IndexError::SlotsExhausted {
            limit: usize::try_from(count).unwrap()
        }
    );
    index.retire(last.unwrap());
    sweep_all(&index);
    let again = live(&index, worker(7_000_000, 0));
    index.store(again, Tier::Device, &[3]);
    assert_eq!(
        ask(&index, Query::SequenceHashes(&[3]), 0, false),
        vec![(7_000_000, 0, 1)]
    );
}

#[test]
fn memory_is_given_back_when_everything_is_removed() {
    let index = Index::new(IndexConfig {
        shard_bits: 2,
        initial_entries_per_shard: 8,
    });
    let empty = index.memory_bytes().total();
    let hashes: Vec<u64> = (0..20_000u64)
        .map(|i| i.wrapping_mul(0x2545_F491_4F6C_DD1D))
        .collect();
    let slots: Vec<_> = (0..6).map(|id| live(&index, worker(id, 0))).collect();
    for &slot in &slots {
        assert_eq!(index.store(slot, Tier::Device, &hashes), hashes.len());
    }
    let full = index.memory_bytes().total();
    assert!(full - empty > 16 * hashes.len());
    for &slot in &slots {
        assert_eq!(index.remove(slot, Tier::Device, &hashes), hashes.len());
    }
    sweep_all(&index);
    let after = index.memory_bytes().total();
    assert!(
        after - empty < (full - empty) / 10,
        "{empty} {full} {after}"
    );
    assert!(index.events().shrinks > 0);
}

#[test]
fn reserved_memory_is_taken_at_once_and_nothing_grows_until_it_is_full() {
    let index = Index::new(IndexConfig::default());
    let slot = live(&index, worker(1, 0));
    let hashes: Vec<u64> = (0..200_000u64)
        .map(|i| i.wrapping_mul(0x2545_F491_4F6C_DD1D))
        .collect();
    assert_eq!(index.store(slot, Tier::Device, &hashes[..100]), 100);
    index.reserve(hashes.len());
    let reserved = index.memory_bytes().tables;
    assert!(reserved > 16 * hashes.len());
    let before = index.events().growths;
    assert_eq!(index.store(slot, Tier::Device, &hashes), hashes.len() - 100);
    assert_eq!(index.remove(slot, Tier::Device, &hashes), hashes.len());
    assert_eq!(index.store(slot, Tier::Device, &hashes), hashes.len());
    let (tables, growths) = (index.memory_bytes().tables, index.events().growths);
    assert_eq!((tables, growths), (reserved, before));
    assert_eq!(index.memberships(), hashes.len() as u64);
}

#[test]
fn the_reserved_size_does_not_depend_on_earlier_contents() {
    let (fresh, used) = (tiny(), tiny());
    let slot = live(&used, worker(1, 0));
    for hash in 0..40 {
        used.store(slot, Tier::Device, &[hash]);
        used.remove(slot, Tier::Device, &[hash]);
    }
    fresh.reserve(100_000);
    used.reserve(100_000);
    assert_eq!(used.memory_bytes().tables, fresh.memory_bytes().tables);
}
