//! The contract between the proxy and the router that decides: one [`Exchange`] for each request, [`Event`]s that tell how
//! it goes, and [`Step`]s that say what to do next.
//!
//! ```text
//!  a whole request        Arrived ──▶ router ──▶ Step::Forward or Step::Answer
//!  no byte of an answer   Failed  ──▶ router ──▶ Step::Forward (another engine) or Step::Answer
//!  the first byte         FirstByte            (the request will not be sent again)
//!  the end                Ended                (always, once for each Arrived)
//!  refused before that    Refused              (no Arrived came and none will)
//! ```

use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use tokio::sync::mpsc;

/// A request that has arrived as a whole.
#[derive(Debug)]
pub struct Request {
    /// Any token; the router knows which its routes take.
    pub method: Method,
    /// As sent: percent-encoding is not undone.
    pub path: String,
    /// Without the question mark; empty: none.
    pub query: String,
    /// All of the client's.
    pub headers: HeaderMap,
    /// Decompressed.
    pub body: Bytes,
    /// When its first byte was read.
    pub arrived: Instant,
}

impl Request {
    /// The form of the errors that its client expects.
    pub fn error_form(&self) -> ErrorForm {
        ErrorForm::of(&self.path)
    }
}

/// The API whose error objects a client expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorForm {
    /// OpenAI's, which engines use on their own routes too.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

impl ErrorForm {
    /// By the path alone, since a request may be refused before its body has been read.
    pub fn of(path: &str) -> Self {
        match path.strip_prefix("/v1/messages") {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => Self::Anthropic,
            _ => Self::OpenAi,
        }
    }

    /// As the router calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
        }
    }
}

/// A request and the way to answer it.
#[derive(Debug)]
pub struct Exchange {
    /// Unique in the process.
    pub id: u64,
    /// The request.
    pub request: Request,
    pub(crate) steps: mpsc::UnboundedSender<Step>,
}

impl Exchange {
    /// Does the next step. Call it once after `Arrived` and once after each `Failed`; it never waits. It does nothing if the
    /// client has left.
    pub fn proceed(&self, step: Step) {
        drop(self.steps.send(step));
    }
}

/// An instruction of the router.
#[derive(Debug)]
pub enum Step {
    /// Send the request to an engine and its answer to the client.
    Forward(Forward),
    /// Answer without an engine.
    Answer(Answer),
}

/// An attempt on one engine.
#[derive(Clone, Debug)]
pub struct Forward {
    /// Who is asked.
    pub engine: EngineAddress,
    /// Path and query at the engine.
    pub target: String,
    /// Headers for the engine; each replaces the client's of that name.
    pub request_headers: Vec<(HeaderName, HeaderValue)>,
    /// Headers added to the answer.
    pub answer_headers: Vec<(HeaderName, HeaderValue)>,
    /// How much of the answer's begin the router wants to see; at most [`BEGIN_BYTES_MAX`].
    pub begin_bytes: usize,
}

/// Where an engine listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EngineAddress {
    /// A name or an IP address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Whether it speaks TLS (`https://`).
    pub is_tls: bool,
}

/// An answer that comes from no engine.
#[derive(Clone, Debug)]
pub struct Answer {
    /// 200 to 599.
    pub status: StatusCode,
    /// All but those of the framing.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Its length is announced.
    pub body: Bytes,
}

/// How a request goes. Events of one request come in order.
#[derive(Debug)]
pub enum Event {
    /// A request has arrived; it waits for a step.
    Arrived(std::sync::Arc<Exchange>),
    /// The engine gave no byte of an answer; the request waits for another step.
    Failed {
        /// The exchange.
        id: u64,
        /// Why.
        failure: Failure,
    },
    /// The first byte of an engine's answer has arrived.
    FirstByte {
        /// The exchange.
        id: u64,
        /// The begin of the answer's body: as much as [`Forward::begin_bytes`] says, unless the body or the first event of
        /// a stream ends before. It comes before the client gets any of it.
        begin: Bytes,
    },
    /// The request is over.
    Ended {
        /// The exchange.
        id: u64,
        /// How.
        ending: Ending,
    },
    /// A request was refused, or its client left, before it had arrived.
    Refused {
        /// The path, where the head could be read.
        path: String,
        /// 499: the client left.
        status: u16,
        /// `code` of the error object; empty: the client left.
        code: &'static str,
    },
}

/// Takes events. Called on the proxy's thread: it must not wait.
pub trait EventSink: Send + Sync + 'static {
    /// Takes one.
    fn push(&self, event: Event);
}

/// Why an attempt gave no byte of an answer.
#[derive(Clone, Debug)]
pub struct Failure {
    /// For metrics and for the router.
    pub kind: FailureKind,
    /// For logs only: it may name the engine's address.
    pub detail: String,
    /// The status, if it is 500 or more.
    pub status: Option<StatusCode>,
    /// `Retry-After` of such an answer.
    pub retry_after: Option<HeaderValue>,
}

/// The closed set of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// No connection within the timeout, or TLS failed.
    Connect,
    /// The connection ended before the first byte.
    Died,
    /// No first byte within the timeout.
    Timeout,
    /// A status of 500 or more.
    Status,
    /// No usable answer: a redirect, two framings, not HTTP.
    Protocol,
}

impl FailureKind {
    /// A metric's label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Died => "died",
            Self::Timeout => "timeout",
            Self::Status => "status_5xx",
            Self::Protocol => "protocol",
        }
    }
}

/// How a request ended.
#[derive(Clone, Debug)]
pub struct Ending {
    /// The status that the client got; 499: it left before the answer's end.
    pub status: u16,
    /// The engine died after its first byte; the text is for logs only.
    pub broken: Option<String>,
    /// The client got an answer or an error that it can tell from half an answer.
    pub is_answered: bool,
    /// The last bytes of a whole answer of an engine, at most [`TAIL_BYTES`]; empty otherwise.
    pub tail: Bytes,
}

/// How much of an answer's end an [`Ending`] has: enough for the usage that engines report last.
pub const TAIL_BYTES: usize = 4096;

/// The largest [`Forward::begin_bytes`].
pub const BEGIN_BYTES_MAX: usize = 4096;

/// nginx's status of a client that left; never sent.
pub const CLIENT_LEFT: u16 = 499;
