//! `index-play`: reads a stream, plays it once on one design, prints what the trial gave.

use std::fs::File;
use std::io::BufReader;

use kvatlas_baselines::catalogue::{DESIGNS, Design, named};
use kvatlas_baselines::counting::Counting;
use kvatlas_baselines::opstream::{Op, OpStream};
use serde_json::{Value, json};

use crate::index::Refusal;
use crate::index::args::Args;
use crate::index::play::{Plan, play};
use crate::index::played::Played;
use crate::index::target::{FLAT, Options, make};
use crate::index::verify::verify;
use crate::latency::Latencies;

const HELP: &str = "\
kvatlas-loadgen index-play: play an operation stream on an index, once; prints one line of JSON

  --stream FILE       as index-stream writes it (required)
  --design NAME       one of index-designs (required)
  --window-ms N       time that the stream's span is laid over; 0: as fast as it goes (required)
  --from-share S      share of the records that is applied before the trial; default: 0
  --appliers N        threads that apply events, each those of its workers; default: 1
  --verify N          afterwards compare so many answers with nested dictionaries; default: 0
flat index only:
  --presized          room for the whole stream from the start
  --kept-memory       tables grow from empty, in memory that was taken from the system beforehand
  --limit N           workers of an answer; default: 0, all
  --answers KIND      pairs of worker slot and depth, or ordered ids; default: pairs
  --exact             verify every depth

counted is whether it kept up: all issued within 1.01 windows and applied within 1.10. lookup_us is from
call to return, deepest_blocks the deepest match of an answer (null but for the flat index). apply_ms is from an
event's time until it was applied (null where the design queues events for threads of its own), even_p99 what its p99
would be if every block took the average time: what the stream's bursts alone make of it. late_us is how late records
were issued. write_ns is processor time of the applying threads per block stored or removed. The exit status is 1 if
--verify finds a difference.";

/// The designs, as a JSON list.
///
/// # Errors
/// If there are any words.
pub fn designs(words: &[String]) -> Result<String, Refusal> {
    if let Some(word) = words.first() {
        return Err(Refusal::Usage(format!("{word:?}: takes no flags")));
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
pub fn run(words: &[String], allocator: &Counting) -> Result<String, Refusal> {
    if words.iter().any(|word| word == "--help") {
        return Ok(HELP.to_owned());
    }
    let mut args = Args::read(words, &["presized", "kept-memory", "exact"])?;
    let path = args.text("stream")?;
    let name = args.text("design")?;
    let design = named(&name)
        .ok_or_else(|| format!("--design {name}: no such design; index-designs lists them"))?;
    let window_ms: u64 = args
        .text("window-ms")?
        .parse()
        .map_err(|_| "--window-ms: not a whole number of milliseconds".to_owned())?;
    let from_share = args.share("from-share", 0.0, 1.0)?;
    let appliers = args.positive("appliers", 1)?;
    let checks = args.number("verify", 0)?;
    let presized = args.switch("presized");
    let keeps = args.switch("kept-memory");
    let mut options = Options {
        limit: args.number("limit", 0)?,
        pairs: args.first_of("answers", ["pairs", "ids"])?,
        exact: args.switch("exact"),
        sized_for: presized.then_some(0),
        kept_for: keeps.then_some(0),
    };
    args.done()?;
    check(&design, &options, appliers)?;
    let failed = |problem: &dyn std::fmt::Display| Refusal::Failed(format!("{path}: {problem}"));
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
    let before = allocator.bytes();
    let target = make(&design, &options, stream.shape().workers).map_err(Refusal::Failed)?;
    let played = play(&stream, &*target, &plan);
    let bytes = target
        .accounted_bytes()
        .unwrap_or_else(|| allocator.bytes().saturating_sub(before));
    let line = report(&design, &stream, &plan, &played, bytes);
    if checks > 0 {
        verify(&stream, &*target, checks, options.limit).map_err(Refusal::Failed)?;
    }
    Ok(line.to_string())
}

fn check(design: &Design, options: &Options, appliers: u32) -> Result<(), Refusal> {
    let name = design.name;
    let has_memory = options.sized_for.or(options.kept_for).is_some();
    let is_plain = options.limit == 0 && !options.exact && !has_memory;
    if name != FLAT && !is_plain {
        return Err(Refusal::Usage(format!(
            "--limit, --exact, --presized and --kept-memory: the {FLAT} has them, {name:?} has not"
        )));
    }
    if design.queued && appliers > 1 {
        return Err(Refusal::Usage(format!(
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

fn report(design: &Design, stream: &OpStream, plan: &Plan, played: &Played, bytes: usize) -> Value {
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
