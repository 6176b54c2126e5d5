//! The flags of `fill` and `find-matches`, and the help text of the whole program.

use crate::args::Args;

/// Printed by `--help`.
pub const HELP: &str = "\
kvatlas-loadgen: native load for the benchmarks of kvatlas

  kvatlas-loadgen find-matches FLAGS   call FindMatches as fast as possible; prints one line of JSON
  kvatlas-loadgen fill FLAGS           fill an indexer through Ingest and keep it filled for --seconds
  kvatlas-loadgen hashing [--rounds N] compare the hash contract with plain XXH3; prints one line of JSON
  kvatlas-loadgen index-stream FLAGS   make an operation stream from a trace
  kvatlas-loadgen index-play FLAGS     play a stream on an index, once; prints one line of JSON
  kvatlas-loadgen index-micro FLAGS    time single calls of an index; prints lines of JSON
  kvatlas-loadgen index-designs        list all index designs, as JSON
  kvatlas-loadgen http-engines FLAGS   serve engines that answer at once
  kvatlas-loadgen http-load FLAGS      load a router or an engine; prints one line of JSON
  (--help after an index-… or http-… subcommand lists its flags)

The first two use the same fleet. Every worker holds --blocks blocks: 8 prefixes of --depth / 4 blocks
that all workers share, and its own conversations of --depth blocks, each of which begins with one of
these prefixes. A query is one such conversation. The right answer is its worker at --depth and every
other worker at --depth / 4; any other answer counts as an error.

  --address H:P        address of the indexer (required)
  --cell NAME          name of the cell; default: default
  --model NAME         name of the model; default: model
  --block-size N       tokens per block; default: 16
  --hash-contract NAME name of the hash contract; default: xxh3-1337-v1
  --workers N          number of workers; default: 64
  --blocks N           blocks per worker; default: 10000
  --depth N            blocks per query; default: 256
  --seed N             seed of all hashes; default: 1
  --seconds N          duration of the load, in seconds; default: 5

find-matches only:
  --fill yes|no        fill the indexer first, and keep its leases running; default: yes
  --calls N            most calls to make within --seconds; default: 0, no limit
  --warmup N           calls before the measured ones; default: 2000
  --connections N      number of connections; default: 1
  --concurrency N      calls in flight on each connection; default: 1
  --queries N          distinct queries, sent in turn; default: 2048
  --hashes KIND        kind of hashes in a query, chunk or sequence; default: chunk
  --limit N            most workers in an answer; default: 0, all

Output of find-matches: calls, seconds, calls_per_s, p50_us, p90_us, p99_us, max_us, errors,
first_error, and the settings. The exit status is 1 if a call failed or answered wrongly.
";

/// The flags of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the help text documents each")]
pub struct Flags {
    pub address: String,
    pub cell: String,
    pub model: String,
    pub block_size: u32,
    pub hash_contract: String,
    pub workers: u64,
    pub blocks: usize,
    pub depth: usize,
    pub seed: u64,
    pub seconds: u64,
    pub fill: bool,
    pub calls: u64,
    pub warmup: u64,
    pub connections: usize,
    pub concurrency: usize,
    pub queries: usize,
    pub chunks: bool,
    pub limit: u32,
}

impl Flags {
    /// Reads the words after the subcommand.
    ///
    /// # Errors
    /// One line that names the flag.
    pub fn read(words: &[String]) -> Result<Self, String> {
        let mut args = Args::read(words, &[])?;
        let flags = Self {
            address: args.text("address")?,
            cell: args.value("cell", "default".to_owned())?,
            model: args.value("model", "model".to_owned())?,
            block_size: args.value("block-size", 16)?,
            hash_contract: args.value("hash-contract", "xxh3-1337-v1".to_owned())?,
            workers: args.positive("workers", 64)?,
            blocks: args.value("blocks", 10_000)?,
            depth: args.value("depth", 256)?,
            seed: args.value("seed", 1)?,
            seconds: args.value("seconds", 5)?,
            fill: args.first_of("fill", ["yes", "no"])?,
            calls: args.value("calls", 0)?,
            warmup: args.value("warmup", 2_000)?,
            connections: args.positive("connections", 1)?,
            concurrency: args.positive("concurrency", 1)?,
            queries: args.positive("queries", 2_048)?,
            chunks: args.first_of("hashes", ["chunk", "sequence"])?,
            limit: args.value("limit", 0)?,
        };
        args.done()?;
        if flags.depth < 4 || flags.blocks < 4 * flags.depth {
            return Err("--depth is at least 4 and --blocks at least four times that".to_owned());
        }
        Ok(flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Flags, String> {
        Flags::read(
            &line
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn every_flag_of_the_help_is_read_and_no_other() {
        let flags = HELP.lines().filter_map(|line| line.strip_prefix("  --"));
        for flag in flags.filter_map(|line| line.split_whitespace().next()) {
            let line = format!("--address h:1 --{flag} ?");
            let error = read(&line).err().unwrap_or_default();
            assert!(!error.contains("is no flag"), "{error}");
        }
        assert!(
            read("--address h:1 --depht 3")
                .unwrap_err()
                .contains("--depht is no flag")
        );
        assert!(read("--address").unwrap_err().contains("has no value"));
        assert!(read("--depth 256").unwrap_err().contains("--address"));
        assert!(
            read("--address h:1 --fill maybe")
                .unwrap_err()
                .contains("yes or no")
        );
        assert!(
            read("--depth 8 --depth 9")
                .unwrap_err()
                .contains("--depth is given twice")
        );
        assert!(!read("--address h:1 --fill no").unwrap().fill);
    }
}
