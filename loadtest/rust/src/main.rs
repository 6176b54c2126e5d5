//! Native load generators for the benchmarks of kvatlas.
//!
//! 1. [`flags`], [`args`] – the flags and the help text that documents them; reading of command lines
//! 2. [`fleet`] – a synthetic fleet: the blocks of its workers, and queries with known answers
//! 3. [`fill`] – puts the fleet into an indexer through `Ingest`
//! 4. [`find`] – calls `FindMatches` and checks every answer
//! 5. [`latency`] – a histogram of latencies, and medians
//!
//! [`hashing`] and [`index`] need no indexer: they measure within this process. [`http`] is load for the
//! frontend and its peers, and the engines behind them.

mod allocator;
mod args;
mod fill;
mod find;
mod flags;
mod fleet;
mod hashing;
mod http;
mod index;
mod latency;

use std::process::ExitCode;
use std::time::Duration;

use args::{Args, CommandError, Failure};
use find::Measured;
use flags::{Flags, HELP};
use fleet::Fleet;
use http::command as http_command;
use index::{micro_command, play_command, stream_command};
use serde_json::json;

/// Most characters of an error in a line of JSON.
const ERROR_CHARACTERS_MAX: usize = 500;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let name = words.first().map_or("--help", String::as_str);
    let done = if words.is_empty() || words.iter().any(|word| word == "--help") {
        println!("{}", help(name).trim_end());
        Ok(())
    } else {
        run(name, &words[1..])
    };
    let (problem, exit) = match done {
        Ok(()) => return ExitCode::SUCCESS,
        Err(CommandError::Usage(problem)) => (problem, ExitCode::from(2)),
        Err(CommandError::Failed(problem)) => (problem, ExitCode::FAILURE),
    };
    eprintln!("kvatlas-loadgen {name}: {problem}");
    exit
}

fn help(name: &str) -> &'static str {
    match name {
        "index-stream" => stream_command::HELP,
        "index-play" => play_command::HELP,
        "index-micro" => micro_command::HELP,
        "http-engines" => http_command::ENGINES_HELP,
        "http-load" => http_command::LOAD_HELP,
        _ => HELP,
    }
}

/// Runs a subcommand, which prints its figures as JSON.
fn run(name: &str, words: &[String]) -> Result<(), CommandError> {
    match name {
        "find-matches" => return block_on(find_matches(&Flags::read(words)?)),
        "fill" => return block_on(fill_and_hold(&Flags::read(words)?)),
        "hashing" => {
            let mut args = Args::read(words, &[])?;
            let rounds = args.positive("rounds", 200)?;
            args.done()?;
            println!("{}", hashing::measure(rounds));
        }
        "index-stream" => println!("{}", stream_command::run(words)?),
        "index-play" => println!("{}", play_command::run(words)?),
        "index-micro" => println!("{}", micro_command::run(words)?),
        "index-designs" => println!("{}", play_command::designs(words)?),
        "http-engines" => http_command::engines(words)?,
        "http-load" => println!("{}", http_command::load(words)?),
        _ => {
            return Err(CommandError::Usage(
                "no such subcommand; --help lists them".into(),
            ));
        }
    }
    Ok(())
}

fn block_on(work: impl Future<Output = Result<(), Failure>>) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(Failure::from)?;
    Ok(runtime.block_on(work)?)
}

async fn fill_and_hold(flags: &Flags) -> Result<(), Failure> {
    let filled = fill::fill(flags, &Fleet::new(flags)).await?;
    println!("{{\"filled\": true}}");
    let bound = Duration::from_secs(flags.seconds);
    tokio::time::timeout(bound, filled.hold())
        .await
        .unwrap_or(Ok(()))
}

async fn find_matches(flags: &Flags) -> Result<(), Failure> {
    let fleet = Fleet::new(flags);
    let held = if flags.fill {
        Some(tokio::spawn(fill::fill(flags, &fleet).await?.hold()))
    } else {
        None
    };
    let measured = find::run(flags, &fleet).await?;
    if let Some(held) = held {
        held.abort();
    }
    println!("{}", report(flags, &measured));
    match measured.errors {
        0 => Ok(()),
        errors => Err(format!("{errors} calls failed").into()),
    }
}

fn report(flags: &Flags, measured: &Measured) -> serde_json::Value {
    let (latencies, seconds) = (&measured.latencies, measured.took.as_secs_f64());
    let error = measured.first_error.as_deref();
    json!({
        "calls": latencies.total(),
        "seconds": seconds,
        "calls_per_s": latencies.total() as f64 / seconds,
        "p50_us": latencies.quantile_us(0.5),
        "p90_us": latencies.quantile_us(0.9),
        "p99_us": latencies.quantile_us(0.99),
        "max_us": latencies.max_us(),
        "errors": measured.errors,
        "first_error": error.map(|text| text.chars().take(ERROR_CHARACTERS_MAX).collect::<String>()),
        "workers": flags.workers,
        "blocks": flags.blocks,
        "depth": flags.depth,
        "connections": flags.connections,
        "concurrency": flags.concurrency,
        "hashes": if flags.chunks { "chunk" } else { "sequence" },
        "limit": flags.limit,
    })
}
