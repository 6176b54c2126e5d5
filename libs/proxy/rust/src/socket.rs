//! Reads from and writes to a client's connection, within the time limits.

use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout, timeout_at};

/// Bytes of later requests that are read while an earlier one is being answered.
const PIPELINED_BYTES_MAX: usize = 64 << 10;
const READ_BYTES: usize = 16 << 10;
/// After an early refusal, so many bytes and seconds of the rest are read: a connection that is closed with unread bytes
/// loses the answer on its way.
const LINGER_BYTES: usize = 4 << 20;
const LINGER: Duration = Duration::from_secs(2);

/// Reads something behind `buffer`; 0: the client sends no more.
pub async fn read_some(
    stream: &TcpStream,
    buffer: &mut BytesMut,
    wanted: usize,
) -> io::Result<usize> {
    loop {
        buffer.reserve(wanted.clamp(READ_BYTES, 1 << 20));
        match stream.try_read_buf(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable().await?,
            result => return result,
        }
    }
}

/// As [`read_some`], within a time; none: unlimited.
///
/// # Errors
/// `TimedOut`, and those of the connection.
pub async fn read_some_within(
    stream: &TcpStream,
    buffer: &mut BytesMut,
    wanted: usize,
    limit: Option<Duration>,
) -> io::Result<usize> {
    match limit.and_then(|limit| Instant::now().checked_add(limit)) {
        Some(deadline) => read_some_until(stream, buffer, wanted, deadline).await,
        None => read_some(stream, buffer, wanted).await,
    }
}

/// As [`read_some`], until a point in time.
///
/// # Errors
/// `TimedOut`, and those of the connection.
pub async fn read_some_until(
    stream: &TcpStream,
    buffer: &mut BytesMut,
    wanted: usize,
    deadline: Instant,
) -> io::Result<usize> {
    // No timer for bytes that are there already.
    buffer.reserve(wanted.clamp(READ_BYTES, 1 << 20));
    match stream.try_read_buf(buffer) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        result => return result,
    }
    timeout_at(deadline.into(), read_some(stream, buffer, wanted))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Why nothing more is read from a client.
pub enum InputEnd {
    /// Its connection is broken.
    Broken,
    /// It sends no more; TCP does not tell whether it still reads.
    Finished,
    /// It has sent as many later requests as are kept.
    Enough,
}

/// Reads later requests into `buffer` while an earlier one is answered.
pub async fn read_ahead(stream: &TcpStream, buffer: &mut BytesMut) -> InputEnd {
    while buffer.len() < PIPELINED_BYTES_MAX {
        match read_some(stream, buffer, 0).await {
            Ok(0) => return InputEnd::Finished,
            Ok(_) => {}
            Err(_) => return InputEnd::Broken,
        }
    }
    InputEnd::Enough
}

/// Waits until the connection breaks, without reading.
pub async fn broken(stream: &TcpStream) {
    drop(stream.ready(Interest::ERROR).await);
}

/// Writes all of the slices.
///
/// # Errors
/// `TimedOut`: the client took nothing for `limit`; and those of the connection.
pub async fn write_all(
    stream: &TcpStream,
    mut slices: &mut [IoSlice<'_>],
    limit: Duration,
) -> io::Result<()> {
    IoSlice::advance_slices(&mut slices, 0); // drops empty ones
    while !slices.is_empty() {
        match stream.try_write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                timeout(limit, stream.writable())
                    .await
                    .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Closes so that the client still gets what was written last, though it may be sending.
pub async fn linger(stream: &TcpStream) {
    if SockRef::from(stream)
        .shutdown(std::net::Shutdown::Write)
        .is_err()
    {
        return;
    }
    let mut dropped = BytesMut::new();
    let read = async {
        let mut total = 0;
        while total < LINGER_BYTES {
            match read_some(stream, &mut dropped, 0).await {
                Ok(0) | Err(_) => return,
                Ok(bytes) => total += bytes,
            }
            dropped.clear();
        }
    };
    tokio::select! {
        () = read => {}
        () = sleep(LINGER) => {}
    }
}

/// Sends small writes at once: Nagle's algorithm would hold a token back until the one before is acknowledged.
pub fn send_at_once(stream: &TcpStream) {
    drop(stream.set_nodelay(true));
}

/// Makes the end of the connection visible as a failure: the client gets a reset.
pub fn reset_on_close(stream: &TcpStream) {
    drop(SockRef::from(stream).set_linger(Some(Duration::ZERO)));
}
