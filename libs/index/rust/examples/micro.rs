//! Prints what a query, a store and a remove cost, and what a membership weighs.
//!
//! `cargo run --release -p kvatlas-index --example micro`. Single-threaded, on tables too large for
//! the near caches; queries are drawn so that consecutive ones touch different memory.

use std::hint::black_box;
use std::time::Instant;

use kvatlas_hashing::sequence_step;
use kvatlas_index::{FindOptions, Index, IndexConfig, Matches, Query, SlotId, Tier, WorkerKey};

fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// A prompt: its chunk hashes, and its sequence hashes.
struct Prompt {
    chunks: Vec<u64>,
    hashes: Vec<u64>,
}

impl Prompt {
    /// `shared` blocks of the family's, the rest the prompt's own.
    fn new(family: u64, own: u64, shared: usize, blocks: usize) -> Self {
        let chunks: Vec<u64> = (0..blocks as u64)
            .map(|i| {
                mix(if (i as usize) < shared {
                    family << 32 | i
                } else {
                    own << 32 | i | 1 << 31
                })
            })
            .collect();
        let mut hashes: Vec<u64> = Vec::with_capacity(blocks);
        for &chunk in &chunks {
            hashes.push(
                hashes
                    .last()
                    .map_or(chunk, |&parent| sequence_step(parent, chunk)),
            );
        }
        Self { chunks, hashes }
    }
}

fn workers(index: &Index, count: u64) -> Vec<SlotId> {
    (0..count)
        .map(|id| {
            let key = WorkerKey {
                worker_id: mix(id),
                dp_rank: 0,
            };
            index
                .allocate(key)
                .expect("an index has room for thousands of workers")
        })
        .collect()
}

fn percentile(sorted: &[u64], share: f64) -> u64 {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

fn time_queries(index: &Index, prompts: &[Prompt], name: &str, chunks: bool, limit: usize) {
    let mut out = Matches::default();
    let options = FindOptions {
        limit,
        exact: false,
    };
    let mut times = Vec::new();
    let mut found = 0;
    let all = Instant::now();
    for round in 0..(40_000 / prompts.len()).max(2) {
        for prompt in prompts {
            let query = if chunks {
                Query::ChunkHashes(&prompt.chunks)
            } else {
                Query::SequenceHashes(&prompt.hashes)
            };
            let start = Instant::now();
            index.find(black_box(query), &options, &mut out);
            if round > 0 {
                times.push(start.elapsed().as_nanos() as u64);
                found += out.workers.len();
            }
        }
    }
    let elapsed = all.elapsed();
    times.sort_unstable();
    println!(
        "  query {name:<34} p50 {:>6} ns  p99 {:>6} ns  {:>6.2} M/s  matches {:.1}",
        percentile(&times, 0.5),
        percentile(&times, 0.99),
        (times.len() + prompts.len()) as f64 / elapsed.as_secs_f64() / 1e6,
        found as f64 / times.len() as f64,
    );
}

fn report_writes(what: &str, start: Instant, blocks: usize) {
    println!(
        "  {what:<40} {:>6.1} ns a block",
        start.elapsed().as_nanos() as f64 / blocks as f64
    );
}

fn report_memory(index: &Index) {
    let memory = index.memory_bytes();
    let memberships = index.memberships();
    println!(
        "  {memberships} memberships, {:.1} bytes each ({memory:?})",
        memory.total() as f64 / memberships.max(1) as f64
    );
}

/// Workers in families of eight that share their prompts' first half; 10,000 blocks each.
fn fleet(count: u64) {
    println!("{count} workers x 10,000 blocks, 256-block queries, eight holders each");
    let index = Index::new(IndexConfig::default());
    let slots = workers(&index, count);
    let per_worker = 10_000 / 256;
    let mut prompts = Vec::new();
    let mut blocks = 0;
    let start = Instant::now();
    for (place, &slot) in slots.iter().enumerate() {
        for number in 0..per_worker {
            let (family, own) = (place as u64 / 8 * 100 + number, place as u64 * 100 + number);
            let prompt = Prompt::new(family, own, 128, 256);
            index.store(slot, Tier::Device, &prompt.hashes);
            blocks += prompt.hashes.len();
            prompts.push(prompt);
        }
        index.publish(slot);
    }
    report_writes("store (making the prompts included)", start, blocks);
    prompts.sort_by_key(|prompt| mix(prompt.hashes[0] ^ prompt.hashes[255]));
    time_queries(&index, &prompts, "chunk hashes, full match", true, 0);
    time_queries(&index, &prompts, "sequence hashes, full match", false, 0);
    let strangers: Vec<_> = (0..4096)
        .map(|i| Prompt::new(1 << 30 | i, 1 << 30 | i, 0, 256))
        .collect();
    time_queries(&index, &strangers, "chunk hashes, no match", true, 0);
    report_memory(&index);
}

/// 1,000 workers x 16,384 blocks: one system prompt that all share, all else with one holder.
fn unique() {
    const EVENT: usize = 64;
    println!("1,000 workers x 16,384 mostly unique blocks");
    let index = Index::new(IndexConfig::default());
    let slots = workers(&index, 1000);
    let prompts = |round: u64| {
        (0..1000u64).flat_map(move |worker| {
            (0..252u64).map(move |n| {
                (
                    worker,
                    Prompt::new(7, (round * 1000 + worker) * 1000 + n, 16, EVENT + 16),
                )
            })
        })
    };
    let mut all: Vec<(u64, Prompt)> = prompts(0).collect();
    // The fleet's events come mixed.
    all.sort_by_key(|(worker, prompt)| mix(worker ^ prompt.hashes[EVENT]));
    slots.iter().for_each(|&slot| index.publish(slot));
    let start = Instant::now();
    let mut blocks = 0;
    for (worker, prompt) in &all {
        blocks += index.store(slots[*worker as usize], Tier::Device, &prompt.hashes);
    }
    report_writes("store, grown from empty", start, all.len() * (EVENT + 16));
    println!("  of {} blocks {blocks} were new", all.len() * (EVENT + 16));
    report_memory(&index);
    let sample: Vec<Prompt> = all
        .iter()
        .step_by(25)
        .map(|(_, p)| Prompt {
            chunks: p.chunks.clone(),
            hashes: p.hashes.clone(),
        })
        .collect();
    time_queries(
        &index,
        &sample,
        "chunk hashes, 1,000 share the head",
        true,
        0,
    );
    time_queries(&index, &sample, "the same, limit 32", true, 32);
    time_queries(&index, &sample, "sequence hashes, the same", false, 0);
    let again: Vec<(u64, Prompt)> = prompts(1).step_by(4).collect();
    let start = Instant::now();
    let mut removed = 0;
    for (worker, prompt) in all.iter().take(all.len() / 2) {
        removed += index.remove(slots[*worker as usize], Tier::Device, &prompt.hashes[16..]);
    }
    report_writes("remove half", start, removed);
    let start = Instant::now();
    let mut stored = 0;
    for (worker, prompt) in &again {
        stored += index.store(slots[*worker as usize], Tier::Device, &prompt.hashes[16..]);
    }
    report_writes("store others (churn)", start, stored);
    report_memory(&index);
    let mut times: Vec<u64> = slots
        .iter()
        .map(|&slot| {
            let start = Instant::now();
            index.retire(slot);
            start.elapsed().as_nanos() as u64
        })
        .collect();
    let first = times[0];
    times.sort_unstable();
    println!(
        "  retire a worker: the first {first} ns, p50 {} ns, p99 {} ns",
        percentile(&times, 0.5),
        percentile(&times, 0.99)
    );
    let start = Instant::now();
    while index.sweep(1 << 16).more {}
    println!("  sweep all 1,000: {} ms", start.elapsed().as_millis());
    let memory = index.memory_bytes();
    println!(
        "  afterwards {} bytes in tables and bitmaps",
        memory.tables + memory.bitmaps
    );
}

fn main() {
    fleet(64);
    fleet(256);
    unique();
}
