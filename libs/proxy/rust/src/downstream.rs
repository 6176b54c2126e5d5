//! Writes answers to a client: heads, whole bodies, chunks.

use std::io::{self, IoSlice, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode, header};
use tokio::net::TcpStream;

use crate::socket;

#[repr(u8)]
enum Phase {
    /// Nothing has been written.
    Waiting,
    /// Whole events have been written, and nothing behind them.
    BetweenEvents,
    /// Anything else.
    Busy,
}

/// How far an answer is; read by the watch over its client.
pub struct Progress {
    phase: AtomicU8,
    is_chunked: AtomicBool,
    /// HTTP/1.0: no interim answers, no chunks.
    is_http10: bool,
}

impl Progress {
    pub fn new(is_http10: bool) -> Self {
        Self {
            phase: AtomicU8::new(Phase::Waiting as u8),
            is_chunked: AtomicBool::new(false),
            is_http10,
        }
    }

    /// Whether nothing has been written yet.
    pub fn is_waiting(&self) -> bool {
        self.phase.load(Relaxed) == Phase::Waiting as u8
    }

    /// Asks a client that has closed its sending side whether it still reads: one that is gone answers these bytes with a
    /// reset. HTTP lets a server send `100 Continue` at any time before its answer (RFC 9110, section 15.2), and clients
    /// skip a comment between events. False: this is not the moment to ask.
    ///
    /// # Errors
    /// It is known to be gone. The system tells that once only, so it must not be dropped.
    pub fn probe(&self, stream: &TcpStream) -> io::Result<bool> {
        let phase = self.phase.load(Relaxed);
        let bytes: &[u8] = if phase == Phase::Waiting as u8 && !self.is_http10 {
            CONTINUE
        } else if phase == Phase::BetweenEvents as u8 && self.is_chunked.load(Relaxed) {
            b"3\r\n:\n\n\r\n"
        } else if phase == Phase::BetweenEvents as u8 {
            b":\n\n"
        } else {
            return Ok(false);
        };
        match stream.try_write(bytes) {
            // Where the socket's buffer is full there is no need to ask: a write waits and will fail.
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(true),
        }
    }
}

/// Writes one answer.
pub struct Downstream<'a> {
    stream: &'a TcpStream,
    progress: &'a Progress,
    write_timeout: Duration,
    is_head_only: bool,
    closes: bool,
    head: Vec<u8>,
}

/// The length of a body, as the head announces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    Known(u64),
    Unknown,
}

impl<'a> Downstream<'a> {
    pub fn new(
        stream: &'a TcpStream,
        progress: &'a Progress,
        write_timeout: Duration,
        is_head_only: bool,
        closes: bool,
    ) -> Self {
        Self {
            stream,
            progress,
            write_timeout,
            is_head_only,
            closes,
            head: Vec::new(),
        }
    }

    /// Writes a whole answer.
    ///
    /// # Errors
    /// The client has left.
    pub async fn whole(
        &mut self,
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
    ) -> io::Result<()> {
        self.begin(status, headers, BodyLength::Known(body.len() as u64));
        let body = if self.is_head_only { b"" } else { body };
        let head = std::mem::take(&mut self.head);
        self.write(&mut [IoSlice::new(&head), IoSlice::new(body)])
            .await
    }

    /// Prepares the head of an answer; it is written with the first bytes of the body.
    pub fn begin(&mut self, status: StatusCode, headers: &HeaderMap, length: BodyLength) {
        let head = &mut self.head;
        head.reserve(512);
        let reason = status.canonical_reason().unwrap_or("");
        // Writing to a vector cannot fail.
        drop(write!(head, "HTTP/1.1 {} {reason}\r\n", status.as_u16()));
        for (name, value) in headers {
            head.extend_from_slice(name.as_str().as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        let bodyless = status == StatusCode::NO_CONTENT || status.is_informational();
        match length {
            _ if bodyless => {}
            BodyLength::Known(length) => drop(write!(head, "content-length: {length}\r\n")),
            BodyLength::Unknown if self.progress.is_http10 => {}
            BodyLength::Unknown => {
                self.progress.is_chunked.store(true, Relaxed);
                head.extend_from_slice(b"transfer-encoding: chunked\r\n");
            }
        }
        if self.closes {
            head.extend_from_slice(b"connection: close\r\n");
        }
        drop(write!(
            head,
            "date: {}\r\n\r\n",
            httpdate::HttpDate::from(SystemTime::now())
        ));
        debug_assert!(!headers.contains_key(header::CONTENT_LENGTH));
    }

    /// Writes some of the body, and the head before the first.
    ///
    /// # Errors
    /// The client has left.
    pub async fn chunk(&mut self, data: &[u8]) -> io::Result<()> {
        let head = std::mem::take(&mut self.head);
        if data.is_empty() || self.is_head_only {
            return self.write(&mut [IoSlice::new(&head)]).await;
        }
        if !self.progress.is_chunked.load(Relaxed) {
            return self
                .write(&mut [IoSlice::new(&head), IoSlice::new(data)])
                .await;
        }
        let mut size = [0_u8; 18];
        let mut rest = &mut size[..];
        drop(write!(rest, "{:x}\r\n", data.len()));
        let unused = rest.len();
        let used = size.len() - unused;
        self.write(&mut [
            IoSlice::new(&head),
            IoSlice::new(&size[..used]),
            IoSlice::new(data),
            IoSlice::new(b"\r\n"),
        ])
        .await
    }

    /// As [`Self::chunk`], for whole events.
    ///
    /// # Errors
    /// The client has left.
    pub async fn events(&mut self, data: &[u8]) -> io::Result<()> {
        self.chunk(data).await?;
        self.progress
            .phase
            .store(Phase::BetweenEvents as u8, Relaxed);
        Ok(())
    }

    /// As [`Self::chunk`], and ends the body in the same write.
    ///
    /// # Errors
    /// The client has left.
    pub async fn last(&mut self, data: &[u8]) -> io::Result<()> {
        let head = std::mem::take(&mut self.head);
        let data = if self.is_head_only { b"" } else { data };
        if !self.progress.is_chunked.load(Relaxed) || self.is_head_only {
            return self
                .write(&mut [IoSlice::new(&head), IoSlice::new(data)])
                .await;
        }
        if data.is_empty() {
            return self
                .write(&mut [IoSlice::new(&head), IoSlice::new(b"0\r\n\r\n")])
                .await;
        }
        let size = format!("{:x}\r\n", data.len());
        self.write(&mut [
            IoSlice::new(&head),
            IoSlice::new(size.as_bytes()),
            IoSlice::new(data),
            IoSlice::new(b"\r\n0\r\n\r\n"),
        ])
        .await
    }

    /// Ends the body.
    ///
    /// # Errors
    /// The client has left.
    pub async fn end(&mut self) -> io::Result<()> {
        self.last(b"").await
    }

    async fn write(&self, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.progress.phase.store(Phase::Busy as u8, Relaxed);
        socket::write_all(self.stream, slices, self.write_timeout).await
    }
}

/// Writes `100 Continue`.
///
/// # Errors
/// The client has left.
pub async fn go_on(stream: &TcpStream, write_timeout: Duration) -> io::Result<()> {
    socket::write_all(stream, &mut [IoSlice::new(CONTINUE)], write_timeout).await
}

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
