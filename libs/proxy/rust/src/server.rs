//! The listening server, on a thread of its own.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};

use crate::connection::{Shared, serve};
use crate::exchange::EventSink;
use crate::limits::Limits;
use crate::socket;

const BACKLOG: i32 = 1024;
const SWEEP: Duration = Duration::from_secs(1);
/// After the system has refused a connection, for lack of descriptors for instance.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A running server.
pub struct Server {
    address: SocketAddr,
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
        sink: Arc<dyn EventSink>,
    ) -> io::Result<Self> {
        let listener = listen(host, port)?;
        let address = listener.local_addr()?;
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let shared = Arc::new(Shared {
            limits,
            sink,
            pool: Arc::default(),
            in_flight: AtomicUsize::new(0),
            next_id: AtomicU64::new(0),
        });
        let (stop, stopped) = mpsc::unbounded_channel();
        let thread = std::thread::Builder::new()
            .name("kvatlas-proxy".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || {
                    if let Err(error) = runtime.block_on(run(shared, listener, stopped)) {
                        // Only a descriptor that is no socket gets here.
                        eprintln!("kvatlas proxy: {error}");
                    }
                }
            })?;
        Ok(Self {
            address,
            shared,
            stop,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// The address that it listens on, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.load(Ordering::Relaxed)
    }

    /// Stops listening, lets requests in flight end within `grace`, ends the others, and waits for the thread.
    pub fn close(&self, grace: Duration) {
        let _ = self.stop.send(grace);
        if let Some(thread) = self.thread.lock().take() {
            drop(thread.join());
        }
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

async fn run(
    shared: Arc<Shared>,
    listener: std::net::TcpListener,
    mut stopped: mpsc::UnboundedReceiver<Duration>,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let (drain, draining) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut sweep = interval(SWEEP);
    let grace = loop {
        tokio::select! {
            grace = stopped.recv() => break grace.unwrap_or_default(),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    socket::send_at_once(&stream);
                    connections.spawn(serve(Arc::clone(&shared), stream, draining.clone()));
                }
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
            _ = sweep.tick() => shared.pool.sweep(),
        }
    };
    drop(listener);
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
