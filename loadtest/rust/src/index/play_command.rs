//! `index-play`: reads a stream, plays it once on one design, prints the trial's result.

use std::fs::File;
use std::io::BufReader;

use kvatlas_baselines::catalogue::{DESIGNS, Design, named};
use kvatlas_baselines::stream::{Op, OpStream};
use serde_json::{Value, json};

use crate::allocator::COUNTING;
use crate::args::{Args, CommandError};
use crate::index::play::{Plan, play};
use crate::index::target::{FLAT, Options, make};
use crate::index::trial_result::TrialResult;
use crate::index::verify::verify;
use crate::latency::Latencies;

/// Printed by `--help`.
pub const HELP: &str = "\
kvatlas-loadgen index-play: play an operation stream on an index, once; prints one line of JSON

  --stream FILE       as index-stream writes it (required)
  --design NAME       one of index-designs (required)
  --window-ms N       time into which the stream is compressed, in ms; 0: no pacing (required)
  --from-share S      share of the records to apply before the trial; default: 0
  --appliers N        threads that apply events, each for its own workers; default: 1
  --verify N          number of answers to compare with nested dictionaries afterwards; default: 0
flat index only:
  --presized          allocate room for the whole stream at the start
  --kept-memory       take the tables' memory from the system beforehand; they still grow from empty
  --limit N           most workers in an answer; default: 0, all
  --answers KIND      form of answers: pairs of worker slot and depth, or ordered ids; default: pairs
  --exact             verify every depth

counted: the index kept up; all was issued within 1.01 windows and applied within 1.10. lookup_us: time from
call to return. deepest_blocks: depth of an answer's deepest match (null except for the flat index). apply_ms:
time from when an event was due until it was applied (null if the design queues events for threads of its own);
even_p99 is the p99 if every block took the average time, so the part that the stream's bursts cause. late_us: delay
at which records were issued. write_ns: processor time of the applying threads per block stored or removed. The exit
status is 1 if --verify finds a difference.";

/// The designs, as a JSON list.
///
/// # Errors
/// If there are any words.
pub fn designs(words: &[String]) -> Result<String, CommandError> {
    if let Some(word) = words.first() {
        return Err(CommandError::Usage(format!("{word:?}: takes no flags")));
    }
    let designs = DESIGNS.iter().map(|design| {
        json!({
            "name": design.name,
            "exact": design.exact,
            "queued": design.queued,
            "accepts_appliers": !design.queued,
        })
    });
    Ok(Value::from_iter(designs).to_string())
}

/// Plays one trial.
///
/// # Errors
/// A wrong command line, a file that is no stream, a wrong answer.
pub fn run(words: &[String]) -> Result<String, CommandError> {
    let mut args = Args::read(words, &["presized", "kept-memory", "exact"])?;
    let path = args.text("stream")?;
    let name = args.text("design")?;
    let design = named(&name)
        .ok_or_else(|| format!("--design {name}: no such design; index-designs lists them"))?;
    if !args.has("window-ms") {
        return Err(CommandError::Usage("--window-ms is required".to_owned()));
    }
    let window_ms: u64 = args.value("window-ms", 0)?;
    let from_share = args.share("from-share", 0.0, 1.0)?;
    let appliers = args.positive("appliers", 1)?;
    let checks = args.value("verify", 0)?;
    let mut options = Options {
        limit: args.value("limit", 0)?,
        pairs: args.first_of("answers", ["pairs", "ids"])?,
        exact: args.switch("exact"),
        ..Options::default()
    };
    let (presized, keeps) = (args.switch("presized"), args.switch("kept-memory"));
    args.done()?;
    let is_plain = options.limit == 0 && !options.exact && !presized && !keeps;
    check(&design, is_plain, appliers)?;
    let failed =
        |problem: &dyn std::fmt::Display| CommandError::Failed(format!("{path}: {problem}"));
    let file = File::open(&path).map_err(|error| failed(&error))?;
    let stream =
        OpStream::read(BufReader::with_capacity(1 << 20, file)).map_err(|error| failed(&error))?;
    options.sized_for = presized.then(|| memberships_max(&stream));
    options.kept_for = keeps.then(|| memberships_max(&stream));
    let records: u64 = stream.totals().records.iter().sum();
    let plan = Plan {
        warm_records: (records as f64 * from_share) as u64,
        window_ms,
        appliers,
        queued: design.queued,
    };
    let before = COUNTING.bytes();
    let target = make(&design, &options, stream.shape().workers).map_err(CommandError::Failed)?;
    let played = play(&stream, &*target, &plan);
    let bytes = target
        .accounted_bytes()
        .unwrap_or_else(|| COUNTING.bytes().saturating_sub(before));
    let line = report(&design, &stream, &plan, &played, bytes);
    if checks > 0 {
        verify(&stream, &*target, checks, options.limit).map_err(CommandError::Failed)?;
    }
    Ok(line.to_string())
}

fn check(design: &Design, is_plain: bool, appliers: u32) -> Result<(), CommandError> {
    let name = design.name;
    if name != FLAT && !is_plain {
        return Err(CommandError::Usage(format!(
            "--limit, --exact, --presized and --kept-memory: the {FLAT} has them, {name:?} has not"
        )));
    }
    if design.queued && appliers > 1 {
        return Err(CommandError::Usage(format!(
            "--appliers {appliers}: {name:?} has threads of its own"
        )));
    }
    Ok(())
}

/// The most blocks held at a time, over all workers.
fn memberships_max(stream: &OpStream) -> u64 {
    let (mut held, mut most) = (0u64, 0);
    for record in stream.records() {
        let blocks = record.op.hashes().len() as u64;
        match record.op {
            Op::Query(_) => {}
            Op::Store { .. } => held += blocks,
            Op::Remove(_) => held = held.saturating_sub(blocks),
        }
        most = most.max(held);
    }
    most
}

fn report(
    design: &Design,
    stream: &OpStream,
    plan: &Plan,
    played: &TrialResult,
    bytes: usize,
) -> Value {
    let ms = |ns: u64| ns as f64 / 1e6;
    let [_, stored, removed] = stream.totals().blocks;
    let memberships = stored.saturating_sub(removed);
    let ops_per_s = played.block_ops as f64 * 1e9 / played.finished_ns.max(1) as f64;
    let per_ms = |apply: &Latencies, share| apply.quantile_us(share) / 1e3;
    let apply = (played.apply.total() > 0).then_some(&played.apply);
    let (lookup, late) = (&played.lookup, &played.late);
    let mut deepest = played.deepest.clone();
    deepest.sort_unstable();
    let deepest = |share: f64| deepest.get((deepest.len() as f64 * share) as usize);
    json!({
        "design": design.name,
        "window_ms": plan.window_ms,
        "issued_ms": ms(played.issued_ns),
        "finished_ms": ms(played.finished_ns),
        "counted": played.kept_up(plan.window_ms),
        "block_ops": played.block_ops,
        "block_ops_per_s": ops_per_s,
        "lookups": lookup.total(),
        "lookup_us": {
            "p50": lookup.quantile_us(0.5),
            "p99": lookup.quantile_us(0.99),
            "p999": lookup.quantile_us(0.999),
            "max": lookup.max_us(),
        },
        "deepest_blocks": {"p50": deepest(0.5), "p99": deepest(0.99)},
        "apply_ms": {
            "p50": apply.map(|apply| per_ms(apply, 0.5)),
            "p99": apply.map(|apply| per_ms(apply, 0.99)),
            "even_p99": (played.even.total() > 0).then(|| per_ms(&played.even, 0.99)),
        },
        "late_us": {"p50": late.quantile_us(0.5), "p99": late.quantile_us(0.99)},
        "memberships": memberships,
        "bytes": bytes,
        "bytes_per_membership": bytes as f64 / memberships.max(1) as f64,
        "write_ns": played.write.ns_per_block(),
        "settle_ms": ms(played.settle_ns),
    })
}
