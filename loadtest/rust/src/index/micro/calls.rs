//! Query, store and remove, one after another on indexes of several sizes.

use std::time::Instant;

use kvatlas_baselines::catalogue::Design;
use kvatlas_baselines::counting::Counting;
use serde_json::{Value, json};

use crate::index::micro::Sizes;
use crate::index::micro::changes::Bench;
use crate::index::micro::filled::Filled;
use crate::index::micro::queries::{self, Case};
use crate::index::micro::timing::Flush;
use crate::index::micro::weight;

/// Workers where their number is not the question.
const FLEET: u32 = 1_000;
/// Holders where depth is the question.
const HOLDERS: u32 = 64;
/// Blocks where holders are the question.
const BLOCKS: usize = 64;
/// Blocks and holders where the number of live workers is the question.
const FLEET_BLOCKS: usize = 256;
const FLEET_HOLDERS: u32 = 8;

/// All figures of a design.
///
/// # Errors
/// A wrong answer.
pub fn run(
    design: &Design,
    sizes: &Sizes,
    allocator: &'static Counting,
) -> Result<Vec<Value>, String> {
    let flush = Flush::new();
    let mut lines = over_fleets(design, sizes, allocator, &flush)?;
    let most = sizes.memberships.iter().copied().max().unwrap_or(0);
    for &memberships in sizes.memberships {
        let fleet = FLEET.max(sizes.holders.iter().copied().max().unwrap_or(FLEET));
        let mut filled = Filled::new(design, fleet, memberships, allocator)?;
        lines.push(weight::size(design, &filled));
        lines.extend(over_depths(design, sizes, &mut filled, &flush)?);
        if memberships == most {
            lines.extend(over_holders(design, sizes, &mut filled, &flush)?);
        }
    }
    let mut filled = Filled::new(design, FLEET, most, allocator)?;
    lines.extend(weight::fill_and_empty(design, &mut filled));
    Ok(lines)
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
    let flush = Flush::new();
    let start = Instant::now();
    let mut filled = Filled::new(design, 4 * FLEET, memberships, allocator)?;
    let seconds = start.elapsed().as_secs_f64();
    let mut lines = vec![weight::size(design, &filled)];
    lines.extend(over_depths(design, sizes, &mut filled, &flush)?);
    lines.push(json!({
        "operation": "load", "design": design.name, "memberships": memberships, "workers": filled.fleet,
        "seconds": seconds, "peak_rss_bytes": peak_rss_bytes(),
        "bytes_per_membership": filled.bytes() as f64 / memberships as f64,
    }));
    Ok(lines)
}

/// Queries alone: fleets of several sizes at equal matches.
fn over_fleets(
    design: &Design,
    sizes: &Sizes,
    allocator: &'static Counting,
    flush: &Flush,
) -> Result<Vec<Value>, String> {
    let memberships = sizes.memberships[0] * 10;
    let fleets = sizes.fleets.iter();
    let indexes = fleets.map(|&fleet| Filled::new(design, fleet, memberships, allocator));
    let mut indexes = indexes.collect::<Result<Vec<_>, _>>()?;
    let case = |filled| Case {
        filled,
        depth: FLEET_BLOCKS,
        holders: FLEET_HOLDERS,
    };
    let cases: Vec<Case> = (0..indexes.len()).map(case).collect();
    queries::run(design, &mut indexes, &cases, sizes.samples, flush)
}

fn over_depths(
    design: &Design,
    sizes: &Sizes,
    filled: &mut Filled,
    flush: &Flush,
) -> Result<Vec<Value>, String> {
    let mut lines = Vec::new();
    let bench = bench(design, sizes, flush);
    for &depth in sizes.depths {
        lines.extend(bench.of_own(filled, depth));
    }
    let case = |&depth| Case {
        filled: 0,
        depth,
        holders: HOLDERS,
    };
    let cases: Vec<Case> = sizes.depths.iter().map(case).collect();
    let indexes = std::slice::from_mut(filled);
    lines.extend(queries::run(design, indexes, &cases, sizes.samples, flush)?);
    Ok(lines)
}

fn over_holders(
    design: &Design,
    sizes: &Sizes,
    filled: &mut Filled,
    flush: &Flush,
) -> Result<Vec<Value>, String> {
    let mut lines = Vec::new();
    let bench = bench(design, sizes, flush);
    for &holders in sizes.holders.iter().filter(|&&holders| holders > 1) {
        lines.extend(bench.of_shared(filled, BLOCKS, holders));
    }
    let asked_already = |holders: u32| holders == HOLDERS && sizes.depths.contains(&BLOCKS);
    let others = sizes
        .holders
        .iter()
        .filter(|&&holders| !asked_already(holders));
    let case = |&holders| Case {
        filled: 0,
        depth: BLOCKS,
        holders,
    };
    let cases: Vec<Case> = others.map(case).collect();
    let indexes = std::slice::from_mut(filled);
    lines.extend(queries::run(design, indexes, &cases, sizes.samples, flush)?);
    Ok(lines)
}

fn bench<'a>(design: &'a Design, sizes: &Sizes, flush: &'a Flush) -> Bench<'a> {
    Bench {
        design,
        samples: sizes.samples,
        flush,
    }
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
