//! Calls `FindMatches` over plain HTTP/2 with a minimal client: on a machine with few cores a
//! general-purpose client would dominate the measurement.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{self, SendRequest};
use http::{Method, Request, Version};
use kvatlas_wire::v1::FindMatchesResponse;
use prost::Message as _;
use tokio::net::TcpStream;

use crate::args::Failure;
use crate::flags::Flags;
use crate::fleet::Fleet;
use crate::latency::Latencies;

const PREFIX_LEN: usize = 5;
const WINDOW_BYTES: u32 = 16 << 20;
/// Longest time of the calls before the measured ones.
const WARMUP_MAX: Duration = Duration::from_secs(60);

/// The result of a run.
#[derive(Default)]
pub struct Measured {
    /// Latencies of the calls with a right answer.
    pub latencies: Latencies,
    /// Number of calls that failed or had a wrong answer.
    pub errors: u64,
    /// The first of their errors.
    pub first_error: Option<String>,
    /// Time from the first call to the last answer.
    pub took: Duration,
}

struct Load {
    request: Request<()>,
    questions: Vec<(Bytes, u64)>,
    expected_rows: usize,
    depths: (u32, u32),
}

/// Runs the calls that the flags ask for, on this thread.
///
/// # Errors
/// A connection cannot be made. Failed calls are counted, not raised.
pub async fn run(flags: &Flags, fleet: &Fleet) -> Result<Measured, Failure> {
    let load = Rc::new(Load::new(flags, fleet)?);
    let mut connections = Vec::new();
    for _ in 0..flags.connections {
        connections.push(connect(&flags.address).await?);
    }
    let tasks = flags.connections * flags.concurrency;
    let run = async |calls: u64, lasts| {
        drive(
            &load,
            &connections,
            tasks,
            calls.div_ceil(tasks as u64),
            lasts,
        )
        .await
    };
    run(flags.warmup, WARMUP_MAX).await;
    let calls = if flags.calls == 0 {
        u64::MAX
    } else {
        flags.calls
    };
    Ok(run(calls, Duration::from_secs(flags.seconds)).await)
}

/// Runs the tasks, each for so many calls and so long at most; adds up their results.
async fn drive(
    load: &Rc<Load>,
    connections: &[SendRequest<Bytes>],
    tasks: usize,
    calls: u64,
    lasts: Duration,
) -> Measured {
    let start = Instant::now();
    let local = tokio::task::LocalSet::new();
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let sender = connections[task % connections.len()].clone();
            local.spawn_local(call_until(
                Rc::clone(load),
                sender,
                task,
                calls,
                start + lasts,
            ))
        })
        .collect();
    let mut all = Measured::default();
    local
        .run_until(async {
            for task in tasks {
                match task.await {
                    Ok(part) => {
                        all.latencies.merge(&part.latencies);
                        all.errors += part.errors;
                        all.first_error = all.first_error.take().or(part.first_error);
                    }
                    Err(error) => {
                        all.errors += 1;
                        all.first_error.get_or_insert(error.to_string());
                    }
                }
            }
        })
        .await;
    all.took = start.elapsed();
    all
}

async fn call_until(
    load: Rc<Load>,
    mut sender: SendRequest<Bytes>,
    task: usize,
    calls: u64,
    until: Instant,
) -> Measured {
    let mut mine = Measured::default();
    let mut now = Instant::now();
    // Tasks start apart, so that they do not ask the same question at the same time.
    let start = task as u64 * 97;
    for number in 0..calls {
        if now >= until {
            break;
        }
        let (framed, worker_id) = load.question(start.wrapping_add(number));
        let result = load.call(&mut sender, framed.clone(), *worker_id).await;
        let end = Instant::now();
        match result {
            Ok(()) => mine.latencies.add(end - now),
            Err(error) => {
                mine.errors += 1;
                mine.first_error.get_or_insert(error.to_string());
                if sender.clone().ready().await.is_err() {
                    break;
                }
            }
        }
        now = end;
    }
    mine
}

async fn connect(address: &str) -> Result<SendRequest<Bytes>, Failure> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = client::Builder::new()
        .initial_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .handshake(stream)
        .await?;
    // If it fails, so do its calls.
    tokio::spawn(connection);
    Ok(sender)
}

impl Load {
    fn new(flags: &Flags, fleet: &Fleet) -> Result<Self, Failure> {
        let request = Request::builder()
            .method(Method::POST)
            .version(Version::HTTP_2)
            .uri(format!(
                "http://{}/kvatlas.v1.Indexer/FindMatches",
                flags.address
            ))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?;
        let questions = (0..flags.queries as u64).map(|number| fleet.question(flags, number));
        let all = usize::try_from(flags.workers)?;
        let limit = flags.limit as usize;
        Ok(Self {
            request,
            questions: questions.collect(),
            expected_rows: if limit == 0 { all } else { limit.min(all) },
            depths: (
                u32::try_from(flags.depth)?,
                u32::try_from(fleet.shared_depth())?,
            ),
        })
    }

    fn question(&self, number: u64) -> &(Bytes, u64) {
        &self.questions[(number % self.questions.len() as u64) as usize]
    }

    async fn call(
        &self,
        sender: &mut SendRequest<Bytes>,
        framed: Bytes,
        worker_id: u64,
    ) -> Result<(), Failure> {
        poll_fn(|cx| sender.poll_ready(cx)).await?;
        let (response, mut stream) = sender.send_request(self.request.clone(), false)?;
        stream.send_data(framed, true)?;
        let response = response.await?;
        if let Some(status) = response.headers().get("grpc-status") {
            return Err(format!("status {status:?}: {:?}", response.headers()).into());
        }
        let mut body = response.into_body();
        let mut whole = Bytes::new();
        while let Some(data) = body.data().await {
            let data = data?;
            body.flow_control().release_capacity(data.len())?;
            whole = if whole.is_empty() {
                data
            } else {
                [whole, data].concat().into()
            };
        }
        let trailers = body.trailers().await?.ok_or("no trailers")?;
        if trailers
            .get("grpc-status")
            .is_none_or(|status| status != "0")
        {
            return Err(format!("trailers {trailers:?}").into());
        }
        self.check(&whole, worker_id)
    }

    fn check(&self, framed: &[u8], worker_id: u64) -> Result<(), Failure> {
        let message = framed.get(PREFIX_LEN..).ok_or("no message")?;
        let answer = FindMatchesResponse::decode(message)?;
        let rows = answer.worker_ids.len();
        let right = rows == self.expected_rows
            && answer.worker_ids[0] == worker_id
            && answer.depths[0] == self.depths.0
            && answer.depths[1..]
                .iter()
                .all(|&depth| depth == self.depths.1);
        if right {
            Ok(())
        } else {
            Err(format!("wrong answer of {rows} rows: {answer:?}").into())
        }
    }
}
