//! Look-ups of every kind beside a worker's death and the next life of its slot: a filter never comes to mean the slot's
//! next owner, a least depth and a limit leave what they say, and several together are each answered as one would be.

use super::{Arc, Orders, explore, live, settle, small, spawn, worker};
use crate::{FindOptions, Index, Pairs, Query, SlotFilter, SlotId};

/// Slots and depths of several queries together.
fn together(index: &Index, queries: &[&[u64]], options: &FindOptions<'_>) -> Vec<Vec<(u16, u32)>> {
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

/// Worker 1 dies, its slot is swept and becomes worker 2's, while somebody asks for both prompts by a filter.
fn filtered(name: &str, filter: fn(SlotId) -> SlotFilter) {
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
                let answers = together(&index, &[&[1, 2], &[3, 4]], &options);
                let was = answers[0].is_empty() || answers[0] == [(one.slot, 2)];
                assert!(was, "{answers:?}");
                assert_eq!(answers[1], [], "who is not meant");
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
fn a_filter_of_workers_never_means_the_next_owner() {
    filtered("lookups::of_workers", |_| {
        SlotFilter::of_workers([worker(1)])
    });
}

#[test]
fn a_filter_of_slots_never_means_the_next_life() {
    filtered("lookups::of_slots", |one| SlotFilter::of_slots([one]));
}

/// One stays at full depth while another, of the same head, is stored one deeper and taken away again.
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
                let answers = together(&index, &[&[1, 2, 3], &[1, 2]], &options);
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
