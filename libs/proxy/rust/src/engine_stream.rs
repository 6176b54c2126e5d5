//! One connection to an engine, plain or TLS, with the reads and writes that the proxy needs.
//!
//! The plain one is read and written directly, because it carries most bytes. TLS goes through the
//! general traits.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ProtocolVersion;

use crate::socket;

const READ_BYTES: usize = 16 << 10;

/// A connection to an engine.
pub enum EngineStream {
    /// `http://`.
    Plain(TcpStream),
    /// `https://`, after the handshake.
    Tls(Box<TlsStream<TcpStream>>),
}

impl EngineStream {
    /// Reads something behind `buffer`, within a time; none: unlimited. 0: the engine sends no more.
    ///
    /// # Errors
    /// `TimedOut`, and those of the connection; TLS that ends without a farewell is one of them.
    pub async fn read_some(
        &mut self,
        buffer: &mut BytesMut,
        limit: Option<Duration>,
    ) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => socket::read_some_within(stream, buffer, 0, limit).await,
            Self::Tls(stream) => {
                buffer.reserve(READ_BYTES);
                let read = stream.read_buf(buffer);
                match limit {
                    Some(limit) => timeout(limit, read).await.unwrap_or_else(|_| timed_out()),
                    None => read.await,
                }
            }
        }
    }

    /// Writes all of the slices.
    ///
    /// # Errors
    /// `TimedOut`: the engine took nothing for `limit`; and those of the connection.
    pub async fn write_all(
        &mut self,
        mut slices: &mut [IoSlice<'_>],
        limit: Duration,
    ) -> io::Result<()> {
        let stream = match self {
            Self::Plain(stream) => return socket::write_all(stream, slices, limit).await,
            Self::Tls(stream) => stream,
        };
        IoSlice::advance_slices(&mut slices, 0); // drops empty ones
        while !slices.is_empty() {
            let write = timeout(limit, stream.write_vectored(slices));
            match write.await.unwrap_or_else(|_| timed_out())? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => IoSlice::advance_slices(&mut slices, written),
            }
        }
        let flush = timeout(limit, stream.flush());
        flush.await.unwrap_or_else(|_| timed_out())
    }

    /// Whether the engine has neither closed it nor sent something that nobody asked for.
    pub fn is_quiet(&mut self, buffer: &mut BytesMut) -> bool {
        match self {
            Self::Plain(stream) => stream
                .try_read_buf(buffer)
                .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock),
            Self::Tls(stream) => {
                // Session tickets may arrive at any time; reading takes them in and goes on waiting.
                let mut context = Context::from_waker(Waker::noop());
                let mut byte = [0];
                let mut read = ReadBuf::new(&mut byte);
                let read = Pin::new(&mut **stream).poll_read(&mut context, &mut read);
                read.is_pending()
            }
        }
    }

    /// Whether the engine may still refuse the handshake. With TLS 1.3 the client's half ends first; a
    /// server that then refuses the client's certificate, or misses one, just ends the connection. One
    /// that is satisfied sends session tickets.
    pub fn may_be_refused(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => {
                let session = stream.get_ref().1;
                session.protocol_version() == Some(ProtocolVersion::TLSv1_3)
                    && session.tls13_tickets_received() == 0
            }
        }
    }
}

fn timed_out<T>() -> io::Result<T> {
    Err(io::ErrorKind::TimedOut.into())
}
