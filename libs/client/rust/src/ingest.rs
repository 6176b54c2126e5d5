//! One `kvatlas.v1.Indexer.Ingest` call over a connection of its own: requests out, one answer to each
//! back, in order.
//!
//! Appends of any number of tasks share it. Each is cut into requests and is answered once, when the
//! last of them has been. When the stream ends, for whatever reason, every append that waits is told
//! why; whoever has more to send opens another one. Nothing is sent again by itself. A server that is
//! silent for too long while an append waits ends it, too: nobody knows what it is doing. One that
//! answers request after request is slow, and giving it up would only have it do the same again.

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

use crate::call::{not_grpc, outcome, request};
use crate::ingest_requests::{PREFIX_LEN, encode};
use crate::link::dial;
use crate::{address, call, runtime};

const PATH: &str = "/kvatlas.v1.Indexer/Ingest";
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Longer than anyone waits; beyond it a timer would overflow.
const ANSWER_MAX: Duration = Duration::from_secs(24 * 3_600);
/// An answer names the workers of one request; nobody has so many that it gets near.
const ANSWER_BYTES_MAX: usize = 16 << 20;

type Answered = Box<dyn FnOnce(Result<IngestResponse, Status>) + Send>;

/// One append on its way: encoded requests, and who waits for the answers to all of them.
struct Append {
    requests: Vec<Bytes>,
    waiting: Waiting,
}

/// What has been answered of an append.
struct Waiting {
    since: Instant,
    left: usize,
    answer: IngestResponse,
    answered: Answered,
}

/// How long the server may be silent while an append waits.
#[derive(Clone, Copy)]
struct Patience(Duration);

impl Patience {
    /// When the append that is next will have waited for too long since the server was `heard`; far
    /// off, if there is none.
    fn until(self, waiting: &VecDeque<Waiting>, heard: Instant) -> Instant {
        let since = waiting.front().map_or_else(Instant::now, |next| next.since);
        since.max(heard) + self.0
    }

    fn over(self) -> Status {
        let limit_s = self.0.as_secs_f64();
        Status::deadline_exceeded(format!("it does not answer within {limit_s} s"))
    }
}

/// See the module. Connects at once, in the background; dropped or closed, it ends.
pub struct IngestStream {
    appends: Mutex<Option<UnboundedSender<Append>>>,
    /// Why the call has ended, for whoever comes too late to be told: a connection that is refused
    /// can be over before the first append.
    over: Arc<OnceLock<Status>>,
}

impl IngestStream {
    /// Opens a call to the indexer at `host:port`. Whether it can be reached, the appends are told.
    ///
    /// `answer_max`: connected, it may be silent for so long while an append waits.
    ///
    /// # Errors
    /// INVALID_ARGUMENT: no `host:port`; RESOURCE_EXHAUSTED: no I/O thread.
    pub fn open(address: &str, answer_max: Duration) -> Result<Self, Status> {
        let uri = address::uri(address, PATH)?;
        let (appends, coming) = unbounded_channel();
        let patience = Patience(answer_max.min(ANSWER_MAX));
        let over = Arc::new(OnceLock::new());
        let told = Arc::clone(&over);
        runtime::open()?.spawn(run(address.to_owned(), uri, patience, coming, told));
        let appends = Mutex::new(Some(appends));
        Ok(Self { appends, over })
    }

    /// The call has ended: `append` would only fail.
    pub fn is_over(&self) -> bool {
        self.lock().as_ref().is_none_or(UnboundedSender::is_closed)
    }

    /// Sends records, framed as events.proto says, after those of earlier appends.
    ///
    /// `answered` is called exactly once, on the I/O thread, which it must not hold up: with the
    /// answers to all requests taken together (counts added, the first rejection, all positions), or
    /// with the status by which the call ended.
    ///
    /// # Errors
    /// UNAVAILABLE: the call had ended before, and why; INVALID_ARGUMENT: a record of 4 GiB.
    /// `answered` is not called then.
    pub fn append<'a>(
        &self,
        records: impl IntoIterator<Item = &'a [u8]>,
        answered: impl FnOnce(Result<IngestResponse, Status>) + Send + 'static,
    ) -> Result<(), Status> {
        let requests = encode(records)?;
        let waiting = Waiting {
            since: Instant::now(),
            left: requests.len(),
            answer: IngestResponse::default(),
            answered: Box::new(answered),
        };
        let ended = || {
            let why = self.over.get().map(Status::message);
            Status::unavailable(why.unwrap_or("the stream has ended"))
        };
        let appends = self.lock();
        let appends = appends.as_ref().ok_or_else(ended)?;
        let append = Append { requests, waiting };
        appends.send(append).map_err(|_| ended())
    }

    /// Ends the call; appends that wait are CANCELLED.
    pub fn close(&self) {
        self.lock().take();
    }

    fn lock(&self) -> MutexGuard<'_, Option<UnboundedSender<Append>>> {
        // What happens under the lock cannot be left half done by a panic.
        self.appends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn run(
    address: String,
    uri: Uri,
    patience: Patience,
    mut appends: UnboundedReceiver<Append>,
    told: Arc<OnceLock<Status>>,
) {
    let mut waiting = VecDeque::new();
    let over = converse(&address, &uri, patience, &mut appends, &mut waiting).await;
    // Before anybody can find the stream closed.
    let over = told.get_or_init(|| over);
    appends.close();
    while let Some(append) = appends.recv().await {
        waiting.push_back(append.waiting);
    }
    for each in waiting {
        (each.answered)(Err(over.clone()));
    }
}

/// Sends and receives until the call is over, and says why it is.
async fn converse(
    address: &str,
    uri: &Uri,
    patience: Patience,
    appends: &mut UnboundedReceiver<Append>,
    waiting: &mut VecDeque<Waiting>,
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
        Ok(mut sender) => sender.send_request(request(uri, None), false),
        Err(error) => Err(error),
    };
    let over = match begun {
        Ok((head, requests)) => {
            let answers = Answers::to(head);
            exchange(requests, answers, patience, appends, waiting).await
        }
        Err(error) => lost(&error),
    };
    connection.abort();
    over
}

async fn exchange(
    mut requests: SendStream<Bytes>,
    mut answers: Answers,
    patience: Patience,
    appends: &mut UnboundedReceiver<Append>,
    waiting: &mut VecDeque<Waiting>,
) -> Status {
    // What came while there was no connection has not waited for the server yet.
    let mut heard = Instant::now();
    let mut sends = true;
    loop {
        tokio::select! {
            append = appends.recv(), if sends => match append {
                Some(append) => {
                    waiting.push_back(append.waiting);
                    // When this fails the call is over, and `answers` comes to know why.
                    sends = append
                        .requests
                        .into_iter()
                        .all(|request| requests.send_data(request, false).is_ok());
                }
                None => return Status::cancelled("the stream was ended on this side"),
            },
            () = sleep_until(patience.until(waiting, heard)), if !waiting.is_empty() => {
                return patience.over();
            }
            answer = answers.next() => match answer.and_then(|answer| settle(waiting, answer)) {
                Ok(()) => heard = Instant::now(),
                Err(over) => return over,
            },
        }
    }
}

/// Gives an answer to the append that is next.
fn settle(waiting: &mut VecDeque<Waiting>, answer: IngestResponse) -> Result<(), Status> {
    let Some(next) = waiting.front_mut() else {
        return Err(Status::internal("an answer to no request"));
    };
    next.left -= 1;
    let all = &mut next.answer;
    // What a stranger counts may be anything.
    all.accepted = all.accepted.saturating_add(answer.accepted);
    all.rejected = all.rejected.saturating_add(answer.rejected);
    if all.first_rejection.is_empty() {
        all.first_rejection = answer.first_rejection;
    }
    all.positions.extend(answer.positions);
    if next.left == 0
        && let Some(done) = waiting.pop_front()
    {
        (done.answered)(Ok(done.answer));
    }
    Ok(())
}

/// The other direction of the call.
struct Answers {
    body: Body,
    received: BytesMut,
}

enum Body {
    Awaited(ResponseFuture),
    Open(RecvStream),
}

impl Answers {
    fn to(head: ResponseFuture) -> Self {
        Self {
            body: Body::Awaited(head),
            received: BytesMut::new(),
        }
    }

    /// The next answer; Err: the call is over. Loses nothing when it is dropped while it waits.
    async fn next(&mut self) -> Result<IngestResponse, Status> {
        loop {
            if let Some(answer) = self.whole()? {
                return Ok(answer);
            }
            match &mut self.body {
                Body::Awaited(head) => {
                    let (head, body) = head.await.map_err(|error| lost(&error))?.into_parts();
                    if head.status != StatusCode::OK {
                        return Err(not_grpc(head.status));
                    }
                    if head.headers.contains_key("grpc-status") {
                        return Err(ended(Some(&head.headers)));
                    }
                    self.body = Body::Open(body);
                }
                Body::Open(body) => match body.data().await {
                    Some(data) => {
                        let data = data.map_err(|error| lost(&error))?;
                        let room = body.flow_control().release_capacity(data.len());
                        room.map_err(|error| lost(&error))?;
                        self.received.extend_from_slice(&data);
                    }
                    None => {
                        let trailers = body.trailers().await.map_err(|error| lost(&error))?;
                        return Err(ended(trailers.as_ref()));
                    }
                },
            }
        }
    }

    /// Takes an answer from what was received, once it is whole.
    fn whole(&mut self) -> Result<Option<IngestResponse>, Status> {
        let Some((prefix, rest)) = self.received.split_first_chunk::<PREFIX_LEN>() else {
            return Ok(None);
        };
        let [compressed, a, b, c, d] = *prefix;
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if compressed != 0 || len > ANSWER_BYTES_MAX {
            return Err(Status::internal("an answer that is compressed or too long"));
        }
        if rest.len() < len {
            return Ok(None);
        }
        let message = self.received.split_to(PREFIX_LEN + len);
        let answer = IngestResponse::decode(&message[PREFIX_LEN..]);
        answer.map(Some).map_err(|error| {
            Status::internal(format!("an answer that is no IngestResponse: {error}"))
        })
    }
}

/// How the call was lost. A server that is stopped resets its streams as cancelled, and on this side nobody has
/// cancelled: the other side is gone, as when its connection is.
fn lost(error: &h2::Error) -> Status {
    match call::status(error) {
        status if status.code() == Code::Cancelled => Status::unavailable(status.message()),
        status => status,
    }
}

/// Why the server ended the call; it never does of itself when all is well.
fn ended(trailers: Option<&HeaderMap>) -> Status {
    match outcome(trailers) {
        Ok(()) => Status::unavailable("the stream was ended on the other side"),
        Err(status) => status,
    }
}
