//! The listening server, on a thread of its own.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};

use crate::accept::{ACCEPT_PAUSE, Acceptor, OpenConnection, SharedListener};
use crate::connection::{Shared, serve};
use crate::exchange::EventSink;
use crate::limits::Limits;
use crate::socket;
use crate::tls::EngineTls;
use crate::upstream::Pool;

const BACKLOG: i32 = 1024;
const SWEEP: Duration = Duration::from_secs(1);

/// A running server.
pub struct Server {
    address: SocketAddr,
    runtime: Handle,
    shared: Arc<Shared>,
    /// Tells the thread to stop, and within which time its requests must end.
    stop: mpsc::UnboundedSender<Duration>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Server {
    /// Listens, and serves on a thread of its own.
    ///
    /// # Errors
    /// The address cannot be used, or the system has no thread left.
    pub fn start(
        host: &str,
        port: u16,
        limits: Limits,
        tls: EngineTls,
        sink: Arc<dyn EventSink>,
    ) -> io::Result<Self> {
        let listener = listen(host, port)?;
        let address = listener.local_addr()?;
        Self::serving(address, Source::Own(listener), limits, tls, sink)
    }

    /// Serves connections of a socket that other processes serve too.
    ///
    /// # Errors
    /// The socket cannot be used, or the system has no thread left.
    pub fn start_shared(
        listener: SharedListener,
        limits: Limits,
        tls: EngineTls,
        sink: Arc<dyn EventSink>,
    ) -> io::Result<Self> {
        let address = listener.listener().local_addr()?;
        Self::serving(address, Source::Shared(listener), limits, tls, sink)
    }

    fn serving(
        address: SocketAddr,
        source: Source,
        limits: Limits,
        tls: EngineTls,
        sink: Arc<dyn EventSink>,
    ) -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let handle = runtime.handle().clone();
        let shared = Arc::new(Shared {
            limits,
            sink,
            pool: Arc::new(Pool::new(tls)),
            in_flight: AtomicUsize::new(0),
            next_id: AtomicU64::new(0),
        });
        let (stop, stopped) = mpsc::unbounded_channel();
        let thread = std::thread::Builder::new()
            .name("kvatlas-proxy".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || {
                    if let Err(error) = runtime.block_on(run(shared, source, stopped)) {
                        // Only a descriptor that is no socket gets here.
                        eprintln!("kvatlas proxy: {error}");
                    }
                }
            })?;
        Ok(Self {
            address,
            runtime: handle,
            shared,
            stop,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// The address that it listens on, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The runtime that serves, for a router that waits on the same thread; it ends with the server.
    pub fn runtime(&self) -> Handle {
        self.runtime.clone()
    }

    /// Number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.load(Ordering::Relaxed)
    }

    /// Stops listening, lets requests in flight end within `grace`, ends the others, waits for the
    /// thread, and closes the connections to engines.
    pub fn close(&self, grace: Duration) {
        let _ = self.stop.send(grace);
        if let Some(thread) = self.thread.lock().take() {
            drop(thread.join());
        }
        self.shared.pool.clear();
    }
}

fn listen(host: &str, port: u16) -> io::Result<std::net::TcpListener> {
    let address = (host, port)
        .to_socket_addrs()?
        .next()
        .ok_or(io::ErrorKind::AddrNotAvailable)?;
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Where connections come from.
enum Source {
    /// A socket of this process alone.
    Own(std::net::TcpListener),
    /// A socket of several processes.
    Shared(SharedListener),
}

/// A [`Source`] at work; dropping it stops accepting.
enum Listening {
    Own(TcpListener),
    Shared(Acceptor),
}

impl Listening {
    async fn accept(&mut self) -> io::Result<(TcpStream, Option<OpenConnection>)> {
        match self {
            Self::Own(listener) => Ok((listener.accept().await?.0, None)),
            Self::Shared(acceptor) => {
                let Some((stream, open)) = acceptor.accepted.recv().await else {
                    // The thread has ended, which it does not by itself.
                    return std::future::pending().await;
                };
                stream.set_nonblocking(true)?;
                Ok((TcpStream::from_std(stream)?, Some(open)))
            }
        }
    }
}

async fn run(
    shared: Arc<Shared>,
    source: Source,
    mut stopped: mpsc::UnboundedReceiver<Duration>,
) -> io::Result<()> {
    let mut listening = match source {
        Source::Own(listener) => Listening::Own(TcpListener::from_std(listener)?),
        Source::Shared(listener) => Listening::Shared(listener.start()?),
    };
    let (drain, draining) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut sweep = interval(SWEEP);
    let grace = loop {
        tokio::select! {
            grace = stopped.recv() => break grace.unwrap_or_default(),
            accepted = listening.accept() => match accepted {
                Ok((stream, open)) => {
                    socket::send_at_once(&stream);
                    let serving = serve(Arc::clone(&shared), stream, draining.clone());
                    connections.spawn(async move {
                        serving.await;
                        drop(open);
                    });
                }
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
            _ = sweep.tick() => shared.pool.sweep(),
        }
    };
    drop(listening);
    let _ = drain.send(true);
    drop(
        timeout(grace, async {
            while connections.join_next().await.is_some() {}
        })
        .await,
    );
    // Those that are left are dropped here, and with them their engines' connections.
    connections.shutdown().await;
    Ok(())
}
