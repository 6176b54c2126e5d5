//! One client's connection: request after request, each read whole, routed, and answered.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, header};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use crate::body::{BodyDecoder, decompress};
use crate::downstream::{Downstream, Progress, go_on};
use crate::error::Refused;
use crate::exchange::{CLIENT_LEFT, Ending, ErrorForm, Event, EventSink, Exchange, Request, Step};
use crate::head::{Head, take_head};
use crate::limits::{BODY_BYTES_A_SECOND, Limits};
use crate::relay::relay;
use crate::socket::{self, InputEnd};
use crate::upstream::{self, Pool};

/// A client that closes its sending side so soon after its request most likely waits for the answer, as `nc -N` does. TCP
/// cannot tell it from one that has left, so it is asked ([`Progress::probe`]): this one later, others at once.
const HALF_CLOSE_GRACE: Duration = Duration::from_millis(2);
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The parts that all connections of a server share.
pub struct Shared {
    pub limits: Limits,
    pub sink: Arc<dyn EventSink>,
    pub pool: Arc<Pool>,
    /// Requests whose first byte has been read and whose end has not come.
    pub in_flight: AtomicUsize,
    pub next_id: AtomicU64,
}

/// How a connection ends.
enum Close {
    /// As HTTP intends it.
    Clean,
    /// The client may still be sending.
    Linger,
    /// The answer is incomplete, and nothing else shows it.
    Reset,
}

/// Serves a connection until either side ends it.
pub async fn serve(shared: Arc<Shared>, stream: TcpStream, mut draining: watch::Receiver<bool>) {
    let mut buffer = BytesMut::new();
    let close = loop {
        match idle(&shared, &stream, &mut buffer, &mut draining).await {
            Ok(true) => {}
            Ok(false) | Err(_) => break Close::Clean,
        }
        let _in_flight = InFlight::new(&shared.in_flight);
        let is_draining = *draining.borrow();
        match one_request(&shared, &stream, &mut buffer, is_draining).await {
            Ok(None) => {}
            Ok(Some(close)) => break close,
            Err(_) => break Close::Clean,
        }
    };
    match close {
        Close::Clean => {}
        Close::Linger => socket::linger(&stream).await,
        Close::Reset => socket::reset_on_close(&stream),
    }
}

/// Waits for the first byte of a request. False: the connection is over.
async fn idle(
    shared: &Shared,
    stream: &TcpStream,
    buffer: &mut BytesMut,
    draining: &mut watch::Receiver<bool>,
) -> io::Result<bool> {
    if !buffer.is_empty() {
        return Ok(true);
    }
    if *draining.borrow() {
        return Ok(false);
    }
    let deadline = Instant::now() + shared.limits.idle_timeout;
    tokio::select! {
        read = socket::read_some_until(stream, buffer, 0, deadline) => Ok(read? > 0),
        _ = draining.wait_for(|draining| *draining) => Ok(false),
    }
}

struct InFlight<'a>(&'a AtomicUsize);

impl<'a> InFlight<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why there is no request.
enum NoRequest {
    Refused(Refused),
    Left,
}

impl From<Refused> for NoRequest {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// Reads, routes and answers one request. None: another one may follow on this connection.
///
/// # Errors
/// The client has left.
async fn one_request(
    shared: &Arc<Shared>,
    stream: &TcpStream,
    buffer: &mut BytesMut,
    is_draining: bool,
) -> io::Result<Option<Close>> {
    let arrived = Instant::now();
    let head = match read_head(shared, stream, buffer, arrived).await {
        Ok(head) => head,
        Err(why) => return no_request(shared, stream, String::new(), why).await,
    };
    let body = match read_body(shared, stream, buffer, &head).await {
        Ok(body) => body,
        Err(why) => return no_request(shared, stream, head.path, why).await,
    };
    let closes = head.closes || is_draining;
    let progress = Progress::new(head.is_http10);
    let is_head_only = head.method == Method::HEAD;
    let write_timeout = shared.limits.write_timeout;
    let mut down = Downstream::new(stream, &progress, write_timeout, is_head_only, closes);
    let (steps, mut next_step) = mpsc::unbounded_channel();
    let exchange = Arc::new(Exchange {
        id: shared.next_id.fetch_add(1, Ordering::Relaxed),
        request: Request {
            method: head.method,
            path: head.path,
            query: head.query,
            headers: head.headers,
            body,
            arrived,
        },
        steps,
    });
    let mut ended = EndedGuard {
        shared,
        id: exchange.id,
        ending: None,
    };
    shared.sink.push(Event::Arrived(Arc::clone(&exchange)));
    let complete = Instant::now();
    let answered = tokio::select! {
        biased;
        answered = answer(shared, &exchange, &mut next_step, &mut down) => answered,
        () = client_gone(stream, buffer, &progress, complete) => {
            Err(io::ErrorKind::ConnectionAborted.into())
        }
    };
    let ending = answered?;
    let close = if !ending.is_answered {
        Some(Close::Reset)
    } else if closes {
        Some(Close::Linger)
    } else {
        None
    };
    ended.ending = Some(ending);
    Ok(close)
}

/// Reports the end of a request, also where the task is dropped because the server stops.
struct EndedGuard<'a> {
    shared: &'a Shared,
    id: u64,
    ending: Option<Ending>,
}

impl Drop for EndedGuard<'_> {
    fn drop(&mut self) {
        let ending = self.ending.take().unwrap_or(Ending {
            status: CLIENT_LEFT,
            broken: None,
            is_answered: false,
            tail: Bytes::new(),
        });
        self.shared.sink.push(Event::Ended {
            id: self.id,
            ending,
        });
    }
}

async fn read_head(
    shared: &Shared,
    stream: &TcpStream,
    buffer: &mut BytesMut,
    began: Instant,
) -> Result<Head, NoRequest> {
    let deadline = began + shared.limits.head_timeout;
    loop {
        if let Some(head) = take_head(buffer, &shared.limits)? {
            return Ok(head);
        }
        match socket::read_some_until(stream, buffer, 0, deadline).await {
            Ok(0) => return Err(NoRequest::Left),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                return Err(Refused::timed_out("head").into());
            }
            Err(_) => return Err(NoRequest::Left),
        }
    }
}

async fn read_body(
    shared: &Shared,
    stream: &TcpStream,
    buffer: &mut BytesMut,
    head: &Head,
) -> Result<Bytes, NoRequest> {
    let limits = &shared.limits;
    let mut decoder = BodyDecoder::new(head.framing, limits)?;
    let began = Instant::now();
    let mut is_awaited = head.expects_continue;
    while !decoder.advance(buffer)? {
        if is_awaited && buffer.is_empty() {
            go_on(stream, limits.write_timeout)
                .await
                .map_err(|_| NoRequest::Left)?;
        }
        is_awaited = false;
        let earned_s = (decoder.received() / BODY_BYTES_A_SECOND) as u64;
        let deadline = began + limits.body_timeout + Duration::from_secs(earned_s);
        match socket::read_some_until(stream, buffer, decoder.missing(), deadline).await {
            Ok(0) => return Err(NoRequest::Left),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                return Err(Refused::timed_out("body").into());
            }
            Err(_) => return Err(NoRequest::Left),
        }
    }
    Ok(decompress(
        &head.headers,
        decoder.finish(),
        limits.body_bytes_max,
    )?)
}

/// Answers a request that could not be read; nobody knows where the next one begins, so the connection ends.
async fn no_request(
    shared: &Shared,
    stream: &TcpStream,
    path: String,
    why: NoRequest,
) -> io::Result<Option<Close>> {
    let NoRequest::Refused(refused) = why else {
        shared.sink.push(Event::Refused {
            path,
            status: CLIENT_LEFT,
            code: "",
        });
        return Ok(Some(Close::Clean));
    };
    let form = ErrorForm::of(&path);
    shared.sink.push(Event::Refused {
        path,
        status: refused.status.as_u16(),
        code: refused.code,
    });
    let mut headers = HeaderMap::new();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    let progress = Progress::new(false);
    Downstream::new(stream, &progress, shared.limits.write_timeout, false, true)
        .whole(refused.status, &headers, &refused.body(form))
        .await?;
    Ok(Some(Close::Linger))
}

/// Does the router's steps until the client has an answer.
///
/// # Errors
/// The client has left.
async fn answer(
    shared: &Shared,
    exchange: &Arc<Exchange>,
    steps: &mut mpsc::UnboundedReceiver<Step>,
    down: &mut Downstream<'_>,
) -> io::Result<Ending> {
    loop {
        match steps.recv().await {
            Some(Step::Forward(forward)) => {
                let attempt =
                    upstream::attempt(&shared.pool, &exchange.request, &forward, &shared.limits);
                match attempt.await {
                    Ok(mut answer) => {
                        let begin = answer.begin(forward.begin_bytes).await;
                        shared.sink.push(Event::FirstByte {
                            id: exchange.id,
                            begin,
                        });
                        let form = exchange.request.error_form();
                        return relay(answer, &forward, form, &shared.limits, down).await;
                    }
                    Err(failure) => shared.sink.push(Event::Failed {
                        id: exchange.id,
                        failure,
                    }),
                }
            }
            Some(Step::Answer(answer)) => {
                let headers: HeaderMap = answer.headers.into_iter().collect();
                down.whole(answer.status, &headers, &answer.body).await?;
                return Ok(Ending {
                    status: answer.status.as_u16(),
                    broken: None,
                    is_answered: true,
                    tail: Bytes::new(),
                });
            }
            // The exchange holds a sender.
            None => return Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

/// Returns once the client is known to have left.
async fn client_gone(
    stream: &TcpStream,
    buffer: &mut BytesMut,
    progress: &Progress,
    complete: Instant,
) {
    let asks = async {
        match socket::read_ahead(stream, buffer).await {
            InputEnd::Broken => return,
            InputEnd::Enough => {}
            InputEnd::Finished => {
                if progress.is_waiting() && complete.elapsed() < HALF_CLOSE_GRACE {
                    sleep(ASK_AGAIN).await;
                }
                loop {
                    match progress.probe(stream) {
                        Ok(true) => break,
                        Ok(false) => sleep(ASK_AGAIN).await,
                        Err(_) => return,
                    }
                }
            }
        }
        std::future::pending().await
    };
    tokio::select! {
        () = asks => {}
        () = socket::broken(stream) => {}
    }
}
