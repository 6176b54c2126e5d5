//! Runs seeds: `--seeds A..B`, or one of them with its steps, `--seed N --trace`.

use std::process::ExitCode;

use kvatlas_simulation::counts::Counts;
use kvatlas_simulation::{Mutation, replay_command, run};

const USAGE: &str =
    "usage: kvatlas-simulation (--seeds A..B | --seed N) [--trace] [--without RULE]";

struct Flags {
    seeds: std::ops::Range<u64>,
    trace: bool,
    mutation: Option<Mutation>,
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Flags> {
    let mut flags = Flags {
        seeds: 0..1_000,
        trace: false,
        mutation: None,
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seeds" => {
                let range = words.next()?;
                let (from, to) = range.split_once("..")?;
                flags.seeds = from.parse().ok()?..to.parse().ok()?;
            }
            "--seed" => {
                let seed = words.next()?.parse().ok()?;
                flags.seeds = seed..seed + 1;
            }
            "--trace" => flags.trace = true,
            "--without" => {
                flags.mutation = Some(Mutation::named(&words.next()?)?);
            }
            _ => return None,
        }
    }
    Some(flags)
}

fn main() -> ExitCode {
    let Some(flags) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let (mut failed, mut appended, mut attempts) = (0_u64, 0, 0);
    let mut counts = Counts::default();
    let (first, end) = (flags.seeds.start, flags.seeds.end);
    for seed in flags.seeds {
        let mut trace = |at_ms: u64, what: String| {
            if flags.trace {
                println!("{at_ms:>6} ms  {what}");
            }
        };
        let report = run(seed, flags.mutation, &mut trace);
        appended += report.appended;
        counts.merge(&report.counts);
        attempts += report.attempts;
        if let Some(failure) = report.failure {
            failed += 1;
            println!(
                "seed {seed} fails after {} ms: {}",
                failure.at_ms, failure.what
            );
            println!("  {}", replay_command(seed, flags.mutation));
        }
    }
    let seeds = end.saturating_sub(first);
    println!(
        "{seeds} seeds from {first} to {}, {failed} failed; {appended} records, {attempts} recoveries",
        end.saturating_sub(1)
    );
    for (what, times) in counts.iter() {
        println!("{times:>10}  {what}");
    }
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
