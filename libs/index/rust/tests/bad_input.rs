//! Misuse, and what happens then: one sentence of behaviour per test.

use kvatlas_hashing::sequence_step;
use kvatlas_index::{
    FindOptions, Index, IndexConfig, IndexError, Matches, Pairs, Query, SlotId, Tier, WorkerFilter,
    WorkerKey,
};

fn worker(worker_id: u64) -> WorkerKey {
    WorkerKey {
        worker_id,
        dp_rank: 0,
    }
}

fn live(index: &Index, worker_id: u64) -> SlotId {
    let slot = index.allocate(worker(worker_id)).unwrap();
    index.publish(slot);
    slot
}

fn ask(index: &Index, hashes: &[u64], options: &FindOptions<'_>) -> Vec<(u64, u32)> {
    let (mut out, mut pairs) = (Matches::default(), Pairs::default());
    index.find(Query::SequenceHashes(hashes), options, &mut out);
    index.find_pairs(Query::SequenceHashes(hashes), options, &mut pairs);
    assert_eq!(out.depths, pairs.depths);
    let workers = out.workers.iter().map(|worker| worker.worker_id);
    workers.zip(out.depths.iter().copied()).collect()
}

#[test]
fn a_query_without_a_whole_hash_matches_nobody_under_any_options() {
    let index = Index::new(IndexConfig::default());
    let slot = live(&index, 1);
    index.store(slot, Tier::Device, &[1, 2]);
    let filter = WorkerFilter::of_workers([worker(1)]);
    let mut out = Matches::default();
    for query in [
        Query::ChunkHashes(&[]),
        Query::SequenceHashes(&[]),
        Query::ChunkHashesLe(&[]),
        Query::SequenceHashesLe(&[1, 0, 0, 0, 0, 0, 0]),
    ] {
        for (exact, min_depth) in [(false, 0), (false, 5), (true, 0), (true, 5)] {
            let options = FindOptions {
                limit: 3,
                exact,
                min_depth,
                filter: Some(&filter),
            };
            index.find(query, &options, &mut out);
            assert!(out.workers.is_empty() && out.depths.is_empty());
        }
    }
    index.find_batch(&[], &FindOptions::default(), &mut []);
}

#[test]
#[should_panic(expected = "one answer a query")]
fn a_batch_with_fewer_answers_than_queries_is_refused() {
    let queries = [Query::ChunkHashes(&[1]); 2];
    let mut out = [Matches::default()];
    Index::new(IndexConfig::default()).find_batch(&queries, &FindOptions::default(), &mut out);
}

#[test]
fn a_depth_or_limit_beyond_anything_stored_is_no_error() {
    let index = Index::new(IndexConfig::default());
    let hashes: Vec<u64> = (1..=5000).collect();
    let slot = live(&index, 1);
    index.store(slot, Tier::Device, &hashes[..3]);
    for exact in [false, true] {
        let ask = |limit, min_depth| {
            let options = FindOptions {
                limit,
                exact,
                min_depth,
                filter: None,
            };
            ask(&index, &hashes, &options)
        };
        assert_eq!(ask(usize::MAX, 0), [(1, 3)]);
        assert_eq!(ask(1 << 32, 3), [(1, 3)]);
        for beyond in [4, 5000, 5001, 1 << 32, usize::MAX] {
            assert!(ask(0, beyond).is_empty());
        }
    }
}

#[test]
fn duplicates_and_removals_of_absent_blocks_change_nothing() {
    let index = Index::new(IndexConfig::default());
    let slot = live(&index, 1);
    assert_eq!(index.remove(slot, Tier::Device, &[1, 2, 3]), 0);
    assert_eq!(index.store(slot, Tier::Device, &[1, 1, 2, 1]), 2);
    assert_eq!(index.store(slot, Tier::Device, &[2, 1]), 0);
    assert_eq!(index.remove(slot, Tier::Host, &[1, 2]), 0);
    assert_eq!(ask(&index, &[1, 2], &FindOptions::default()), [(1, 2)]);
    assert_eq!(index.remove(slot, Tier::Device, &[2, 2, 1, 2]), 2);
    assert_eq!(index.memberships(), 0);
    assert_eq!(index.summary(slot).tier(Tier::Device).digest, 0);
    assert!(ask(&index, &[1, 2], &FindOptions::default()).is_empty());
}

#[test]
fn blocks_after_a_missing_parent_match_once_the_gap_is_stored() {
    let index = Index::new(IndexConfig::default());
    let chunks = [10, 11, 12, 13];
    let mut hashes = vec![chunks[0]];
    for &chunk in &chunks[1..] {
        hashes.push(sequence_step(hashes[hashes.len() - 1], chunk));
    }
    let slot = live(&index, 1);
    index.store(slot, Tier::Device, &hashes[2..]);
    assert!(ask(&index, &hashes, &FindOptions::default()).is_empty());
    index.store(slot, Tier::Device, &hashes[..2]);
    assert_eq!(ask(&index, &hashes, &FindOptions::default()), [(1, 4)]);
}

#[test]
fn a_query_of_the_same_hash_over_and_over_goes_as_deep_as_it_is_long() {
    let index = Index::new(IndexConfig::default());
    let slot = live(&index, 1);
    index.store(slot, Tier::Device, &[7]);
    let options = FindOptions::default();
    assert_eq!(ask(&index, &[7; 300], &options), [(1, 300)]);
    let exact = FindOptions {
        exact: true,
        ..options
    };
    assert_eq!(ask(&index, &[7; 300], &exact), [(1, 300)]);
}

#[test]
fn a_filter_wider_or_narrower_than_the_fleet_or_empty_includes_the_workers_it_names() {
    let index = Index::new(IndexConfig::default());
    let slots: Vec<SlotId> = (0..200).map(|id| live(&index, id)).collect();
    for &slot in &slots {
        index.store(slot, Tier::Device, &[1, 2]);
    }
    let found = |filter: &WorkerFilter| -> Vec<u64> {
        let options = FindOptions {
            filter: Some(filter),
            ..FindOptions::default()
        };
        let rows = ask(&index, &[1, 2, 3], &options);
        rows.into_iter().map(|(worker, _)| worker).collect()
    };
    assert!(found(&WorkerFilter::of_workers([])).is_empty());
    assert!(found(&WorkerFilter::of_slots([])).is_empty());
    assert_eq!(found(&WorkerFilter::of_slots([slots[0]])), [0]);
    let wider = WorkerFilter::of_workers((150..100_000).chain(150..160).map(worker));
    assert_eq!(found(&wider), (150..200).collect::<Vec<_>>());
    let stranger = WorkerFilter::of_workers([worker(u64::MAX)]);
    assert!(found(&stranger).is_empty());
}

#[test]
fn a_filter_includes_the_same_workers_after_their_slots_are_reused() {
    let index = Index::new(IndexConfig::default());
    let (old, other) = (live(&index, 1), live(&index, 2));
    index.store(old, Tier::Device, &[1]);
    index.store(other, Tier::Device, &[1]);
    let by_worker = WorkerFilter::of_workers([worker(1)]);
    let by_slot = WorkerFilter::of_slots([old]);
    // The buffers cache the filters' bits; these must not outlive the answer order that they came from.
    let mut out = Matches::default();
    let mut found = |filter: &WorkerFilter| -> Vec<u64> {
        let options = FindOptions {
            filter: Some(filter),
            ..FindOptions::default()
        };
        index.find(Query::SequenceHashes(&[1]), &options, &mut out);
        out.workers.iter().map(|worker| worker.worker_id).collect()
    };
    assert_eq!(found(&by_worker), [1]);
    assert_eq!(found(&by_slot), [1]);
    index.retire(old);
    assert!(found(&by_worker).is_empty() && found(&by_slot).is_empty());
    while index.sweep(1 << 16).more {}
    let stranger = live(&index, 3);
    assert_eq!(stranger.slot(), old.slot());
    index.store(stranger, Tier::Device, &[1]);
    assert!(found(&by_worker).is_empty() && found(&by_slot).is_empty());
    let again = live(&index, 1);
    index.store(again, Tier::Device, &[1]);
    assert_eq!(found(&by_worker), [1]);
    assert!(found(&by_slot).is_empty());
}

#[test]
fn a_filter_includes_a_worker_that_is_published_only_after_a_look_up_with_it() {
    let index = Index::new(IndexConfig::default());
    // The last slot lies in a word in which no published one does.
    let slots: Vec<SlotId> = (0..65)
        .map(|id| index.allocate(worker(id)).unwrap())
        .collect();
    for &slot in &slots {
        index.store(slot, Tier::Device, &[1]);
    }
    index.publish(slots[0]);
    let filters = [
        WorkerFilter::of_workers([worker(0), worker(64)]),
        WorkerFilter::of_slots([slots[0], slots[64]]),
    ];
    let mut out = Matches::default();
    let mut found = |filter: &WorkerFilter| {
        let options = FindOptions {
            filter: Some(filter),
            ..FindOptions::default()
        };
        index.find(Query::SequenceHashes(&[1]), &options, &mut out);
        out.workers.len()
    };
    assert_eq!(filters.each_ref().map(&mut found), [1, 1]);
    index.publish(slots[64]);
    assert_eq!(filters.each_ref().map(&mut found), [2, 2]);
}

#[test]
fn a_call_with_a_slot_of_another_index_does_nothing() {
    let (index, larger) = (
        Index::new(IndexConfig::default()),
        Index::new(IndexConfig::default()),
    );
    let foreign = (0..100).map(|id| live(&larger, id)).next_back().unwrap();
    assert_eq!(index.store(foreign, Tier::Device, &[1]), 0);
    assert_eq!(index.remove(foreign, Tier::Device, &[1]), 0);
    index.clear(foreign, Tier::Device);
    index.suspend(foreign);
    assert_eq!(index.memberships(), 0);
    assert!(index.hashes(foreign, Tier::Device).is_empty());
    assert!(!index.holds(foreign, Tier::Device, 1));
}

#[test]
fn exhausted_worker_slots_are_an_error_that_says_how_many_there_are() {
    let index = Index::new(IndexConfig::default());
    let refused = (0..).find_map(|id| index.allocate(worker(id)).err());
    assert_eq!(refused, Some(IndexError::SlotsExhausted { limit: 32_768 }));
    assert_eq!(index.memberships(), 0);
}
