//! Native load generators for the benchmarks of kvatlas.
//!
//! 1. [`flags`] – the command line, and the help text that is its documentation
//! 2. [`fleet`] – what the workers hold, and the questions that can be asked of it
//! 3. [`fill`] – put it into an indexer through `Ingest`
//! 4. [`find`] – ask, and check every answer
//! 5. [`latency`] – what the answers took
//!
//! [`hashing`] and [`index`] are apart from these: they load nothing but this process.

mod fill;
mod find;
mod flags;
mod fleet;
mod hashing;
mod index;
mod latency;

use std::process::ExitCode;
use std::time::Duration;

use find::Measured;
use flags::{Flags, HELP};
use fleet::Fleet;
use kvatlas_baselines::counting::Counting;

/// Counts bytes in use for the index benchmark; two adds to a word per allocation.
#[global_allocator]
static COUNTING: Counting = Counting::new();

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.is_empty() || words.iter().any(|word| word == "--help") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    if words[0] == "hashing" {
        return hashing_bench(&words[1..]);
    }
    if let Some(exit) = index::command(&words[0], &words[1..], &COUNTING) {
        return exit;
    }
    let flags = match Flags::read(&words[1..]) {
        Ok(flags) => flags,
        Err(problem) => {
            eprintln!("kvatlas-loadgen: {problem}");
            return ExitCode::from(2);
        }
    };
    let result = match words[0].as_str() {
        "find-matches" => block_on(find_matches(&flags)),
        "fill" => block_on(fill_and_hold(&flags)),
        other => {
            eprintln!("kvatlas-loadgen: {other:?} is no subcommand; --help lists them");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("kvatlas-loadgen: {error}");
            ExitCode::FAILURE
        }
    }
}

fn hashing_bench(words: &[String]) -> ExitCode {
    let rounds = match words {
        [] => Some(200),
        [flag, rounds] if flag == "--rounds" => rounds.parse().ok(),
        _ => None,
    };
    let Some(rounds) = rounds else {
        eprintln!("kvatlas-loadgen: hashing takes --rounds N and nothing else");
        return ExitCode::from(2);
    };
    println!("{}", hashing::measure(rounds));
    ExitCode::SUCCESS
}

fn block_on(work: impl Future<Output = Result<bool, Failure>>) -> Result<bool, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}

async fn fill_and_hold(flags: &Flags) -> Result<bool, Failure> {
    let filled = fill::fill(flags, &Fleet::new(flags)).await?;
    println!("{{\"filled\": true}}");
    let bound = Duration::from_secs(flags.seconds);
    match tokio::time::timeout(bound, filled.hold()).await {
        Ok(failed) => failed.map(|()| true),
        Err(_) => Ok(true),
    }
}

async fn find_matches(flags: &Flags) -> Result<bool, Failure> {
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
    print(flags, &measured);
    Ok(measured.errors == 0)
}

fn print(flags: &Flags, measured: &Measured) {
    let Measured {
        latencies,
        errors,
        first_error,
        took,
    } = measured;
    let seconds = took.as_secs_f64();
    println!(
        "{{\"calls\": {}, \"seconds\": {seconds:.3}, \"calls_per_s\": {:.1}, \"p50_us\": {:.1}, \"p90_us\": {:.1}, \
         \"p99_us\": {:.1}, \"max_us\": {:.1}, \"errors\": {errors}, \"first_error\": {}, \"workers\": {}, \
         \"blocks\": {}, \"depth\": {}, \"connections\": {}, \"concurrency\": {}, \"hashes\": \"{}\", \"limit\": {}}}",
        latencies.total(),
        latencies.total() as f64 / seconds,
        latencies.quantile_us(0.5),
        latencies.quantile_us(0.9),
        latencies.quantile_us(0.99),
        latencies.max_us(),
        first_error.as_deref().map_or("null".to_owned(), json_text),
        flags.workers,
        flags.blocks,
        flags.depth,
        flags.connections,
        flags.concurrency,
        if flags.chunks { "chunk" } else { "sequence" },
        flags.limit,
    );
}

fn json_text(text: &str) -> String {
    let mut out = String::from("\"");
    for symbol in text.chars().take(500) {
        match symbol {
            '"' | '\\' => out.extend(['\\', symbol]),
            symbol if symbol.is_control() => out.push(' '),
            symbol => out.push(symbol),
        }
    }
    out.push('"');
    out
}
