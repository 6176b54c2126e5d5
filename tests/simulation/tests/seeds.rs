//! The seeds of every test run, and the mutations that the simulation must notice.

use std::ops::Range;

use kvatlas_simulation::counts::Counts;
use kvatlas_simulation::{Mutation, replay_command, run};

const SEEDS: u64 = 2_000;

/// Faults and consequences that must occur.
const KINDS: [&str; 26] = [
    "acknowledgement lost",
    "answer lost",
    "engine restarts",
    "engine stops",
    "half a state refused",
    "log does not answer",
    "log loses everything",
    "log loses its newest records",
    "log trimmed past a reader",
    "memory pressure",
    "outbox overflowed",
    "publisher killed",
    "publisher leaves",
    "publisher resumed",
    "publisher fenced by its rival",
    "publisher without history",
    "record delayed",
    "record lost",
    "record repeated",
    "replica killed by its system",
    "replica killed",
    "replica not reached by publishers",
    "replica started from a peer's state",
    "replica started from its own state",
    "evicted worker back",
    "worker evicted for lack of memory",
];

/// Runs the seeds, none of which may fail, and returns the counts.
fn every_seed_heals(seeds: Range<u64>) -> Counts {
    let mut counts = Counts::default();
    for seed in seeds.clone() {
        let report = run(seed, None, &mut |_, _| ());
        counts.merge(&report.counts);
        if let Some(failure) = report.failure {
            panic!("{}\n  {}", failure.what, replay_command(seed, None));
        }
    }
    println!("seeds {seeds:?}");
    for (what, times) in counts.iter() {
        println!("{times:>10}  {what}");
    }
    counts
}

/// A thousand seeds, chosen by KVATLAS_TEST_SEED; without it, the second half.
fn chosen_seeds() -> Range<u64> {
    let number: u64 = match std::env::var("KVATLAS_TEST_SEED") {
        Ok(text) if !text.is_empty() => text.parse().expect("KVATLAS_TEST_SEED is a number"),
        _ => 0,
    };
    let half = SEEDS / 2;
    (number + 1) * half..(number + 2) * half
}

/// Checks that some seed fails without the rule.
fn fails_without(rule: Mutation) {
    let failure = (0..SEEDS).find_map(|seed| {
        let failure = run(seed, Some(rule), &mut |_, _| ()).failure?;
        Some((seed, failure.what))
    });
    let Some((seed, what)) = failure else {
        panic!("{SEEDS} seeds heal without {rule:?}");
    };
    println!("without {rule:?}: {} seeds, {what}", seed + 1);
    println!("  {}", replay_command(seed, Some(rule)));
}

#[test]
fn every_seed_heals_and_credits_no_worker_with_too_much() {
    let counts = every_seed_heals(0..SEEDS / 2);
    for what in KINDS {
        assert!(counts.get(what) > 0, "never: {what}");
    }
}

#[test]
fn every_seed_that_the_run_chooses_does_so_too() {
    every_seed_heals(chosen_seeds());
}

#[test]
fn a_seed_means_the_same_run_for_ever() {
    for seed in [3, 14, 159] {
        let report = run(seed, None, &mut |_, _| ());
        assert_eq!(report, run(seed, None, &mut |_, _| ()), "seed {seed}");
        assert!(report.appended > 0, "seed {seed} appends nothing");
    }
}

#[test]
fn without_dedup_some_seed_fails() {
    fails_without(Mutation::Dedup);
}

#[test]
fn without_fencing_some_seed_fails() {
    fails_without(Mutation::Fencing);
}

#[test]
fn without_the_check_for_gaps_some_seed_fails() {
    fails_without(Mutation::GapCheck);
}

#[test]
fn without_the_convergence_of_states_some_seed_fails() {
    fails_without(Mutation::Convergence);
}

#[test]
fn where_a_state_claims_skipped_events_some_seed_fails() {
    fails_without(Mutation::SkippedEvents);
}

#[test]
fn where_half_of_a_state_is_accepted_some_seed_fails() {
    fails_without(Mutation::IncompleteStates);
}

#[test]
fn where_memory_pressure_never_ends_some_seed_fails() {
    fails_without(Mutation::Readmission);
}

#[test]
fn where_a_mirror_misses_offloaded_blocks_some_seed_fails() {
    fails_without(Mutation::Offloads);
}
