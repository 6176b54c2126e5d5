//! The command line: `--name value` pairs, each known, each a number or a text.

use std::collections::BTreeMap;
use std::str::FromStr;

/// Printed by `--help`.
pub const HELP: &str = "\
kvatlas-loadgen: native load for the benchmarks of kvatlas

  kvatlas-loadgen find-matches FLAGS   call FindMatches as fast as it answers; prints one line of JSON
  kvatlas-loadgen fill FLAGS           fill an indexer through Ingest and hold it for --seconds
  kvatlas-loadgen hashing [--rounds N] time the hash contract beside plain XXH3; prints one line of JSON
  kvatlas-loadgen index-stream FLAGS   make an operation stream of a trace
  kvatlas-loadgen index-play FLAGS     play a stream on an index, once; prints one line of JSON
  kvatlas-loadgen index-micro FLAGS    time single calls of an index; prints lines of JSON
  kvatlas-loadgen index-designs        print the indexes there are, as JSON
  (the index-… subcommands print their flags by --help)

The first two send the same fleet: every worker holds --blocks blocks, namely 8 prefixes of --depth / 4 blocks
that all workers share, and conversations of --depth blocks of its own that each begin with one of
them. A query is one such conversation, so the right answer is its worker at --depth and every other
worker at --depth / 4; any other answer counts as an error.

  --address H:P        the indexer (required)
  --cell NAME          default: default
  --model NAME         default: model
  --block-size N       default: 16
  --hash-contract NAME default: xxh3-1337-v1
  --workers N          default: 64
  --blocks N           per worker; default: 10000
  --depth N            blocks of a query; default: 256
  --seed N             of all hashes; default: 1
  --seconds N          default: 5

find-matches only:
  --fill yes|no        fill the indexer first, and keep its leases running; default: yes
  --calls N            stop after so many calls, if before --seconds; default: 0, no bound
  --warmup N           calls before the measured ones; default: 2000
  --connections N      default: 1
  --concurrency N      calls in flight on each connection; default: 1
  --queries N          different queries, asked in turn; default: 2048
  --hashes KIND        chunk or sequence; default: chunk
  --limit N            of each query; default: 0, all workers

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
    /// Read the words after the subcommand.
    ///
    /// # Errors
    /// One line that names the flag.
    pub fn read(words: &[String]) -> Result<Self, String> {
        let mut given = BTreeMap::new();
        for pair in words.chunks(2) {
            let [flag, value] = pair else {
                return Err(format!("{:?}: flags are --name value", pair[0]));
            };
            let name = flag
                .strip_prefix("--")
                .ok_or_else(|| format!("{flag:?}: flags are --name value"))?;
            if given.insert(name, value.as_str()).is_some() {
                return Err(format!("--{name} is given twice"));
            }
        }
        let flags = Self {
            address: text(&mut given, "address", "")?,
            cell: text(&mut given, "cell", "default")?,
            model: text(&mut given, "model", "model")?,
            block_size: number(&mut given, "block-size", 16)?,
            hash_contract: text(&mut given, "hash-contract", "xxh3-1337-v1")?,
            workers: number(&mut given, "workers", 64)?,
            blocks: number(&mut given, "blocks", 10_000)?,
            depth: number(&mut given, "depth", 256)?,
            seed: number(&mut given, "seed", 1)?,
            seconds: number(&mut given, "seconds", 5)?,
            fill: choice(&mut given, "fill", ["yes", "no"])?,
            calls: number(&mut given, "calls", 0)?,
            warmup: number(&mut given, "warmup", 2_000)?,
            connections: number(&mut given, "connections", 1)?,
            concurrency: number(&mut given, "concurrency", 1)?,
            queries: number(&mut given, "queries", 2_048)?,
            chunks: choice(&mut given, "hashes", ["chunk", "sequence"])?,
            limit: number(&mut given, "limit", 0)?,
        };
        match given.keys().next() {
            Some(unknown) => Err(format!("--{unknown} is no flag; --help lists them")),
            None => flags.check(),
        }
    }

    fn check(self) -> Result<Self, String> {
        if self.address.is_empty() {
            return Err("--address is required".to_owned());
        }
        let counts = [self.connections, self.concurrency, self.queries];
        if self.workers == 0 || counts.contains(&0) {
            return Err(
                "--workers, --connections, --concurrency and --queries are at least 1".into(),
            );
        }
        if self.depth < 4 || self.blocks < 4 * self.depth {
            return Err("--depth is at least 4 and --blocks at least four times that".to_owned());
        }
        Ok(self)
    }
}

type Given<'a> = BTreeMap<&'a str, &'a str>;

fn text(given: &mut Given<'_>, name: &str, default: &str) -> Result<String, String> {
    Ok(given.remove(name).unwrap_or(default).to_owned())
}

fn number<T: FromStr>(given: &mut Given<'_>, name: &str, default: T) -> Result<T, String> {
    match given.remove(name) {
        None => Ok(default),
        Some(value) => value
            .parse()
            .map_err(|_| format!("--{name} {value}: not such a number")),
    }
}

/// True for the first choice, which is the default.
fn choice(given: &mut Given<'_>, name: &str, choices: [&str; 2]) -> Result<bool, String> {
    match given.remove(name) {
        None => Ok(true),
        Some(value) if value == choices[0] => Ok(true),
        Some(value) if value == choices[1] => Ok(false),
        Some(value) => Err(format!(
            "--{name} {value}: {} or {}",
            choices[0], choices[1]
        )),
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
            let error = read(&format!("--{flag} ?")).err().unwrap_or_default();
            assert!(!error.contains("is no flag"), "{error}");
        }
        assert!(
            read("--address h:1 --depht 3")
                .unwrap_err()
                .contains("--depht is no flag")
        );
        assert!(read("--address").unwrap_err().contains("--name value"));
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
