//! One connection to one server, kept, and made again in the background.
//!
//! A keeper task connects, hands the connection to the calls, and watches over it. It replaces it when
//! it ends, when a call finds that the server takes no more requests on it (GOAWAY), and when it is
//! suspected dead: a call ran out of time, and a ping stays unanswered too. Nothing is sent on an idle
//! connection but TCP's own keepalives, since some gRPC servers punish pings.
//!
//! While there has been no connection yet, calls wait for it within their deadlines. Once an attempt
//! has failed they fail at once, until one succeeds: another replica is a better use of their time.

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
/// A connection that ended sooner does not count as a success: its server accepts and hangs up.
const LIVED_MIN: Duration = Duration::from_secs(1);
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// What the calls see of the connection.
#[derive(Clone)]
pub enum Link {
    /// There is no connection yet; the first attempt, or the first after a loss, is under way.
    Connecting,
    /// Usable.
    Up(Connection),
    /// The last attempt failed, for this reason; the next comes in the background.
    Down(Arc<str>),
}

/// A usable connection, and how calls tell its keeper what they noticed.
#[derive(Clone)]
pub struct Connection {
    /// Where requests go.
    pub sender: SendRequest<Bytes>,
    doubts: Arc<Doubts>,
}

#[derive(Default)]
struct Doubts {
    refused: Notify,
    slow: Notify,
}

impl Connection {
    /// The server takes no more requests on this connection.
    pub fn refused(&self) {
        self.doubts.refused.notify_one();
    }

    /// A call ran out of time on it.
    pub fn slow(&self) {
        self.doubts.slow.notify_one();
    }
}

/// Keeps `link` up until the last receiver is gone.
pub async fn keep(address: String, link: watch::Sender<Link>) {
    let mut backoff = Backoff::new(RandomState::new().build_hasher().finish());
    while !link.is_closed() {
        let failure = match timeout(CONNECT_MAX, connect(&address)).await {
            Ok(Ok((connection, guard))) => {
                let begin = Instant::now();
                link.send_replace(Link::Up(connection));
                let failure = tokio::select! {
                    failure = guard.watch() => failure,
                    () = link.closed() => return,
                };
                if begin.elapsed() >= LIVED_MIN {
                    backoff.reset();
                    link.send_replace(Link::Connecting);
                    continue;
                }
                failure
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", CONNECT_MAX.as_secs()),
        };
        link.send_replace(Link::Down(failure.into()));
        tokio::select! {
            () = tokio::time::sleep(backoff.wait()) => (),
            () = link.closed() => return,
        }
    }
}

/// What the keeper holds of a connection.
struct Guard {
    ended: tokio::task::JoinHandle<Result<(), h2::Error>>,
    pings: Option<PingPong>,
    doubts: Arc<Doubts>,
}

impl Guard {
    /// Waits until the connection must be replaced, and says why.
    async fn watch(mut self) -> String {
        loop {
            tokio::select! {
                ended = &mut self.ended => {
                    return match ended {
                        Ok(Ok(())) => "connection closed by the server".to_owned(),
                        Ok(Err(error)) => error.to_string(),
                        Err(error) => error.to_string(),
                    };
                }
                // Calls that are under way finish on it: its task lives on until they have.
                () = self.doubts.refused.notified() => {
                    return "the server takes no more requests on this connection".to_owned();
                }
                () = self.doubts.slow.notified() => {
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

/// A new connection: where its requests go, and what drives it.
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

async fn connect(address: &str) -> io::Result<(Connection, Guard)> {
    let (sender, mut connection) = dial(address).await?;
    let doubts = Arc::new(Doubts::default());
    let pings = connection.ping_pong();
    let guard = Guard {
        ended: tokio::spawn(connection),
        pings,
        doubts: Arc::clone(&doubts),
    };
    Ok((Connection { sender, doubts }, guard))
}
