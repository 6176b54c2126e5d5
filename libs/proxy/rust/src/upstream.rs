//! Connections to engines: a pool of idle ones for each address, and one attempt of a request up to the first byte of its
//! answer.
//!
//! One read of an engine's answer gives all that has arrived, and so one write to the client: with a channel between the two,
//! as in a general client, each event cost a write of its own. A connection goes back to the pool once its answer has ended
//! well. If it is dropped before, it closes, and the engine stops computing.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use memchr::memmem;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::body::BodyDecoder;
use crate::engine_stream::EngineStream;
use crate::exchange::{BEGIN_BYTES_MAX, EngineAddress, Failure, FailureKind, Forward, Request};
use crate::head::{Framing, parse_length};
use crate::headers;
use crate::limits::Limits;
use crate::socket;
use crate::tls::EngineTls;

/// Engines' servers (uvicorn) close an idle connection after 5 s; it is closed here before.
const IDLE: Duration = Duration::from_secs(4);
const HEAD_BYTES_MAX: usize = 64 << 10;
const HEADERS_MAX: usize = 128;

/// A connection to an engine, and what has been read from it.
struct Connection {
    stream: EngineStream,
    buffer: BytesMut,
    /// A request on it has been answered.
    is_proven: bool,
}

impl Connection {
    /// Whether the engine has neither closed it nor sent something that nobody asked for.
    fn is_usable(&mut self) -> bool {
        self.buffer.is_empty() && self.stream.is_quiet(&mut self.buffer)
    }
}

/// The idle connections to all engines, and what new ones need.
pub struct Pool {
    tls: EngineTls,
    idle: Mutex<HashMap<EngineAddress, Vec<(Connection, Instant)>>>,
}

impl Pool {
    /// No connections yet; `tls` is for engines at `https://`.
    pub fn new(tls: EngineTls) -> Self {
        Self {
            tls,
            idle: Mutex::default(),
        }
    }

    /// An idle connection, the one used last.
    fn take(&self, engine: &EngineAddress) -> Option<Connection> {
        let mut idle = self.idle.lock();
        let connections = idle.get_mut(engine)?;
        while let Some((mut connection, since)) = connections.pop() {
            if since.elapsed() < IDLE && connection.is_usable() {
                return Some(connection);
            }
        }
        None
    }

    fn put(&self, engine: &EngineAddress, connection: Connection) {
        let entry = (connection, Instant::now());
        let mut idle = self.idle.lock();
        match idle.get_mut(engine) {
            Some(connections) => connections.push(entry),
            None => drop(idle.insert(engine.clone(), vec![entry])),
        }
    }

    /// Closes all idle connections.
    pub fn clear(&self) {
        self.idle.lock().clear();
    }

    /// Closes the connections that have been idle for too long; call it every second.
    pub fn sweep(&self) {
        self.idle.lock().retain(|_, connections| {
            connections
                .retain_mut(|(connection, since)| since.elapsed() < IDLE && connection.is_usable());
            !connections.is_empty()
        });
    }
}

/// The head of an engine's answer.
struct AnswerHead {
    status: StatusCode,
    headers: HeaderMap,
    /// None: the body ends where the connection does.
    framing: Option<Framing>,
    closes: bool,
}

/// An engine's answer whose first bytes have arrived.
pub struct EngineAnswer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub first: Bytes,
    pub body: AnswerBody,
}

impl EngineAnswer {
    /// The answer's begin, `size` bytes of it: fewer if the body or the first event of a stream ends before. More is read
    /// for it if the first bytes are not enough. If the engine dies then, the reader of the rest finds out.
    pub async fn begin(&mut self, size: usize) -> Bytes {
        let size = size.min(BEGIN_BYTES_MAX);
        if size == 0 {
            return Bytes::new();
        }
        let is_stream = headers::is_event_stream(&self.headers);
        let is_event = |bytes: &[u8]| {
            is_stream
                && (memmem::find(bytes, b"\n\n").is_some()
                    || memmem::find(bytes, b"\n\r\n").is_some())
        };
        while self.first.len() < size && !is_event(&self.first) && !self.body.is_ended() {
            match self.body.next().await {
                Ok(Some(next)) => self.first = [&self.first[..], &next].concat().into(),
                Ok(None) | Err(_) => break,
            }
        }
        self.first.slice(..size.min(self.first.len()))
    }
}

/// The rest of an answer. Dropped before its end, it takes the connection down.
pub struct AnswerBody {
    connection: Connection,
    /// None: the body ends where the connection does.
    decoder: Option<BodyDecoder>,
    is_ended: bool,
    closes: bool,
    engine: EngineAddress,
    pool: Arc<Pool>,
    between_bytes_timeout: Option<Duration>,
}

impl AnswerBody {
    /// False: the body ends where the connection does, so that an engine that dies looks like one that has finished.
    pub fn is_delimited(&self) -> bool {
        self.decoder.is_some()
    }

    /// Whether the bytes that were returned last were the end of a delimited body.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// All bytes that have arrived, at least one; none: the body has ended.
    ///
    /// # Errors
    /// The engine died, or sent nothing for too long; the text is for logs only.
    pub async fn next(&mut self) -> Result<Option<Bytes>, String> {
        loop {
            let Connection { stream, buffer, .. } = &mut self.connection;
            let data = match &mut self.decoder {
                Some(_) if self.is_ended => return Ok(None),
                Some(decoder) => {
                    let advanced = decoder.advance(buffer);
                    self.is_ended = advanced.map_err(|refused| refused.message)?;
                    decoder.take_received()
                }
                None => buffer.split().freeze(),
            };
            if !data.is_empty() {
                return Ok(Some(data));
            }
            if self.is_ended {
                return Ok(None);
            }
            match stream.read_some(buffer, self.between_bytes_timeout).await {
                Ok(0) if self.decoder.is_none() => return Ok(None),
                Ok(0) => return Err("the connection was closed inside an answer".to_owned()),
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Returns the connection to the pool; the body has ended.
    pub fn finish(self) {
        if self.is_ended && !self.closes && self.connection.buffer.is_empty() {
            self.pool.put(&self.engine, self.connection);
        }
    }
}

/// Sends a request to an engine and waits for the first byte of the answer's body.
///
/// # Errors
/// No byte arrived; the request may be sent to another engine.
pub async fn attempt(
    pool: &Arc<Pool>,
    client: &Request,
    forward: &Forward,
    limits: &Limits,
) -> Result<EngineAnswer, Failure> {
    let attempt = attempt_unlimited(pool, client, forward, limits);
    let Some(limit) = limits.first_byte_timeout else {
        return attempt.await;
    };
    timeout(limit, attempt)
        .await
        .unwrap_or_else(|_| Err(failure(FailureKind::Timeout, "no first byte in time")))
}

async fn attempt_unlimited(
    pool: &Arc<Pool>,
    client: &Request,
    forward: &Forward,
    limits: &Limits,
) -> Result<EngineAnswer, Failure> {
    let mut connection = match pool.take(&forward.engine) {
        Some(connection) => connection,
        None => connect(&pool.tls, &forward.engine, limits).await?,
    };
    let head = request_head(client, forward);
    let mut slices = [IoSlice::new(&head), IoSlice::new(&client.body)];
    let limit = limits.first_byte_timeout.unwrap_or(Duration::MAX);
    let sent = connection.stream.write_all(&mut slices, limit).await;
    // An engine may refuse a large body before it has read it.
    let answer = match (read_head(&mut connection, &client.method).await, sent) {
        (Err(failure), _) if is_refusal(&connection, &failure) => return Err(refused(&failure)),
        (Err(failure), Ok(())) => return Err(failure),
        (Err(_), Err(error)) => return Err(failure(FailureKind::Died, error.to_string())),
        (Ok(answer), _) => answer,
    };
    connection.is_proven = true;
    check(&answer)?;
    let mut body = AnswerBody {
        connection,
        decoder: answer.framing.map(BodyDecoder::unlimited),
        is_ended: false,
        closes: answer.closes,
        engine: forward.engine.clone(),
        pool: Arc::clone(pool),
        between_bytes_timeout: limits.between_bytes_timeout,
    };
    let first = body
        .next()
        .await
        .map_err(|error| failure(FailureKind::Died, error))?;
    let may_be_empty = client.method == Method::HEAD || answer.status == StatusCode::NO_CONTENT;
    if first.is_none() && answer.status.is_success() && !may_be_empty {
        return Err(failure(FailureKind::Died, "an answer without a body"));
    }
    Ok(EngineAnswer {
        status: answer.status,
        headers: answer.headers,
        first: first.unwrap_or_default(),
        body,
    })
}

fn request_head(client: &Request, forward: &Forward) -> Vec<u8> {
    let mut head = Vec::with_capacity(512);
    let mut line = |parts: [&[u8]; 3]| {
        for part in parts {
            head.extend_from_slice(part);
        }
        head.extend_from_slice(b"\r\n");
    };
    let request = [client.method.as_str(), " ", &forward.target].concat();
    line([request.as_bytes(), b" ", b"HTTP/1.1"]);
    line([b"host", b": ", headers::host_of(&forward.engine).as_bytes()]);
    if !client.body.is_empty() || client.method == Method::POST {
        line([
            b"content-length",
            b": ",
            client.body.len().to_string().as_bytes(),
        ]);
        if !client.headers.contains_key(header::CONTENT_TYPE) {
            // The body was read as JSON, so that is its type if the client named none.
            line([b"content-type", b": ", b"application/json"]);
        }
    }
    headers::upstream(&client.headers, forward, |name, value| {
        line([name.as_str().as_bytes(), b": ", value.as_bytes()]);
    });
    head.extend_from_slice(b"\r\n");
    head
}

async fn connect(
    tls: &EngineTls,
    engine: &EngineAddress,
    limits: &Limits,
) -> Result<Connection, Failure> {
    let host = engine.host.trim_matches(['[', ']']);
    let connecting = async {
        let stream = TcpStream::connect((host, engine.port)).await?;
        socket::send_at_once(&stream);
        if !engine.is_tls {
            return Ok(EngineStream::Plain(stream));
        }
        match tls.connect(host, stream).await {
            Ok(stream) => Ok(EngineStream::Tls(Box::new(stream))),
            Err(error) => Err(io::Error::other(format!("TLS: {error}"))),
        }
    };
    let stream = match timeout(limits.connect_timeout, connecting).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(failure(FailureKind::Connect, error.to_string())),
        Err(_) => return Err(failure(FailureKind::Connect, "no connection in time")),
    };
    Ok(Connection {
        stream,
        buffer: BytesMut::new(),
        is_proven: false,
    })
}

/// Whether a connection that ended without a byte ended because the engine refused the handshake.
fn is_refusal(connection: &Connection, failure: &Failure) -> bool {
    failure.kind == FailureKind::Died
        && !connection.is_proven
        && connection.buffer.is_empty()
        && connection.stream.may_be_refused()
}

fn refused(reason: &Failure) -> Failure {
    let detail = format!(
        "TLS: the engine ended the handshake; it may demand a client certificate: {}",
        reason.detail
    );
    failure(FailureKind::Connect, detail)
}

async fn read_head(connection: &mut Connection, method: &Method) -> Result<AnswerHead, Failure> {
    let Connection { stream, buffer, .. } = connection;
    loop {
        if let Some(end) = memmem::find(buffer, b"\r\n\r\n").map(|at| at + 4) {
            let raw = buffer.split_to(end).freeze();
            let head = parse(&raw, method)
                .ok_or_else(|| failure(FailureKind::Protocol, "a malformed head"))?;
            if !head.status.is_informational() {
                return Ok(head);
            }
            continue;
        }
        if buffer.len() > HEAD_BYTES_MAX || !could_be_http(buffer) {
            return Err(failure(FailureKind::Protocol, "a malformed head"));
        }
        match stream.read_some(buffer, None).await {
            Ok(0) => return Err(failure(FailureKind::Died, "the connection was closed")),
            Ok(_) => {}
            Err(error) => return Err(failure(FailureKind::Died, error.to_string())),
        }
    }
}

fn could_be_http(start: &[u8]) -> bool {
    let version = b"HTTP/1.";
    let length = start.len().min(version.len());
    start[..length] == version[..length]
}

/// None: malformed, or framed in a way that two clients could read in two ways.
fn parse(raw: &Bytes, method: &Method) -> Option<AnswerHead> {
    let mut slots = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut slots);
    let complete = response.parse(raw).ok()?.is_complete();
    let status = StatusCode::from_u16(response.code?).ok()?;
    let mut headers = HeaderMap::with_capacity(response.headers.len());
    for each in response.headers.iter() {
        let name = HeaderName::from_bytes(each.name.as_bytes()).ok()?;
        let value = HeaderValue::from_maybe_shared(raw.slice_ref(each.value)).ok()?;
        headers.append(name, value);
    }
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let bodyless = *method == Method::HEAD
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED
        || status.is_informational();
    let framing = match (lengths.next(), codings.next()) {
        _ if bodyless => Some(Framing::Length(0)),
        (None, None) => None,
        (Some(length), None) => Some(Framing::Length(parse_length(length.as_bytes())?)),
        (None, Some(coding)) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            Some(Framing::Chunked)
        }
        _ => return None,
    };
    if !complete || lengths.next().is_some() || codings.next().is_some() {
        return None;
    }
    let closes = response.version == Some(0)
        || crate::head::names_token(&headers, &header::CONNECTION, "close");
    Some(AnswerHead {
        status,
        headers,
        framing,
        closes,
    })
}

/// Refuses answers that are none: a failure of the engine's own, a redirect.
fn check(head: &AnswerHead) -> Result<(), Failure> {
    let status = head.status;
    // 501 is an answer: every engine of the model would give it, and none has failed.
    if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED {
        return Err(Failure {
            kind: FailureKind::Status,
            detail: format!("status {}", status.as_u16()),
            status: Some(status),
            retry_after: head.headers.get(header::RETRY_AFTER).cloned(),
        });
    }
    if status.is_redirection() {
        let detail = format!("status {}", status.as_u16());
        return Err(failure(FailureKind::Protocol, detail));
    }
    Ok(())
}

fn failure(kind: FailureKind, detail: impl Into<String>) -> Failure {
    Failure {
        kind,
        detail: detail.into(),
        status: None,
        retry_after: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Option<AnswerHead> {
        parse(&Bytes::copy_from_slice(text.as_bytes()), &Method::POST)
    }

    #[test]
    fn answers_with_two_framings_are_malformed() {
        let whole = head("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n").expect("valid");
        assert_eq!(whole.framing, Some(Framing::Length(2)));
        let chunked = head("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n").expect("valid");
        assert_eq!(chunked.framing, Some(Framing::Chunked));
        let until_close = head("HTTP/1.0 200 OK\r\n\r\n").expect("valid");
        assert!(until_close.framing.is_none() && until_close.closes);
        for headers in [
            "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: 2\r\nContent-Length: 2\r\n",
            "Content-Length: -2\r\n",
            "Transfer-Encoding: gzip\r\n",
            "X : y\r\n",
        ] {
            assert!(
                head(&format!("HTTP/1.1 200 OK\r\n{headers}\r\n")).is_none(),
                "{headers}"
            );
        }
        assert!(head("SMTP ready\r\n\r\n").is_none());
    }

    #[test]
    fn a_head_that_cannot_be_http_is_seen_at_once() {
        assert!(could_be_http(b""));
        assert!(could_be_http(b"HT"));
        assert!(could_be_http(b"HTTP/1.1 200"));
        assert!(!could_be_http(b"SSH-"));
    }
}
