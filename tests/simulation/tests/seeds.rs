//! What every test run simulates, and the proof that the simulation would notice.

use kvatlas_simulation::tally::Tally;
use kvatlas_simulation::{Without, replay_command, run};

const SEEDS: u64 = 2_000;

/// Faults, and what comes of them, that no half of the seeds may be without.
const HAPPENINGS: [&str; 26] = [
    "acknowledgement lost",
    "answer lost",
    "engine restarts",
    "engine stops",
    "half a state refused",
    "log does not answer",
    "log loses everything",
    "log loses its newest records",
    "log trimmed past a reader",
    "memory taken by others",
    "outbox overflowed",
    "publisher killed",
    "publisher leaves",
    "publisher resumed",
    "publisher told of its rival",
    "publisher without history",
    "record delayed",
    "record lost",
    "record repeated",
    "replica ended by its system",
    "replica killed",
    "replica not reached by publishers",
    "replica started from a peer's state",
    "replica started from its own state",
    "worker let in again",
    "worker put out for lack of memory",
];

fn every_seed_heals(seeds: std::ops::Range<u64>) {
    let mut tally = Tally::default();
    for seed in seeds.clone() {
        let report = run(seed, None, &mut |_, _| ());
        tally.merge(&report.tally);
        if let Some(failure) = report.failure {
            panic!("{}\n  {}", failure.what, replay_command(seed, None));
        }
    }
    println!("seeds {seeds:?}");
    for (what, times) in tally.iter() {
        println!("{times:>10}  {what}");
    }
    for what in HAPPENINGS {
        assert!(tally.of(what) > 0, "never in {seeds:?}: {what}");
    }
}

/// The first of the seeds that fails without the rule.
fn fails_without(rule: Without) {
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
fn every_seed_heals_and_credits_nobody_with_too_much() {
    every_seed_heals(0..SEEDS / 2);
}

#[test]
fn every_seed_of_the_other_half_does_so_too() {
    every_seed_heals(SEEDS / 2..SEEDS);
}

#[test]
fn a_seed_means_the_same_run_for_ever() {
    for seed in [3, 14, 159] {
        let report = run(seed, None, &mut |_, _| ());
        assert_eq!(report, run(seed, None, &mut |_, _| ()), "seed {seed}");
        assert!(report.appended > 0, "seed {seed} says nothing");
    }
}

#[test]
fn without_dedup_some_seed_fails() {
    fails_without(Without::Dedup);
}

#[test]
fn without_fencing_some_seed_fails() {
    fails_without(Without::Fencing);
}

#[test]
fn without_the_check_for_gaps_some_seed_fails() {
    fails_without(Without::GapCheck);
}

#[test]
fn without_the_convergence_of_states_some_seed_fails() {
    fails_without(Without::Convergence);
}

#[test]
fn where_a_state_claims_what_was_passed_over_some_seed_fails() {
    fails_without(Without::PassingOver);
}

#[test]
fn where_half_a_state_is_taken_for_one_some_seed_fails() {
    fails_without(Without::Refusal);
}

#[test]
fn where_nobody_gets_room_again_some_seed_fails() {
    fails_without(Without::Room);
}

#[test]
fn where_a_mirror_misses_what_is_offloaded_some_seed_fails() {
    fails_without(Without::Mirroring);
}
