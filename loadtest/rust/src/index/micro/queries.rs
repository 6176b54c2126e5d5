//! Times queries of prompts whose blocks are all found.
//!
//! Queries that are compared with each other take turns, one sample of each, so that other work on the
//! machine slows all of them.

use kvatlas_baselines::catalogue::Design;
use serde_json::{Value, json};

use crate::index::micro::bench::Bench;
use crate::index::micro::filled::{Filled, Prompt};
use crate::index::micro::timing::{Flush, cold_ns, hot_ns};
use crate::index::target::{Scratch, Target};
use crate::latency::median;

/// A limit that routers use.
const LIMIT: usize = 32;
/// Prompts of a case: two that are timed cold, and two that bring the code back.
const PROMPTS: usize = 4;

/// A query to time: prompts of an index that so many workers hold.
#[derive(Clone, Copy)]
pub struct Case {
    /// Position of the index.
    pub filled: usize,
    /// Blocks of a prompt.
    pub depth: usize,
    /// Workers that hold it.
    pub holders: u32,
}

/// A way to ask for a case.
struct Asked {
    case: usize,
    limit: usize,
    by_sequence: bool,
    hot: Vec<f64>,
    cold: Vec<f64>,
}

/// Times every way to ask for every case; returns lines of results.
///
/// # Errors
/// A wrong answer.
pub fn run(bench: &Bench, indexes: &mut [Filled], cases: &[Case]) -> Result<Vec<Value>, String> {
    let prompts: Vec<Vec<Prompt>> = cases
        .iter()
        .map(|case| {
            let filled = &mut indexes[case.filled];
            let shared = |_| filled.shared(case.depth, case.holders);
            (0..PROMPTS).map(shared).collect()
        })
        .collect();
    let mut asked = ways(indexes, cases);
    for way in &asked {
        let case = cases[way.case];
        checked(&mut indexes[case.filled], case, way, &prompts[way.case][0])?;
    }
    for number in 0..bench.sizes.samples {
        for way in &mut asked {
            let filled = &mut indexes[cases[way.case].filled];
            sample(filled, way, &prompts[way.case], number % 2, &bench.flush);
        }
    }
    for (case, prompts) in cases.iter().zip(&prompts) {
        let filled = &mut indexes[case.filled];
        filled.target.set_limit(0);
        for prompt in prompts {
            filled.unshare(prompt, case.holders);
        }
    }
    Ok(asked
        .into_iter()
        .flat_map(|way| lines(&bench.design, indexes, cases, way))
        .collect())
}

/// All ways that the design supports: chunk and sequence hashes, all holders and at most `LIMIT`.
fn ways(indexes: &mut [Filled], cases: &[Case]) -> Vec<Asked> {
    let mut asked = Vec::new();
    for (case, &Case { filled, .. }) in cases.iter().enumerate() {
        let has_limit = indexes[filled].target.set_limit(0);
        for limit in [0, LIMIT] {
            for by_sequence in [false, true] {
                if has_limit || limit == 0 && !by_sequence {
                    asked.push(Asked {
                        case,
                        limit,
                        by_sequence,
                        hot: Vec::new(),
                        cold: Vec::new(),
                    });
                }
            }
        }
    }
    asked
}

fn find(target: &dyn Target, scratch: &mut Scratch, prompt: &Prompt, by_sequence: bool) {
    if by_sequence {
        target.find_hashed(scratch, &prompt.hashes);
    } else {
        target.find(scratch, &prompt.chunks);
    }
}

/// Checks that the answer is right.
fn checked(filled: &mut Filled, case: Case, way: &Asked, prompt: &Prompt) -> Result<(), String> {
    filled.target.set_limit(way.limit);
    find(
        &*filled.target,
        &mut filled.scratch,
        prompt,
        way.by_sequence,
    );
    let found = filled.target.found(&filled.scratch);
    let holders = case.holders as usize;
    let right = if way.limit == 0 {
        holders
    } else {
        way.limit.min(holders)
    };
    let depth = case.depth;
    if found.len() != right || found.iter().any(|&(_, found)| found as usize != depth) {
        let found = found.len();
        return Err(format!("{found} workers found at {depth}, not {right}"));
    }
    Ok(())
}

/// Takes one hot and one cold sample.
fn sample(filled: &mut Filled, way: &mut Asked, prompts: &[Prompt], which: usize, flush: &Flush) {
    filled.target.set_limit(way.limit);
    let (target, by_sequence) = (&*filled.target, way.by_sequence);
    let scratch = &mut filled.scratch;
    way.hot
        .push(hot_ns(|| find(target, scratch, &prompts[0], by_sequence)));
    let mut other = Scratch::default();
    let cold = cold_ns(
        flush,
        || find(target, &mut other, &prompts[which], by_sequence),
        || find(target, scratch, &prompts[2 + which], by_sequence),
    );
    way.cold.push(cold);
}

fn lines(design: &Design, indexes: &[Filled], cases: &[Case], way: Asked) -> [Value; 2] {
    let Case {
        filled,
        depth,
        holders,
    } = cases[way.case];
    let filled = &indexes[filled];
    [("hot", way.hot), ("cold", way.cold)].map(|(temperature, samples)| {
        let ns = median(samples);
        json!({
            "operation": "query", "design": design.name, "depth": depth,
            "workers": holders, "fleet": filled.fleet, "memberships": filled.memberships,
            "temperature": temperature, "limit": way.limit,
            "hashes": if way.by_sequence { "sequence" } else { "chunk" },
            "us": ns / 1e3, "ns_per_block": ns / depth as f64,
        })
    })
}
