//! `index-micro`: what single calls cost, and the end of workers, by depth, holders and size.
//!
//! 1. [`filled`] – an index with a given number of memberships, and prompts with given holders in it
//! 2. [`timing`] – hot and cold, and the machine's caches between them
//! 3. [`queries`], [`changes`], [`weight`] – look-ups; stores and removes; what memberships weigh
//! 4. [`calls`] – all of these, by size
//! 5. [`ends`] – what only the flat index is asked: death of a worker, the sweep, memory given back

mod calls;
mod changes;
mod ends;
mod filled;
mod queries;
mod timing;
mod weight;

use kvatlas_baselines::catalogue::{Design, named};
use kvatlas_baselines::counting::Counting;

use crate::index::Refusal;
use crate::index::args::Args;
use crate::index::target::FLAT;

const HELP: &str = "\
kvatlas-loadgen index-micro: time single calls of an index; prints lines of JSON

  --design NAME       one of index-designs; default: flat index
  --quick             a moment's worth of each figure
  --large             also 100 million memberships, and the peak of the process's memory (flat index)

Hot: the same call again. Cold: the core's own caches were emptied since, its code was not. Figures of
queries are of whole calls, which take turns with those that they are compared with; the flat index is asked by chunk hashes and by sequence hashes, and answers
in ordered ids.";

/// How much to do.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Memberships of the indexes that calls are timed on.
    memberships: &'static [u64],
    /// Blocks of a query, with 64 holders; blocks of an event.
    depths: &'static [usize],
    /// Holders of a query of 64 blocks, and of an event's.
    holders: &'static [u32],
    /// Live workers, at eight holders of 256 blocks.
    fleets: &'static [u32],
    /// Calls of which the median is told.
    samples: usize,
    /// Blocks of a worker that dies.
    victim_blocks: u64,
    /// Workers that die, and windows of look-ups with a sweep.
    victims: u32,
}

const FULL: Sizes = Sizes {
    memberships: &[100_000, 1_000_000, 10_000_000],
    depths: &[1, 8, 64, 256, 1024, 8192],
    holders: &[1, 4, 16, 64, 256, 1024, 4096],
    fleets: &[16, 64, 256, 1024],
    samples: 101,
    victim_blocks: 100_000,
    victims: 24,
};

const QUICK: Sizes = Sizes {
    memberships: &[10_000],
    depths: &[1, 64, 300],
    holders: &[1, 100],
    fleets: &[16, 64],
    samples: 3,
    victim_blocks: 1_000,
    victims: 20,
};

/// Memberships of `--large`.
const LARGE: u64 = 100_000_000;

/// Runs them; lines of JSON.
///
/// # Errors
/// A wrong command line; a wrong answer.
pub fn run(words: &[String], allocator: &'static Counting) -> Result<String, Refusal> {
    if words.iter().any(|word| word == "--help") {
        return Ok(HELP.to_owned());
    }
    let mut args = Args::read(words, &["quick", "large"])?;
    let name = args.optional("design").unwrap_or_else(|| FLAT.to_owned());
    let sizes = if args.switch("quick") { QUICK } else { FULL };
    let large = args.switch("large");
    args.done()?;
    let design: Design = named(&name)
        .ok_or_else(|| format!("--design {name}: no such design; index-designs lists them"))?;
    if large && name != FLAT {
        return Err(Refusal::Usage(format!("--large is for the {FLAT}")));
    }
    let mut lines = calls::run(&design, &sizes, allocator).map_err(Refusal::Failed)?;
    if name == FLAT {
        lines.extend(ends::run(&sizes).map_err(Refusal::Failed)?);
    }
    if large {
        lines.extend(calls::large(&design, LARGE, &sizes, allocator).map_err(Refusal::Failed)?);
    }
    let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
    Ok(lines.join("\n"))
}
