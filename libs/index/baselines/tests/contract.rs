//! One contract suite, run on every design. Each case is a sentence of it.
//!
//! The designs that are inexact as published run the same cases: these prompts share chunks only at the same place below the same
//! prefix, where those designs are right too.

mod common;

use std::sync::Barrier;

use common::fleet::{Fleet, find};
use common::model::sequence_hashes;
use kvatlas_baselines::catalogue::{DESIGNS, Design};
use kvatlas_baselines::{Answer, Match, PrefixIndex};

/// A prompt whose first `shared` blocks are the family's and whose others are its own.
fn prompt(family: u64, own: u64, shared: usize, blocks: usize) -> Vec<u64> {
    (0..blocks as u64)
        .map(|at| {
            let whose = if (at as usize) < shared {
                family << 1
            } else {
                own << 1 | 1
            };
            (whose + 1) << 32 | at
        })
        .collect()
}

fn all() -> Fleet {
    Fleet::new(DESIGNS.iter().copied())
}

fn each(case: impl Fn(Design, &dyn PrefixIndex)) {
    for &design in DESIGNS {
        case(design, &*(design.make)());
    }
}

fn found(index: &dyn PrefixIndex, chunks: &[u64]) -> Vec<Match> {
    index.settle();
    find(index, chunks, &mut Answer::default())
}

#[test]
fn an_empty_index_and_an_empty_prompt_match_nobody() {
    let mut fleet = all();
    fleet.compare(&prompt(0, 1, 3, 9));
    fleet.compare(&[]);
    fleet.store(0, &prompt(0, 1, 3, 9), 0, 9);
    fleet.compare(&[]);
}

#[test]
fn every_worker_is_found_at_the_depth_that_it_holds() {
    let mut fleet = all();
    let long = prompt(0, 0, 40, 40);
    for worker in 0..40 {
        fleet.store(worker, &long, 0, worker as usize + 1);
    }
    for blocks in [1, 2, 8, 9, 39, 40] {
        fleet.compare(&long[..blocks]);
    }
    fleet.compare(&prompt(0, 5, 17, 60));
    fleet.compare(&prompt(1, 5, 17, 60));
}

#[test]
fn prompts_longer_than_anything_stored_match_the_stored_blocks() {
    let mut fleet = all();
    fleet.store(3, &prompt(0, 0, 5, 5), 0, 5);
    fleet.compare(&prompt(0, 1, 5, 4000));
}

#[test]
fn blocks_follow_their_parent_event_by_event() {
    let mut fleet = all();
    let long = prompt(0, 0, 30, 30);
    for from in 0..30 {
        fleet.store(1, &long, from, from + 1);
        fleet.store(2, &long, from / 3 * 3, from / 3 * 3 + 3);
        fleet.compare(&long);
    }
}

#[test]
fn branches_below_one_prefix_are_kept_apart() {
    let mut fleet = all();
    for worker in 0..30 {
        let own = prompt(0, u64::from(worker), worker as usize, 32);
        fleet.store(worker, &own, 0, 32);
    }
    for worker in 0..30 {
        fleet.compare(&prompt(0, worker, worker as usize, 32));
    }
}

#[test]
fn storing_again_and_removing_again_change_nothing() {
    let mut fleet = all();
    let (a, b) = (prompt(0, 1, 4, 12), prompt(0, 2, 4, 12));
    for _ in 0..2 {
        fleet.store(5, &a, 0, 12);
        fleet.store(5, &a, 6, 9);
        fleet.store(6, &b, 0, 12);
        fleet.compare(&a);
    }
    let hashes = sequence_hashes(&a);
    for _ in 0..2 {
        fleet.remove(5, &a, 7);
        for (_, index) in &fleet.indexes {
            index.remove(5, &[hashes[11], hashes[7]]);
        }
        fleet.compare(&a);
        fleet.compare(&b);
    }
    fleet.store(5, &a, 7, 12);
    fleet.compare(&a);
}

#[test]
fn removing_blocks_that_were_never_stored_does_nothing() {
    let mut fleet = all();
    let long = prompt(0, 0, 9, 9);
    fleet.store(1, &long, 0, 9);
    for (_, index) in &fleet.indexes {
        index.remove(1, &[1, 2, 3]);
        index.remove(2, &sequence_hashes(&long));
        index.remove(9, &[]);
        index.clear(8);
        index.store(7, None, &[]);
    }
    fleet.compare(&long);
}

#[test]
fn a_cleared_worker_is_gone_and_may_come_back() {
    let mut fleet = all();
    let (a, b) = (prompt(0, 1, 6, 20), prompt(0, 2, 6, 20));
    for round in 0..60 {
        for worker in 0..4 {
            fleet.store(worker, if worker % 2 == 0 { &a } else { &b }, 0, 20);
        }
        fleet.clear(round % 4);
        fleet.compare(&a);
        fleet.compare(&b);
    }
}

#[test]
fn workers_beyond_the_bits_of_a_bitmap_are_kept_apart() {
    let mut fleet = all();
    for worker in 0..600 {
        let own = prompt(0, u64::from(worker / 50), 3, 8);
        fleet.store(worker, &own, 0, 4 + worker as usize % 5);
    }
    for family in 0..12 {
        fleet.compare(&prompt(0, family, 3, 8));
    }
    for worker in (0..600).step_by(3) {
        fleet.clear(worker);
    }
    for worker in (1..600).step_by(3) {
        fleet.remove(worker, &prompt(0, u64::from(worker / 50), 3, 8), 2);
    }
    for family in 0..12 {
        fleet.compare(&prompt(0, family, 3, 8));
    }
}

#[test]
fn a_store_below_an_unknown_parent_does_not_change_other_answers() {
    each(|design, index| {
        let long = prompt(0, 0, 6, 6);
        let stranger = prompt(1, 1, 6, 6);
        index.store(1, None, &long);
        index.store(2, Some(sequence_hashes(&stranger)[2]), &stranger[3..]);
        index.store(2, Some(77), &[5, 6]);
        let expected = [Match {
            worker: 1,
            depth: 6,
        }];
        assert_eq!(found(index, &long), expected, "{}", design.name);
        assert_eq!(found(index, &stranger), [], "{}", design.name);
        index.remove(2, &sequence_hashes(&stranger));
        index.clear(2);
        index.store(2, None, &long[..2]);
        assert_eq!(found(index, &long).len(), 2, "{}", design.name);
    });
}

#[test]
fn a_hash_of_zero_is_a_hash_like_any_other() {
    let mut fleet = all();
    fleet.store(4, &[0, 5, 7], 0, 3);
    fleet.compare(&[0, 5, 7]);
    fleet.remove(4, &[0, 5, 7], 1);
    fleet.compare(&[0, 5, 7]);
}

/// Writers and look-ups at the same time: no answer names a worker twice or too deep, and after `settle` every answer is right.
#[test]
fn look_ups_beside_writes_stay_possible_and_end_right() {
    const WRITERS: u32 = 2;
    const ROUNDS: usize = 60;
    each(|design, index| {
        let prompts: Vec<_> = (0..6).map(|own| prompt(0, own, own as usize, 24)).collect();
        let start = Barrier::new(WRITERS as usize + 1);
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (prompts, start) = (&prompts, &start);
                scope.spawn(move || {
                    start.wait();
                    for round in 0..ROUNDS {
                        let worker = writer + WRITERS * (round % 5) as u32;
                        let chunks = &prompts[(round + writer as usize) % prompts.len()];
                        index.store(worker, None, chunks);
                        let mut hashes = sequence_hashes(chunks);
                        hashes.reverse();
                        if round % 7 == 6 {
                            index.clear(worker);
                        } else {
                            // Tails first, down to a few blocks; the first blocks are shared with other prompts.
                            index.remove(worker, &hashes[..24 - prompts.len()]);
                        }
                    }
                    // Every worker ends with the first blocks of the first prompt.
                    for place in 0..5 {
                        let worker = writer + WRITERS * place;
                        index.clear(worker);
                        index.store(worker, None, &prompts[0][..=place as usize]);
                    }
                });
            }
            start.wait();
            let mut answer = Answer::default();
            for round in 0..ROUNDS * 4 {
                let chunks = &prompts[round % prompts.len()];
                let found = find(index, chunks, &mut answer);
                let deepest = chunks.len() as u32;
                assert!(
                    found.iter().all(|found| found.depth <= deepest),
                    "{}",
                    design.name
                );
            }
        });
        let expected: Vec<_> = (0..WRITERS * 5)
            .map(|worker| Match {
                worker,
                depth: worker / WRITERS + 1,
            })
            .collect();
        assert_eq!(found(index, &prompts[0]), expected, "{}", design.name);
        assert_eq!(index.refused(), 0, "{}", design.name);
    });
}
