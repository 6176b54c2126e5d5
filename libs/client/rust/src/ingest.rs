//! One `Ingest` call over a connection of its own: requests out, one answer to each back, in order.
//!
//! Any number of tasks append. An append is cut into requests and completes once, when the last of
//! them is answered. When the stream ends, every append that waits fails with the reason, and the
//! caller opens another stream. Nothing is sent again automatically.
//!
//! A server that is silent for too long while an append waits ends the stream, because its state is
//! unknown. A server that answers request after request is only slow: a new stream would send it the
//! same work again.

mod requests;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, StatusCode, Uri};
use kvatlas_wire::v1::IngestResponse;
use prost::Message;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until, timeout};
use tonic::{Code, Status};

use crate::connection::dial;
use crate::grpc::{ANSWER_BYTES_MAX, PREFIX_BYTES, WAIT_MAX};
use crate::{address, grpc, io_thread};

const PATH: &str = "/kvatlas.v1.Indexer/Ingest";
const CONNECT_MAX: Duration = Duration::from_secs(5);

type Done = Box<dyn FnOnce(Result<IngestResponse, Status>) + Send>;

/// One append on its way to the server.
struct Append {
    requests: Vec<Bytes>,
    pending: Pending,
}

/// An append whose requests are not all answered.
struct Pending {
    since: Instant,
    unanswered: usize,
    answer: IngestResponse,
    done: Done,
}

/// Limit of the server's silence while an append waits.
#[derive(Clone, Copy)]
struct SilenceLimit(Duration);

impl SilenceLimit {
    /// Returns when the first pending append will have waited too long since `last_answer`; without
    /// one, a time in the future.
    fn deadline(self, pending: &VecDeque<Pending>, last_answer: Instant) -> Instant {
        let since = pending.front().map_or_else(Instant::now, |next| next.since);
        since.max(last_answer) + self.0
    }

    fn exceeded(self) -> Status {
        let limit_s = self.0.as_secs_f64();
        Status::deadline_exceeded(format!("it does not answer within {limit_s} s"))
    }
}

/// An `Ingest` call; see the module. Dropping or closing it ends the call.
pub struct IngestStream {
    appends: Mutex<Option<UnboundedSender<Append>>>,
    /// Why the call has ended. A refused connection can end it before the first append.
    end: Arc<OnceLock<Status>>,
}

impl IngestStream {
    /// Opens a call to the indexer at `host:port`; it connects in the background. Appends fail if it
    /// cannot connect.
    ///
    /// `silence_max`: how long a connected server may be silent while an append waits.
    ///
    /// # Errors
    /// INVALID_ARGUMENT: `address` is not `host:port`; RESOURCE_EXHAUSTED: no I/O thread.
    pub fn open(address: &str, silence_max: Duration) -> Result<Self, Status> {
        let uri = address::uri(address, PATH)?;
        let (appends, receiver) = unbounded_channel();
        let limit = SilenceLimit(silence_max.min(WAIT_MAX));
        let end = Arc::new(OnceLock::new());
        let shared_end = Arc::clone(&end);
        io_thread::open()?.spawn(run(address.to_owned(), uri, limit, receiver, shared_end));
        let appends = Mutex::new(Some(appends));
        Ok(Self { appends, end })
    }

    /// Returns whether the call has ended, so `append` would fail.
    pub fn is_over(&self) -> bool {
        self.lock().as_ref().is_none_or(UnboundedSender::is_closed)
    }

    /// Sends records, framed as in events.proto, after those of earlier appends.
    ///
    /// `done` is called exactly once, on the I/O thread, which it must not block: with the combined
    /// answers to all requests (counts added, the first rejection, all positions), or with the status
    /// that ended the call.
    ///
    /// # Errors
    /// UNAVAILABLE: the call had ended before, with the reason; INVALID_ARGUMENT: a record of 4 GiB or
    /// more. `done` is not called then.
    pub fn append<'a>(
        &self,
        records: impl IntoIterator<Item = &'a [u8]>,
        done: impl FnOnce(Result<IngestResponse, Status>) + Send + 'static,
    ) -> Result<(), Status> {
        let requests = requests::encode(records)?;
        let pending = Pending {
            since: Instant::now(),
            unanswered: requests.len(),
            answer: IngestResponse::default(),
            done: Box::new(done),
        };
        let ended = || {
            let reason = self.end.get().map(Status::message);
            Status::unavailable(reason.unwrap_or("the stream has ended"))
        };
        let appends = self.lock();
        let appends = appends.as_ref().ok_or_else(ended)?;
        let append = Append { requests, pending };
        appends.send(append).map_err(|_| ended())
    }

    /// Ends the call; appends that wait fail with CANCELLED.
    pub fn close(&self) {
        self.lock().take();
    }

    fn lock(&self) -> MutexGuard<'_, Option<UnboundedSender<Append>>> {
        // A panic under the lock leaves nothing half done.
        self.appends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn run(
    address: String,
    uri: Uri,
    limit: SilenceLimit,
    mut appends: UnboundedReceiver<Append>,
    shared_end: Arc<OnceLock<Status>>,
) {
    let mut pending = VecDeque::new();
    let end = run_call(&address, &uri, limit, &mut appends, &mut pending).await;
    // Set before anybody can find the stream closed.
    let end = shared_end.get_or_init(|| end);
    appends.close();
    while let Some(append) = appends.recv().await {
        pending.push_back(append.pending);
    }
    for each in pending {
        (each.done)(Err(end.clone()));
    }
}

/// Connects, then sends and receives until the call ends; returns the reason.
async fn run_call(
    address: &str,
    uri: &Uri,
    limit: SilenceLimit,
    appends: &mut UnboundedReceiver<Append>,
    pending: &mut VecDeque<Pending>,
) -> Status {
    let (sender, connection) = match timeout(CONNECT_MAX, dial(address)).await {
        Ok(Ok(dialled)) => dialled,
        Ok(Err(error)) => return Status::unavailable(error.to_string()),
        Err(_) => {
            let limit_s = CONNECT_MAX.as_secs();
            return Status::unavailable(format!("no connection within {limit_s} s"));
        }
    };
    let connection = tokio::spawn(connection);
    let begun = match sender.ready().await {
        Ok(mut sender) => sender.send_request(grpc::request(uri, None), false),
        Err(error) => Err(error),
    };
    let end = match begun {
        Ok((head, requests)) => {
            let answers = Answers::new(head);
            exchange(requests, answers, limit, appends, pending).await
        }
        Err(error) => connection_status(&error),
    };
    connection.abort();
    end
}

async fn exchange(
    mut requests: SendStream<Bytes>,
    mut answers: Answers,
    limit: SilenceLimit,
    appends: &mut UnboundedReceiver<Append>,
    pending: &mut VecDeque<Pending>,
) -> Status {
    // Appends from before the connection have not waited for the server yet.
    let mut last_answer = Instant::now();
    let mut sends = true;
    loop {
        tokio::select! {
            append = appends.recv(), if sends => match append {
                Some(append) => {
                    pending.push_back(append.pending);
                    // If this fails the call has ended, and `answers` returns the reason.
                    sends = append
                        .requests
                        .into_iter()
                        .all(|request| requests.send_data(request, false).is_ok());
                }
                None => return Status::cancelled("the stream was ended on this side"),
            },
            () = sleep_until(limit.deadline(pending, last_answer)), if !pending.is_empty() => {
                return limit.exceeded();
            }
            answer = answers.next() => match answer.and_then(|answer| add_answer(pending, answer)) {
                Ok(()) => last_answer = Instant::now(),
                Err(end) => return end,
            },
        }
    }
}

/// Adds an answer to the first pending append, and completes the append if it is the last one.
fn add_answer(pending: &mut VecDeque<Pending>, answer: IngestResponse) -> Result<(), Status> {
    let Some(next) = pending.front_mut() else {
        return Err(Status::internal("an answer to no request"));
    };
    next.unanswered -= 1;
    let sum = &mut next.answer;
    // A foreign server may send any numbers.
    sum.accepted = sum.accepted.saturating_add(answer.accepted);
    sum.rejected = sum.rejected.saturating_add(answer.rejected);
    if sum.first_rejection.is_empty() {
        sum.first_rejection = answer.first_rejection;
    }
    sum.positions.extend(answer.positions);
    if next.unanswered == 0
        && let Some(answered) = pending.pop_front()
    {
        (answered.done)(Ok(answered.answer));
    }
    Ok(())
}

/// The receiving direction of the call.
struct Answers {
    body: Body,
    received: BytesMut,
}

enum Body {
    Awaited(ResponseFuture),
    Open(RecvStream),
}

impl Answers {
    fn new(head: ResponseFuture) -> Self {
        Self {
            body: Body::Awaited(head),
            received: BytesMut::new(),
        }
    }

    /// Returns the next answer; Err: the call has ended. Cancel safe.
    async fn next(&mut self) -> Result<IngestResponse, Status> {
        loop {
            if let Some(answer) = self.take_complete()? {
                return Ok(answer);
            }
            match &mut self.body {
                Body::Awaited(head) => {
                    let (head, body) = head
                        .await
                        .map_err(|error| connection_status(&error))?
                        .into_parts();
                    if head.status != StatusCode::OK {
                        return Err(grpc::not_grpc(head.status));
                    }
                    if head.headers.contains_key("grpc-status") {
                        return Err(end_status(Some(&head.headers)));
                    }
                    self.body = Body::Open(body);
                }
                Body::Open(body) => match body.data().await {
                    Some(data) => {
                        let data = data.map_err(|error| connection_status(&error))?;
                        let room = body.flow_control().release_capacity(data.len());
                        room.map_err(|error| connection_status(&error))?;
                        self.received.extend_from_slice(&data);
                    }
                    None => {
                        let trailers = body.trailers().await;
                        let trailers = trailers.map_err(|error| connection_status(&error))?;
                        return Err(end_status(trailers.as_ref()));
                    }
                },
            }
        }
    }

    /// Takes one answer from the received bytes, if it is complete.
    fn take_complete(&mut self) -> Result<Option<IngestResponse>, Status> {
        let Some((prefix, rest)) = self.received.split_first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let [compressed, length @ ..] = *prefix;
        let length = u32::from_be_bytes(length) as usize;
        if compressed != 0 || length > ANSWER_BYTES_MAX {
            return Err(Status::internal("an answer that is compressed or too long"));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let message = self.received.split_to(PREFIX_BYTES + length);
        let answer = IngestResponse::decode(&message[PREFIX_BYTES..]);
        answer.map(Some).map_err(|error| {
            Status::internal(format!("an answer that is not an IngestResponse: {error}"))
        })
    }
}

/// Returns the status of a lost connection. A server that stops resets its streams as cancelled; this
/// side has cancelled nothing, so the server is gone: UNAVAILABLE.
fn connection_status(error: &h2::Error) -> Status {
    match grpc::status(error) {
        status if status.code() == Code::Cancelled => Status::unavailable(status.message()),
        status => status,
    }
}

/// Returns why the server ended the call; a healthy server never does.
fn end_status(trailers: Option<&HeaderMap>) -> Status {
    match grpc::outcome(trailers) {
        Ok(()) => Status::unavailable("the stream was ended on the other side"),
        Err(status) => status,
    }
}
