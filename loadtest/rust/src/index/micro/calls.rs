//! Query, store and remove, one after another on indexes of several sizes.

use std::time::Instant;

use kvatlas_baselines::catalogue::Design;
use kvatlas_baselines::counting::Counting;
use serde_json::{Value, json};

use crate::index::cpu::thread_ns;
use crate::index::micro::Sizes;
use crate::index::micro::filled::{Filled, Prompt};
use crate::index::micro::timing::{Flush, cold_ns, hot_ns};
use crate::index::target::Scratch;

/// Workers where their number is not the question.
const FLEET: u32 = 1_000;
/// A limit that routers use.
const LIMIT: usize = 32;
/// Blocks stored and removed for one cold figure.
const COLD_BLOCKS: usize = 100_000;

/// What is asked of a query.
struct Asked {
    depth: usize,
    holders: u32,
    limit: usize,
    by_sequence: bool,
}

/// All figures of a design.
///
/// # Errors
/// A wrong answer.
pub fn run(
    design: &Design,
    sizes: &Sizes,
    allocator: &'static Counting,
) -> Result<Vec<Value>, String> {
    let mut bench = Bench {
        design,
        samples: sizes.samples,
        flush: Flush::new(),
        lines: Vec::new(),
    };
    for &fleet in sizes.fleets {
        let mut filled = Filled::new(design, fleet, sizes.memberships[0] * 10, allocator)?;
        bench.queries(&mut filled, 256, 8)?;
    }
    for &memberships in sizes.memberships {
        let fleet = FLEET.max(sizes.holders.iter().copied().max().unwrap_or(FLEET));
        let mut filled = Filled::new(design, fleet, memberships, allocator)?;
        bench.size(&filled);
        for &depth in sizes.depths {
            bench.changes(&mut filled, depth);
            bench.queries(&mut filled, depth, 64)?;
        }
        if memberships == sizes.memberships[sizes.memberships.len() - 1] {
            for &holders in sizes.holders {
                bench.queries(&mut filled, 64, holders)?;
            }
        }
    }
    let middle = sizes.memberships[sizes.memberships.len() / 2];
    bench.emptied(&mut Filled::new(design, FLEET, middle, allocator)?);
    Ok(bench.lines)
}

/// The same for one large index, and what it took to fill it.
///
/// # Errors
/// A wrong answer.
pub fn large(
    design: &Design,
    memberships: u64,
    sizes: &Sizes,
    allocator: &'static Counting,
) -> Result<Vec<Value>, String> {
    let mut bench = Bench {
        design,
        samples: sizes.samples,
        flush: Flush::new(),
        lines: Vec::new(),
    };
    let start = Instant::now();
    let mut filled = Filled::new(design, 4 * FLEET, memberships, allocator)?;
    let seconds = start.elapsed().as_secs_f64();
    bench.size(&filled);
    bench.queries(&mut filled, 256, 8)?;
    bench.changes(&mut filled, 64);
    bench.lines.push(json!({
        "operation": "load", "design": design.name, "memberships": memberships, "workers": filled.fleet,
        "seconds": seconds, "peak_rss_bytes": peak_rss_bytes(),
        "bytes_per_membership": filled.bytes() as f64 / memberships as f64,
    }));
    Ok(bench.lines)
}

/// The most memory that this process has had, if the system tells.
fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

struct Bench<'a> {
    design: &'a Design,
    samples: usize,
    flush: Flush,
    lines: Vec<Value>,
}

impl Bench<'_> {
    fn size(&mut self, filled: &Filled) {
        self.lines.push(json!({
            "operation": "size", "design": self.design.name, "workers": filled.fleet,
            "memberships": filled.memberships, "bytes": filled.bytes(),
            "bytes_per_membership": filled.bytes() as f64 / filled.memberships as f64,
        }));
    }

    fn queries(&mut self, filled: &mut Filled, depth: usize, holders: u32) -> Result<(), String> {
        let prompts: Vec<Prompt> = (0..4).map(|_| filled.shared(depth, holders)).collect();
        let has_limit = filled.target.set_limit(LIMIT);
        for limit in [0, LIMIT] {
            for by_sequence in [false, true] {
                if (limit > 0 || by_sequence) && !has_limit {
                    continue;
                }
                let asked = Asked {
                    depth,
                    holders,
                    limit,
                    by_sequence,
                };
                self.query(filled, &prompts, &asked)?;
            }
        }
        for prompt in prompts {
            filled.unshare(&prompt, holders);
        }
        Ok(())
    }

    fn query(
        &mut self,
        filled: &mut Filled,
        prompts: &[Prompt],
        asked: &Asked,
    ) -> Result<(), String> {
        filled.target.set_limit(asked.limit);
        let target = &*filled.target;
        let find = |scratch: &mut Scratch, prompt: &Prompt| {
            if asked.by_sequence {
                target.find_hashed(scratch, &prompt.hashes);
            } else {
                target.find(scratch, &prompt.chunks);
            }
        };
        let scratch = &mut filled.scratch;
        find(scratch, &prompts[0]);
        let found = target.found(scratch);
        let right = if asked.limit == 0 {
            asked.holders as usize
        } else {
            asked.limit.min(asked.holders as usize)
        };
        let all_deep = found
            .iter()
            .all(|&(_, depth)| depth as usize == asked.depth);
        if found.len() != right || !all_deep {
            let depth = asked.depth;
            return Err(format!(
                "{} workers found at {depth}, not {right}",
                found.len()
            ));
        }
        let hot = hot_ns(self.samples, || find(scratch, &prompts[0]));
        let mut other = Scratch::default();
        let cold = cold_ns(
            self.samples,
            &self.flush,
            |number| find(&mut other, &prompts[number % 2]),
            |number| find(scratch, &prompts[2 + number % 2]),
        );
        for (temperature, ns) in [("hot", hot), ("cold", cold)] {
            self.lines.push(json!({
                "operation": "query", "design": self.design.name, "depth": asked.depth,
                "workers": asked.holders, "fleet": filled.fleet, "memberships": filled.memberships,
                "temperature": temperature, "limit": asked.limit,
                "hashes": if asked.by_sequence { "sequence" } else { "chunk" },
                "us": ns / 1e3, "ns_per_block": ns / asked.depth as f64,
            }));
        }
        filled.target.set_limit(0);
        Ok(())
    }

    /// Stores and removes of events of so many blocks: the same again, or each another.
    fn changes(&mut self, filled: &mut Filled, blocks: usize) {
        let again = vec![filled.fresh(blocks)];
        let (mut store, mut remove) = (0.0, 0.0);
        let rounds = self.samples.max(1);
        for _ in 0..rounds {
            let (stored, removed) = change(self.design, filled, &again);
            store += stored / rounds as f64;
            remove += removed / rounds as f64;
        }
        self.changed(filled, blocks, "hot", (store, remove));
        let events = (COLD_BLOCKS * self.samples / 100).max(blocks) / blocks;
        let others: Vec<Prompt> = (0..events).map(|_| filled.fresh(blocks)).collect();
        self.flush.all();
        let cold = change(self.design, filled, &others);
        self.changed(filled, blocks, "cold", cold);
    }

    fn changed(&mut self, filled: &Filled, blocks: usize, temperature: &str, ns: (f64, f64)) {
        for (operation, ns) in [("store", ns.0), ("remove", ns.1)] {
            self.lines.push(json!({
                "operation": operation, "design": self.design.name, "depth": blocks, "workers": 1,
                "fleet": filled.fleet, "memberships": filled.memberships,
                "temperature": temperature, "ns_per_block": ns,
            }));
        }
    }

    /// What is left in use after everything was removed.
    fn emptied(&mut self, filled: &mut Filled) {
        let before = filled.bytes();
        filled.empty();
        let share = 1.0 - filled.bytes() as f64 / before.max(1) as f64;
        self.lines.push(json!({
            "operation": "empty", "design": self.design.name, "workers": filled.fleet,
            "memberships": filled.memberships, "bytes_before": before, "bytes_after": filled.bytes(),
            "given_back_share": share,
        }));
    }
}

/// Stores all prompts, then removes them; ns a block of each. By this thread's processor time, unless the
/// design hands its writes to others: those are waited for, by the wall clock.
fn change(design: &Design, filled: &mut Filled, prompts: &[Prompt]) -> (f64, f64) {
    let epoch = Instant::now();
    let now_ns = || {
        if design.queued {
            epoch.elapsed().as_nanos() as u64
        } else {
            thread_ns()
        }
    };
    let blocks: usize = prompts.iter().map(|prompt| prompt.chunks.len()).sum();
    let per_block = |from: u64| (now_ns() - from) as f64 / blocks as f64;
    let fleet = filled.fleet;
    let worker = |place: usize| (place * 7 % fleet as usize) as u32;
    let tails: Vec<Vec<u64>> = prompts.iter().map(Prompt::tail_first).collect();
    let start_ns = now_ns();
    for (place, prompt) in prompts.iter().enumerate() {
        filled.store(worker(place), prompt);
    }
    if design.queued {
        filled.target.settle();
    }
    let stored = per_block(start_ns);
    let start_ns = now_ns();
    for (place, hashes) in tails.iter().enumerate() {
        filled.target.remove(worker(place), hashes);
    }
    if design.queued {
        filled.target.settle();
    }
    (stored, per_block(start_ns))
}
