//! Times query, store and remove on indexes of several sizes.

use std::time::Instant;

use serde_json::{Value, json};

use crate::index::micro::bench::Bench;
use crate::index::micro::filled::Filled;
use crate::index::micro::memory;
use crate::index::micro::queries::{self, Case};

/// Workers, where their number does not vary.
const FLEET: u32 = 1_000;
/// Holders, where the depth varies.
const HOLDERS: u32 = 64;
/// Blocks, where the holders vary.
const BLOCKS: usize = 64;
/// Blocks and holders, where the number of live workers varies.
const FLEET_BLOCKS: usize = 256;
const FLEET_HOLDERS: u32 = 8;

/// All figures of a design.
///
/// # Errors
/// A wrong answer.
pub fn run(bench: &Bench) -> Result<Vec<Value>, String> {
    let sizes = &bench.sizes;
    let mut lines = over_fleets(bench)?;
    let most = sizes.memberships.iter().copied().max().unwrap_or(0);
    for &memberships in sizes.memberships {
        let fleet = FLEET.max(sizes.holders.iter().copied().max().unwrap_or(FLEET));
        let mut filled = Filled::new(&bench.design, fleet, memberships)?;
        lines.push(memory::size(&bench.design, &filled));
        lines.extend(over_depths(bench, &mut filled)?);
        if memberships == most {
            lines.extend(over_holders(bench, &mut filled)?);
        }
    }
    let mut filled = Filled::new(&bench.design, FLEET, most)?;
    lines.extend(memory::fill_and_empty(&bench.design, &mut filled));
    Ok(lines)
}

/// The figures of one large index, with the time and memory to fill it.
///
/// # Errors
/// A wrong answer.
pub fn large(bench: &Bench, memberships: u64) -> Result<Vec<Value>, String> {
    let start = Instant::now();
    let mut filled = Filled::new(&bench.design, 4 * FLEET, memberships)?;
    let seconds = start.elapsed().as_secs_f64();
    let mut lines = vec![memory::size(&bench.design, &filled)];
    lines.extend(over_depths(bench, &mut filled)?);
    lines.push(json!({
        "operation": "load", "design": bench.design.name, "memberships": memberships, "workers": filled.fleet,
        "seconds": seconds, "peak_rss_bytes": peak_rss_bytes(),
        "bytes_per_membership": filled.bytes() as f64 / memberships as f64,
    }));
    Ok(lines)
}

/// Queries alone: fleets of several sizes at equal matches.
fn over_fleets(bench: &Bench) -> Result<Vec<Value>, String> {
    let memberships = bench.sizes.memberships[0] * 10;
    let fleets = bench.sizes.fleets.iter();
    let indexes = fleets.map(|&fleet| Filled::new(&bench.design, fleet, memberships));
    let mut indexes = indexes.collect::<Result<Vec<_>, _>>()?;
    let case = |filled| Case {
        filled,
        depth: FLEET_BLOCKS,
        holders: FLEET_HOLDERS,
    };
    let cases: Vec<Case> = (0..indexes.len()).map(case).collect();
    queries::run(bench, &mut indexes, &cases)
}

fn over_depths(bench: &Bench, filled: &mut Filled) -> Result<Vec<Value>, String> {
    let depths = bench.sizes.depths;
    let changes = depths.iter().map(|&depth| bench.own_blocks(filled, depth));
    let mut lines: Vec<Value> = changes.flatten().collect();
    let case = |&depth| Case {
        filled: 0,
        depth,
        holders: HOLDERS,
    };
    let cases: Vec<Case> = depths.iter().map(case).collect();
    lines.extend(queries::run(bench, std::slice::from_mut(filled), &cases)?);
    Ok(lines)
}

fn over_holders(bench: &Bench, filled: &mut Filled) -> Result<Vec<Value>, String> {
    let (depths, holders) = (bench.sizes.depths, bench.sizes.holders.iter());
    let several = holders.clone().filter(|&&holders| holders > 1);
    let changes = several.map(|&holders| bench.shared_blocks(filled, BLOCKS, holders));
    let mut lines: Vec<Value> = changes.flatten().collect();
    let asked_already = |holders: u32| holders == HOLDERS && depths.contains(&BLOCKS);
    let case = |&holders| Case {
        filled: 0,
        depth: BLOCKS,
        holders,
    };
    let others = holders.filter(|&&holders| !asked_already(holders));
    let cases: Vec<Case> = others.map(case).collect();
    lines.extend(queries::run(bench, std::slice::from_mut(filled), &cases)?);
    Ok(lines)
}

/// The peak memory of this process, if the system reports it.
fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
