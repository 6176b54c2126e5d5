//! A TCP stream without vectored writes.
//!
//! The HTTP/2 layer then copies frames of less than 1 KiB into its buffer instead of sending each one alone. So headers,
//! data and trailers of an answer leave in one write, and the caller wakes up once. On one connection that is a good
//! part of a call's latency.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Largest payload of a frame that is copied.
pub const FRAME_BYTES_MAX: usize = 1_000;

/// An accepted connection.
pub struct Connection(TcpStream);

impl Connection {
    /// Takes over an accepted connection, on the runtime that will serve it.
    ///
    /// # Errors
    /// The connection is closed already.
    pub fn new(stream: std::net::TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        TcpStream::from_std(stream).map(Self)
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.0.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(cx)
    }
}
