//! Look-ups of every kind while a worker is retired and its slot allocated again. A filter never comes to include the slot's
//! next owner, and options and batches hold meanwhile.

use super::{Arc, Orders, explore, live, settle, small, spawn, worker};
use crate::{FindOptions, Index, Pairs, Query, SlotId, WorkerFilter, WorkerSlot};

/// The answers of several queries together: slots and depths.
fn find_together(
    index: &Index,
    queries: &[&[u64]],
    options: &FindOptions<'_>,
) -> Vec<Vec<(WorkerSlot, u32)>> {
    let queries: Vec<_> = queries
        .iter()
        .map(|&hashes| Query::SequenceHashes(hashes))
        .collect();
    let mut out: Vec<Pairs> = queries.iter().map(|_| Pairs::default()).collect();
    index.find_pairs_batch(&queries, options, &mut out);
    let answer = |pairs: &Pairs| {
        pairs
            .slots
            .iter()
            .copied()
            .zip(pairs.depths.iter().copied())
            .collect()
    };
    out.iter().map(answer).collect()
}

/// Worker 1 is retired, its slot is swept and becomes worker 2's, while a reader asks for both prompts with a filter.
fn filtered(name: &str, filter: fn(SlotId) -> WorkerFilter) {
    explore(name, Orders::Preemptions(1), move || {
        let index = small();
        let one = live(&index, 1, &[1, 2]);
        let reader = spawn({
            let index = Arc::clone(&index);
            move || {
                let filter = filter(one);
                let options = FindOptions {
                    filter: Some(&filter),
                    min_depth: 2,
                    limit: 1,
                    ..FindOptions::default()
                };
                let answers = find_together(&index, &[&[1, 2], &[3, 4]], &options);
                let was = answers[0].is_empty() || answers[0] == [(one.slot, 2)];
                assert!(was, "{answers:?}");
                assert_eq!(answers[1], [], "not included");
            }
        });
        index.retire(one);
        for _ in 0..3 {
            let _ = index.sweep(64);
        }
        live(&index, 2, &[3, 4]);
        reader.join().unwrap();
        settle(&index);
    });
}

#[test]
fn a_filter_of_workers_never_includes_the_next_owner() {
    filtered("lookups::of_workers", |_| {
        WorkerFilter::of_workers([worker(1)])
    });
}

#[test]
fn a_filter_of_slots_never_includes_the_next_owner() {
    filtered("lookups::of_slots", |one| WorkerFilter::of_slots([one]));
}

/// One worker stays at full depth while another, with the same prefix, gets one block more and loses it again.
#[test]
fn a_limit_keeps_the_deepest_of_some_moment() {
    explore("lookups::limit", Orders::Preemptions(1), || {
        let index = small();
        let stays = live(&index, 1, &[1, 2]);
        let moves = live(&index, 2, &[1]);
        let reader = spawn({
            let index = Arc::clone(&index);
            move || {
                let options = FindOptions {
                    limit: 1,
                    ..FindOptions::default()
                };
                let answers = find_together(&index, &[&[1, 2, 3], &[1, 2]], &options);
                for answer in answers {
                    assert_eq!(answer.len(), 1, "there is always one to name");
                    let (slot, depth) = answer[0];
                    assert!(depth >= 2, "one always holds two: {answer:?}");
                    assert!(slot == moves.slot || (slot, depth) == (stays.slot, 2));
                }
            }
        });
        super::store(&index, moves, &[2, 3]);
        super::remove(&index, moves, &[3, 2]);
        reader.join().unwrap();
        settle(&index);
    });
}
