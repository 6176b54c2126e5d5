//! Prints the cost of a query, a store and a removal, and the bytes of a membership.
//!
//! `cargo run --release -p kvatlas-index --example micro [fleet | hot | grow | unique | events]`. Single-threaded, on tables
//! that exceed the near caches; consecutive queries touch different memory.
//!
//! `unsafe` here: the system call for this thread's processor time. Sound because it writes only to the struct that it is
//! given. The wall clock printed beside it is the check; nothing that is shipped uses it.

use std::hint::black_box;
use std::time::Instant;

use kvatlas_hashing::sequence_step;
use kvatlas_index::{
    Change, FindOptions, Hashes, Index, IndexConfig, Matches, Query, SlotId, Tier, WorkerKey,
};

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
    /// A prompt that shares its first `shared` blocks with its family.
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
        ..FindOptions::default()
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

/// Wall clock and this thread's processor time; on a busy machine only the latter is comparable.
struct Clock(Instant, u64);

impl Clock {
    fn start() -> Self {
        Self(Instant::now(), thread_cpu_ns())
    }

    fn report(&self, what: &str, blocks: usize) {
        let per_block = |ns: u64| ns as f64 / blocks.max(1) as f64;
        println!(
            "  {what:<40} {:>6.1} ns a block ({:.1} by the wall clock)",
            per_block(thread_cpu_ns() - self.1),
            per_block(self.0.elapsed().as_nanos() as u64),
        );
    }
}

fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the time to a struct of that type.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn report_memory(index: &Index) {
    let memory = index.memory_bytes();
    let memberships = index.memberships();
    println!(
        "  {memberships} memberships, {:.1} bytes each ({memory:?})",
        memory.total() as f64 / memberships.max(1) as f64
    );
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find(|line| line.starts_with("VmRSS"));
    println!("  of the process: {}", resident.unwrap_or("unknown"));
}

/// Workers in families of eight that share their prompts' first half; 10,000 blocks each.
fn fleet(count: u64) {
    println!("{count} workers x 10,000 blocks, 256-block queries, eight holders each");
    let index = Index::new(IndexConfig::default());
    let slots = workers(&index, count);
    let per_worker = 10_000 / 256;
    let mut prompts = Vec::new();
    let mut blocks = 0;
    let start = Clock::start();
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
    start.report("store (making the prompts included)", blocks);
    prompts.sort_by_key(|prompt| mix(prompt.hashes[0] ^ prompt.hashes[255]));
    time_queries(&index, &prompts, "chunk hashes, full match", true, 0);
    time_queries(&index, &prompts, "sequence hashes, full match", false, 0);
    let strangers: Vec<_> = (0..4096)
        .map(|i| Prompt::new(1 << 30 | i, 1 << 30 | i, 0, 256))
        .collect();
    time_queries(&index, &strangers, "chunk hashes, no match", true, 0);
    report_memory(&index);
}

/// Blocks of one store event, after a prefix that all prompts share.
const EVENT: usize = 64;
const PREFIX: usize = 16;

/// Store events of 1,000 workers, shuffled, one after another in memory as in a stream.
struct Stream {
    /// The worker, and the number that makes the prompt unique.
    events: Vec<(usize, u64)>,
    hashes: Vec<u64>,
}

impl Stream {
    fn new(round: u64, each: u64) -> Self {
        let mut events: Vec<(usize, u64)> = (0..1000u64)
            .flat_map(|worker| (0..each).map(move |n| (worker, (round * 1000 + worker) * 1000 + n)))
            .map(|(worker, own)| (worker as usize, own))
            .collect();
        events.sort_by_key(|&(_, own)| mix(own));
        let prompts = events.iter().map(|&(_, own)| Self::prompt(own));
        Self {
            hashes: prompts.flat_map(|prompt| prompt.hashes).collect(),
            events,
        }
    }

    fn prompt(own: u64) -> Prompt {
        Prompt::new(7, own, PREFIX, EVENT + PREFIX)
    }

    fn each(&self) -> impl Iterator<Item = (usize, &[u64])> {
        let workers = self.events.iter().map(|&(worker, _)| worker);
        workers.zip(self.hashes.chunks_exact(EVENT + PREFIX))
    }
}

fn store_all(what: &str, index: &Index, slots: &[SlotId], stream: &Stream) {
    let mut times = Vec::with_capacity(stream.events.len());
    let clock = Clock::start();
    let mut stored = 0;
    for (worker, hashes) in stream.each() {
        let start = Instant::now();
        stored += index.store(slots[worker], Tier::Device, hashes);
        times.push(start.elapsed().as_nanos() as u64);
    }
    clock.report(what, stream.hashes.len());
    times.sort_unstable();
    println!(
        "    {stored} of {} new; an event p50 {} us, p99 {} us, slowest {} us",
        stream.hashes.len(),
        percentile(&times, 0.5) / 1000,
        percentile(&times, 0.99) / 1000,
        percentile(&times, 1.0) / 1000,
    );
}

fn fresh(config: IndexConfig) -> (Index, Vec<SlotId>) {
    let index = Index::new(config);
    let slots = workers(&index, 1000);
    slots.iter().for_each(|&slot| index.publish(slot));
    (index, slots)
}

/// 1,000 workers x 16,384 blocks: one system prompt that all share, all else with one holder.
fn unique() {
    println!("1,000 workers x 16,384 mostly unique blocks");
    let all = Stream::new(0, 252);
    let (sized, slots) = fresh(IndexConfig {
        initial_entries_per_shard: (24 << 20) >> IndexConfig::default().shard_bits,
        ..IndexConfig::default()
    });
    store_all("store, into a table of that size", &sized, &slots, &all);
    drop(sized);
    let (index, slots) = fresh(IndexConfig::default());
    store_all("store, grown from empty", &index, &slots, &all);
    report_memory(&index);
    store_all("store what is there", &index, &slots, &all);
    let sample: Vec<Prompt> = all
        .events
        .iter()
        .step_by(25)
        .map(|&(_, own)| Stream::prompt(own))
        .collect();
    time_queries(
        &index,
        &sample,
        "chunk hashes, 1,000 share the prefix",
        true,
        0,
    );
    time_queries(&index, &sample, "the same, limit 32", true, 32);
    time_queries(&index, &sample, "sequence hashes, the same", false, 0);
    let others = Stream::new(1, 63);
    let clock = Clock::start();
    let mut removed = 0;
    for (worker, hashes) in all.each().take(all.events.len() / 2) {
        removed += index.remove(slots[worker], Tier::Device, &hashes[PREFIX..]);
    }
    clock.report("remove half", removed);
    store_all("store others (churn)", &index, &slots, &others);
    report_memory(&index);
    retire_all(&index, &slots);
}

/// Growth alone, several times: the first time touches memory that the process did not have before.
fn grow() {
    println!("1,000 workers x 16,384 mostly unique blocks, from empty");
    let all = Stream::new(0, 252);
    for _ in 0..3 {
        let (index, slots) = fresh(IndexConfig::default());
        store_all("store, grown from empty", &index, &slots, &all);
        report_memory(&index);
    }
}

/// The cost of a block by the length of its event, with a call for each event and with one for many.
fn events() {
    const BLOCKS: u64 = 16_000_000;
    const AT_A_TIME: usize = 64;
    println!("{BLOCKS} blocks of 1,000 workers into room for a quarter more; ns a block");
    println!("  blocks an event   a call each   a call for {AT_A_TIME}");
    let hashes: Vec<u64> = (0..BLOCKS).map(mix).collect();
    for blocks in [1, 8, 20, 60, 1000] {
        let ns = [1, AT_A_TIME].map(|calls| {
            let (index, slots) = fresh(IndexConfig::default());
            index.reserve((BLOCKS + BLOCKS / 4) as usize);
            let changes = hashes.chunks(blocks).zip(slots.iter().cycle());
            let changes: Vec<Change<'_>> = changes
                .map(|(chunks, &slot)| Change {
                    slot,
                    tier: Tier::Device,
                    stores: true,
                    hashes: Hashes::Chunks {
                        parent: None,
                        chunks,
                    },
                })
                .collect();
            let begun = Instant::now();
            for changes in changes.chunks(calls) {
                black_box(index.apply(changes.iter().copied()));
            }
            begun.elapsed().as_nanos() as f64 / BLOCKS as f64
        });
        println!("  {blocks:15} {:13.1} {:15.1}", ns[0], ns[1]);
    }
}

/// The same work on a table that fits the near caches: mostly computation.
fn hot() {
    println!("1,000 workers x 128 mostly unique blocks");
    let all = Stream::new(0, 2);
    for round in 0..3 {
        let (index, slots) = fresh(IndexConfig::default());
        store_all("store, grown from empty", &index, &slots, &all);
        store_all("store what is there", &index, &slots, &all);
        let clock = Clock::start();
        let mut removed = 0;
        for (worker, hashes) in all.each() {
            removed += index.remove(slots[worker], Tier::Device, &hashes[PREFIX..]);
        }
        clock.report("remove", removed);
        println!("  (round {round})");
    }
}

/// Retires every worker.
fn retire_all(index: &Index, slots: &[SlotId]) {
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
    let only = std::env::args().nth(1);
    let wants = |section: &str| only.as_deref().is_none_or(|only| only == section);
    if wants("fleet") {
        fleet(64);
        fleet(256);
    }
    if wants("hot") {
        hot();
    }
    if wants("grow") {
        grow();
    }
    if wants("unique") {
        unique();
    }
    if wants("events") {
        events();
    }
}
