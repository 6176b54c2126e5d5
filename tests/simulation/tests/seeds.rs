//! What every test run simulates, and the proof that the simulation would notice.

use kvatlas_simulation::{Without, run};

const SEEDS: u64 = 2_000;
const CANARY_SEEDS: u64 = 200;

fn first_failure(seeds: std::ops::Range<u64>, without: Option<Without>) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| {
        let failure = run(seed, without, &mut |_, _| ()).failure?;
        Some((seed, failure.what))
    })
}

fn every_seed_heals(seeds: std::ops::Range<u64>) {
    if let Some((seed, what)) = first_failure(seeds, None) {
        panic!("{what}\n  cargo run --release -p kvatlas-simulation -- --seed {seed} --trace");
    }
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
    assert!(first_failure(0..CANARY_SEEDS, Some(Without::Dedup)).is_some());
}

#[test]
fn without_fencing_some_seed_fails() {
    assert!(first_failure(0..CANARY_SEEDS, Some(Without::Fencing)).is_some());
}
