//! `index-micro`: reads the flags, times single calls, prints a line of JSON for each figure.

use kvatlas_baselines::catalogue::named;
use serde_json::Value;

use crate::args::{Args, CommandError};
use crate::index::micro::bench::Bench;
use crate::index::micro::sizes::{FULL, QUICK};
use crate::index::micro::{calls, worker_removal};
use crate::index::target::FLAT;

/// Printed by `--help`.
pub const HELP: &str = "\
kvatlas-loadgen index-micro: time single calls of an index; prints lines of JSON

  --design NAME       one of index-designs; default: flat index
  --quick             run tiny, to show that it works
  --large             also load 100 million memberships, and report the process's peak memory (flat index)

Hot: the same call again. Cold: the data is not in the core's private caches, the code is. A query is timed as
a whole call; calls that are compared take turns. The flat index gets chunk hashes and sequence hashes, and
answers in ordered ids.";

/// Memberships of `--large`.
const LARGE: u64 = 100_000_000;

/// Runs the benchmarks; returns lines of JSON.
///
/// # Errors
/// A wrong command line; a wrong answer.
pub fn run(words: &[String]) -> Result<String, CommandError> {
    let mut args = Args::read(words, &["quick", "large"])?;
    let name = args.value("design", FLAT.to_owned())?;
    let sizes = if args.switch("quick") { QUICK } else { FULL };
    let large = args.switch("large");
    args.done()?;
    let design = named(&name)
        .ok_or_else(|| format!("--design {name}: no such design; index-designs lists them"))?;
    if large && name != FLAT {
        return Err(CommandError::Usage(format!("--large is for the {FLAT}")));
    }
    let lines = measure(&Bench::new(design, sizes), large).map_err(CommandError::Failed)?;
    let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
    Ok(lines.join("\n"))
}

fn measure(bench: &Bench, large: bool) -> Result<Vec<Value>, String> {
    let mut lines = calls::run(bench)?;
    if bench.design.name == FLAT {
        lines.extend(worker_removal::run(&bench.sizes)?);
    }
    if large {
        lines.extend(calls::large(bench, LARGE)?);
    }
    Ok(lines)
}
