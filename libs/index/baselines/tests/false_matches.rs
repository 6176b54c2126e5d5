//! The false match of each design that is inexact as published. Verified forms and the flat index give none on the same history.

use kvatlas_baselines::catalogue::{DESIGNS, named};
use kvatlas_baselines::{Answer, Match, PrefixIndex};

/// Two prompts with the same tokens after different first blocks.
const OURS: [u64; 4] = [1, 20, 30, 40];
const THEIRS: [u64; 4] = [2, 20, 30, 40];

fn found(index: &dyn PrefixIndex, chunks: &[u64]) -> Vec<Match> {
    let mut answer = Answer::default();
    index.settle();
    index.find(chunks, &mut answer);
    answer.matches.sort_unstable();
    answer.matches
}

/// Worker 0 holds the first block of the prompt, worker 1 all of the other prompt.
fn one_holder_each(index: &dyn PrefixIndex) -> Vec<Match> {
    index.store(0, None, &OURS[..1]);
    index.store(1, None, &THEIRS);
    found(index, &OURS)
}

/// Worker 0 holds the first block of the prompt, and all of the other prompt.
fn one_holder_of_both(index: &dyn PrefixIndex) -> Vec<Match> {
    index.store(0, None, &OURS[..1]);
    index.store(0, None, &THEIRS);
    found(index, &OURS)
}

fn design(name: &str) -> Box<dyn PrefixIndex> {
    (named(name).expect("the catalogue has it").make)()
}

const TRUE_ANSWER: [Match; 1] = [Match {
    worker: 0,
    depth: 1,
}];
const FALSE_ANSWER: [Match; 1] = [Match {
    worker: 0,
    depth: 4,
}];

#[test]
fn an_unverified_single_entry_reports_blocks_that_another_worker_holds() {
    let index = design("positional, jump 8, unverified");
    assert_eq!(one_holder_each(&*index), FALSE_ANSWER);
}

#[test]
fn unverified_dictionaries_take_blocks_of_one_prompt_for_those_of_another() {
    let index = design("nested dictionaries, unverified");
    assert_eq!(one_holder_of_both(&*index), FALSE_ANSWER);
}

#[test]
fn an_unverified_inverted_index_takes_the_union_over_sequences() {
    let index = design("inverted index, unverified");
    assert_eq!(one_holder_of_both(&*index), FALSE_ANSWER);
}

#[test]
fn exact_designs_and_the_flat_index_report_only_held_blocks() {
    for design in DESIGNS.iter().filter(|design| design.exact) {
        for case in [one_holder_each, one_holder_of_both] {
            assert_eq!(case(&*(design.make)()), TRUE_ANSWER, "{}", design.name);
        }
    }
}

#[test]
fn every_inexact_design_has_its_test() {
    for design in DESIGNS.iter().filter(|design| !design.exact) {
        let wrong = [one_holder_each, one_holder_of_both]
            .iter()
            .any(|case| case(&*(design.make)()) == FALSE_ANSWER);
        assert!(wrong, "{} gave no false match", design.name);
    }
}
