//! `index-stream`: reads a trace, writes an operation stream, prints its header.

use std::fs::File;
use std::io::{BufReader, BufWriter};

use serde_json::json;

use crate::args::{Args, CommandError};
use crate::index::timeline::{Making, make};
use crate::index::trace::{ID_TOKENS, Trace};

/// Printed by `--help`.
pub const HELP: &str = "\
kvatlas-loadgen index-stream: make an operation stream from a trace; prints the header as one line of JSON

  --trace FILE        requests as JSON lines, in Mooncake's format (required)
  --out FILE          file to write the stream to (required)
  --workers N         number of workers; default: 1000
  --block-size N      tokens per block, a divisor of 512; default: 128
  --replicas N        repetitions of the trace, each with other ids; default: 30
  --capacity N        blocks in a worker's cache; default: 16384
  --seed N            seed for choosing workers; default: 1
  --hub-share S       share of all prompts above which an id is a hub; default: 0.01
  --without-hubs      leave hubs out of the prompts
  --assign HOW        choose a worker per session or per request; default: session
  --span-ms N         time of all arrivals, in ms; default: that of the trace";

/// Makes the stream.
///
/// # Errors
/// A wrong command line, a trace or a file that cannot be used.
pub fn run(words: &[String]) -> Result<String, CommandError> {
    let mut args = Args::read(words, &["without-hubs"])?;
    let (trace_path, out) = (args.text("trace")?, args.text("out")?);
    let hub_share = args.share("hub-share", 0.01, 1.0)?;
    let making = making(&mut args)?;
    args.done()?;
    let failed = |path: &str, problem: &dyn std::fmt::Display| {
        CommandError::Failed(format!("{path}: {problem}"))
    };
    let file = File::open(&trace_path).map_err(|error| failed(&trace_path, &error))?;
    let trace = Trace::read(BufReader::new(file), hub_share, making.without_hubs)
        .map_err(|error| failed(&trace_path, &error))?;
    let file = File::create(&out).map_err(|error| failed(&out, &error))?;
    let sink = BufWriter::with_capacity(1 << 20, file);
    let (shape, totals, span_ns) =
        make(&trace, &making, sink).map_err(|error| failed(&out, &error))?;
    let [queries, stores, removes] = totals.records;
    let [query_blocks, store_blocks, remove_blocks] = totals.blocks;
    let line = json!({
        "workers": shape.workers, "block_tokens": shape.block_tokens, "id_tokens": shape.id_tokens,
        "replicas": shape.replicas, "capacity": shape.capacity, "seed": shape.seed,
        "records": queries + stores + removes, "span_ns": span_ns, "flags": shape.flags,
        "queries": queries, "stores": stores, "removes": removes,
        "query_blocks": query_blocks, "store_blocks": store_blocks, "remove_blocks": remove_blocks,
    });
    Ok(line.to_string())
}

fn making(args: &mut Args) -> Result<Making, CommandError> {
    let making = Making {
        workers: args.positive("workers", 1_000)?,
        block_tokens: args.positive("block-size", 128)?,
        replicas: args.positive("replicas", 30)?,
        capacity: args.positive("capacity", 16_384)?,
        seed: args.value("seed", 1)?,
        without_hubs: args.switch("without-hubs"),
        by_request: !args.first_of("assign", ["session", "request"])?,
        span_ms: if args.has("span-ms") {
            Some(args.positive("span-ms", 1)?)
        } else {
            None
        },
    };
    if ID_TOKENS % making.block_tokens != 0 {
        let problem = format!(
            "--block-size {}: not a divisor of {ID_TOKENS}",
            making.block_tokens
        );
        return Err(CommandError::Usage(problem));
    }
    if making.capacity >= 1 << 30 {
        return Err(CommandError::Usage("--capacity is below 2^30".to_owned()));
    }
    Ok(making)
}
