//! Plays one operation stream on every design and prints the cost of each.
//!
//! `cargo run --release -p kvatlas-baselines --example compare [-- STREAM [DESIGN…]]`. Without a file it makes a small stream.
//! With `large` instead of a file it makes one of 1,000 workers that exceeds any cache, in the proportions of the published
//! streams (48 blocks queried and 30 stored per prompt). One thread plays the records in order. After each write it waits for a
//! design that queues writes, so that design's figures contain the round trip to its thread. The flat index is used through the
//! adapter of the common trait, which copies its answers. For throughput under load see the index benchmark.

use std::fs::File;
use std::hint::black_box;
use std::io::BufReader;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use kvatlas_baselines::Answer;
use kvatlas_baselines::catalogue::{DESIGNS, Design};
use kvatlas_baselines::counting_allocator::CountingAllocator;
use kvatlas_baselines::stream::synthetic::{Plan, synthesize};
use kvatlas_baselines::stream::{Op, OpStream, StreamError};

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator::new();

#[derive(Default)]
struct Paid {
    store: Duration,
    remove: Duration,
    finds: Vec<Duration>,
    matches: u64,
    depth: u64,
    bytes: usize,
    bytes_cleared: usize,
}

fn play(design: &Design, stream: &OpStream) -> Paid {
    let mut paid = Paid::default();
    let mut answer = Answer::default();
    paid.finds.reserve(stream.totals().records[0] as usize);
    let before = COUNTING.bytes();
    let index = (design.make)();
    for record in stream.records() {
        let start = Instant::now();
        match record.op {
            Op::Query(chunks) => {
                index.find(black_box(chunks), &mut answer);
                paid.finds.push(start.elapsed());
                paid.matches += answer.matches.len() as u64;
                paid.depth += answer
                    .matches
                    .iter()
                    .map(|m| u64::from(m.depth))
                    .sum::<u64>();
            }
            Op::Store { parent, chunks } => {
                index.store(record.worker, parent, chunks);
                if design.queued {
                    index.settle();
                }
                paid.store += start.elapsed();
            }
            Op::Remove(hashes) => {
                index.remove(record.worker, hashes);
                if design.queued {
                    index.settle();
                }
                paid.remove += start.elapsed();
            }
        }
    }
    index.settle();
    let in_use = || {
        let counted = COUNTING.bytes().saturating_sub(before);
        index.accounted_bytes().unwrap_or(counted)
    };
    paid.bytes = in_use();
    for worker in 0..stream.shape().workers {
        index.clear(worker);
    }
    index.settle();
    paid.bytes_cleared = in_use();
    paid.finds.sort_unstable();
    paid
}

fn percentile_us(sorted: &[Duration], share: f64) -> f64 {
    let at = (sorted.len().saturating_sub(1) as f64 * share) as usize;
    sorted.get(at).copied().unwrap_or_default().as_secs_f64() * 1e6
}

fn print(design: &Design, stream: &OpStream, paid: &Paid) {
    let [_, stored, removed] = stream.totals().blocks;
    let per = |time: Duration, blocks: u64| time.as_secs_f64() * 1e9 / blocks.max(1) as f64;
    println!(
        "{:<31}{:>9.1}{:>9.1}{:>9.2}{:>9.2}{:>9.1}{:>9.0}{:>11.1}{:>11.1}",
        design.name,
        per(paid.store, stored),
        per(paid.remove, removed),
        percentile_us(&paid.finds, 0.5),
        percentile_us(&paid.finds, 0.99),
        paid.bytes as f64 / stored.saturating_sub(removed).max(1) as f64,
        100.0 * paid.bytes_cleared as f64 / paid.bytes.max(1) as f64,
        paid.matches as f64 / paid.finds.len().max(1) as f64,
        paid.depth as f64 / paid.finds.len().max(1) as f64,
    );
}

fn load(path: Option<&String>) -> Result<OpStream, StreamError> {
    let path = match path.map(String::as_str) {
        None => return synthesize(&Plan::SMALL),
        Some("large") => return synthesize(&Plan::LARGE),
        Some(path) => path,
    };
    let failed = |source| StreamError::Io { offset: 0, source };
    OpStream::read(BufReader::new(File::open(path).map_err(failed)?))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (path, wanted) = (arguments.first(), arguments.get(1..).unwrap_or_default());
    let stream = match load(path) {
        Ok(stream) => stream,
        Err(error) => {
            eprintln!(
                "{}: {error}",
                path.map_or("the made stream", String::as_str)
            );
            return ExitCode::FAILURE;
        }
    };
    let [queried, stored, removed] = stream.totals().blocks;
    println!(
        "{} workers; blocks: {queried} asked for, {stored} stored, {removed} removed",
        stream.shape().workers
    );
    println!(
        "{:<31}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>11}{:>11}",
        "", "store", "remove", "find p50", "find p99", "bytes a", "% left", "workers", "blocks"
    );
    println!(
        "{:<31}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>11}{:>11}",
        "design",
        "ns/block",
        "ns/block",
        "us",
        "us",
        "member",
        "cleared",
        "per answer",
        "per answer"
    );
    let chosen = |design: &&Design| wanted.is_empty() || wanted.iter().any(|w| w == design.name);
    for design in DESIGNS.iter().filter(chosen) {
        // Without a map from sequence hash to chunk hash, its removals visit the whole index.
        if wanted.is_empty() && design.name == "inverted index, unverified" {
            println!(
                "{:<31}    left out: removals visit the whole index",
                design.name
            );
            continue;
        }
        print(design, &stream, &play(design, &stream));
    }
    ExitCode::SUCCESS
}
