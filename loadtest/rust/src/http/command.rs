//! The subcommands `http-engines` and `http-load`: their flags and output.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::LocalSet;

use super::connection::Counted;
use super::engines::{Answers, serve};
use super::load::{Load, Measured};
use super::requests::Requests;
use crate::args::{Args, CommandError};
use crate::index::cpu::thread_ns;
use crate::latency::Latencies;

/// Printed by `http-engines --help`.
pub const ENGINES_HELP: &str = "\
kvatlas-loadgen http-engines: engines that answer at once, until it is killed

  --engines N        number of engines; each listens on a port of its own; default: 8
  --model NAME       name of their model; default: bench
  --interval-ms X    time between two events of an answer, in ms; default: 20

Prints one line of JSON when ready; its `listen` has all addresses.
";

/// Printed by `http-load --help`.
pub const LOAD_HELP: &str = "\
kvatlas-loadgen http-load: HTTP load on one address; prints one line of JSON

  --pattern NAME     closed, open, turns or burst
  --target H:P       address to load
  --requests FILE    bodies, one a line; each run of 16 @ becomes a new word
  --path PATH        path of the requests; default: /v1/chat/completions
  --count-header H   header of the answers whose values are counted
  --seed N           seed of words and gaps; default: the time
  --seconds X        duration of closed and open, in seconds; default: 5
  --connections N    closed: number of connections; open: largest number; default: 1
  --pause-ms X       closed: shortest time between two requests of a connection, in ms; default: 0
  --rate X           open: requests per second
  --engines H:P,…    turns: addresses of the engines
  --rounds N         turns: number of requests each way; default: 500
  --warm-up N        turns: requests each way before those; default: 50
  --streams N        burst: number of streams; default: 1000

Exit status 1 if nothing was answered.
";

fn run<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandError::Failed(error.to_string()))?;
    LocalSet::new()
        .block_on(&runtime, work)
        .map_err(CommandError::Failed)
}

/// Serves engines until one fails.
///
/// # Errors
/// If the flags are wrong, or a port cannot be served.
pub fn engines(words: &[String]) -> Result<(), CommandError> {
    let mut args = Args::read(words, &[])?;
    let number: usize = args.positive("engines", 8)?;
    let model = args.optional("model").unwrap_or_else(|| "bench".to_owned());
    let interval_ms: f64 = args.value("interval-ms", 20.0)?;
    args.done()?;
    let interval = Duration::try_from_secs_f64(interval_ms / 1e3)
        .map_err(|error| format!("--interval-ms {interval_ms}: {error}"))?;
    run(async {
        let answers = Rc::new(Answers::new(&model, interval));
        let mut listen = Vec::new();
        let mut served = Vec::new();
        for _ in 0..number {
            let listener = TcpListener::bind("127.0.0.1:0")
                .await
                .map_err(|error| error.to_string())?;
            let address = listener.local_addr().map_err(|error| error.to_string())?;
            listen.push(address.to_string());
            served.push(tokio::task::spawn_local(serve(
                listener,
                Rc::clone(&answers),
            )));
        }
        println!("{}", json!({"ready": true, "listen": listen.join(" ")}));
        for engine in served {
            let ended = engine.await.map_err(|error| error.to_string())?;
            ended.map_err(|error| error.to_string())?;
        }
        Ok(())
    })
}

/// Runs one load; the report.
///
/// # Errors
/// If the flags are wrong, or nothing was answered.
pub fn load(words: &[String]) -> Result<Value, CommandError> {
    let mut args = Args::read(words, &[])?;
    let path = args
        .optional("path")
        .unwrap_or_else(|| "/v1/chat/completions".to_owned());
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seed: u64 = args.value("seed", now.map_or(1, |now| now.as_nanos() as u64))?;
    let header = Counted::new(&args.optional("count-header").unwrap_or_default());
    let target = args.text("target")?;
    let file = PathBuf::from(args.text("requests")?);
    let seconds: f64 = args.value("seconds", 5.0)?;
    let lasts = Duration::try_from_secs_f64(seconds)
        .map_err(|error| format!("--seconds {seconds}: {error}"))?;
    let pattern = args.text("pattern")?;
    let connections: usize = args.positive("connections", 1)?;
    let pause = Duration::from_millis(args.value("pause-ms", 0)?);
    let rate: f64 = args.value("rate", 0.0)?;
    let engines = args.optional("engines").unwrap_or_default();
    let rounds: usize = args.positive("rounds", 500)?;
    let warm_up: usize = args.value("warm-up", 50)?;
    let streams: usize = args.positive("streams", 1_000)?;
    args.done()?;
    let requests = Requests::read(&file, &path, seed).map_err(CommandError::Failed)?;
    let load = Load {
        target,
        requests,
        header,
    };
    let measured = match pattern.as_str() {
        "closed" => run(async { Ok(load.closed(connections, lasts, pause).await) })?,
        "open" if rate > 0.0 => run(async { Ok(load.open(rate, lasts, connections, seed).await) })?,
        "open" => return Err("--rate is above 0".to_owned().into()),
        "turns" if engines.is_empty() => return Err("--engines is required".to_owned().into()),
        "turns" => {
            let engines: Vec<&str> = engines.split(',').collect();
            run(load.in_turns(&engines, rounds, warm_up))?
        }
        "burst" => run(async { Ok(load.burst(streams).await) })?,
        other => return Err(format!("--pattern {other}: closed, open, turns or burst").into()),
    };
    if measured.first_event.total() == 0 {
        let problem = measured.first_error.unwrap_or_default();
        return Err(CommandError::Failed(format!(
            "nothing was answered: {problem}"
        )));
    }
    Ok(report(&measured))
}

fn report(measured: &Measured) -> Value {
    json!({
        "requests": measured.first_event.total(),
        "seconds": measured.seconds,
        "first_event_us": quantiles(&measured.first_event),
        "last_byte_us": quantiles(&measured.last_byte),
        "direct_first_event_us": quantiles(&measured.direct),
        "events": measured.events,
        "errors": measured.errors,
        "first_error": measured.first_error,
        "header": measured.header,
        "cpu_s": thread_ns() as f64 / 1e9,
    })
}

fn quantiles(latencies: &Latencies) -> Value {
    json!({
        "p50": latencies.quantile_us(0.5),
        "p90": latencies.quantile_us(0.9),
        "p99": latencies.quantile_us(0.99),
        "max": latencies.max_us(),
    })
}
