//! One connection to a server, kept alive and replaced in the background.
//!
//! A task connects, hands the connection to the calls, and monitors it. It replaces a connection
//! - that has ended,
//! - on which a call found that the server takes no more requests (GOAWAY), or
//! - on which a call ran out of time and a ping then stays unanswered, too.
//!
//! An idle connection carries only TCP keepalives, because some gRPC servers punish pings.
//!
//! Until the first attempt has ended, calls wait for it within their deadlines. After a failed attempt
//! they fail at once until one succeeds: another replica is a better use of their time.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{self, SendRequest};
use h2::{Ping, PingPong};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::backoff::Backoff;

const CONNECT_MAX: Duration = Duration::from_secs(3);
const PONG_MAX: Duration = Duration::from_secs(1);
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);
/// A connection that ends sooner is a failed attempt: its server accepts and hangs up.
const LIFETIME_MIN: Duration = Duration::from_secs(1);
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// State of the connection, as calls see it.
#[derive(Clone)]
pub enum ConnectionState {
    /// The first attempt, or the first one after a loss, is under way.
    Connecting,
    /// Usable.
    Up(Connection),
    /// The last attempt failed for this reason; the next one follows in the background.
    Down(Arc<str>),
}

/// A usable connection, on which calls also report what they notice.
#[derive(Clone)]
pub struct Connection {
    /// Sends requests.
    pub sender: SendRequest<Bytes>,
    reports: Arc<Reports>,
}

#[derive(Default)]
struct Reports {
    refused: Notify,
    timed_out: Notify,
}

impl Connection {
    /// Reports that the server takes no more requests on this connection.
    pub fn report_refused(&self) {
        self.reports.refused.notify_one();
    }

    /// Reports that a call ran out of time.
    pub fn report_timed_out(&self) {
        self.reports.timed_out.notify_one();
    }
}

/// Keeps a connection to `address` in `state` until the last receiver is gone.
pub async fn keep_connected(address: Arc<str>, state: watch::Sender<ConnectionState>) {
    let mut backoff = Backoff::new(RandomState::new().build_hasher().finish());
    while !state.is_closed() {
        let failure = match timeout(CONNECT_MAX, connect(&address)).await {
            Ok(Ok((connection, monitor))) => {
                let begin = Instant::now();
                state.send_replace(ConnectionState::Up(connection));
                let failure = tokio::select! {
                    failure = monitor.failure() => failure,
                    () = state.closed() => return,
                };
                if begin.elapsed() >= LIFETIME_MIN {
                    backoff.reset();
                    state.send_replace(ConnectionState::Connecting);
                    continue;
                }
                failure
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", CONNECT_MAX.as_secs()),
        };
        state.send_replace(ConnectionState::Down(failure.into()));
        tokio::select! {
            () = tokio::time::sleep(backoff.next_pause()) => (),
            () = state.closed() => return,
        }
    }
}

/// Waits for the end of one connection.
struct Monitor {
    ended: tokio::task::JoinHandle<Result<(), h2::Error>>,
    pings: Option<PingPong>,
    reports: Arc<Reports>,
}

impl Monitor {
    /// Waits until the connection must be replaced; returns the reason.
    async fn failure(mut self) -> String {
        loop {
            tokio::select! {
                ended = &mut self.ended => {
                    return match ended {
                        Ok(Ok(())) => "connection closed by the server".to_owned(),
                        Ok(Err(error)) => error.to_string(),
                        Err(error) => error.to_string(),
                    };
                }
                // Calls under way still end on it: its task runs until they have.
                () = self.reports.refused.notified() => {
                    return "the server takes no more requests on this connection".to_owned();
                }
                () = self.reports.timed_out.notified() => {
                    if !self.answers_ping().await {
                        self.ended.abort();
                        return "the server is silent".to_owned();
                    }
                }
            }
        }
    }

    async fn answers_ping(&mut self) -> bool {
        match &mut self.pings {
            Some(pings) => matches!(
                timeout(PONG_MAX, pings.ping(Ping::opaque())).await,
                Ok(Ok(_))
            ),
            None => true,
        }
    }
}

/// Opens a connection; returns what sends requests on it, and the future that drives it.
pub async fn dial(
    address: &str,
) -> io::Result<(SendRequest<Bytes>, client::Connection<TcpStream>)> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(TCP_KEEPALIVE);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    client::Builder::new()
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .handshake(stream)
        .await
        .map_err(io::Error::other)
}

async fn connect(address: &str) -> io::Result<(Connection, Monitor)> {
    let (sender, mut connection) = dial(address).await?;
    let reports = Arc::new(Reports::default());
    let pings = connection.ping_pong();
    let monitor = Monitor {
        ended: tokio::spawn(connection),
        pings,
        reports: Arc::clone(&reports),
    };
    Ok((Connection { sender, reports }, monitor))
}
