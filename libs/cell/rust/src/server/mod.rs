//! The gRPC server over a cell: `kvatlas.v1.Indexer`, health and reflection, on threads of its own.
//!
//! Each thread runs a single-threaded runtime with connections of its own. The first thread also accepts new
//! connections and hands them out in turn. A call never changes threads, and look-ups on different threads share only the
//! index.
//!
//! [`router`] answers `FindMatches` ([`find_matches`]) itself and leaves the rest to [`indexer_service`], whose streams are
//! [`watch_workers`], [`ingest`] and [`dump`].

mod blocking;
mod connection;
mod dump;
mod find_matches;
mod indexer_service;
mod ingest;
mod router;
mod stop;
mod watch_workers;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use kvatlas_wire::v1;
use kvatlas_wire::v1::indexer_server::IndexerServer;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::cell::Cell;
use connection::Connection;
use indexer_service::IndexerService;
use router::Router;
use stop::{Stop, stopped};

pub use find_matches::HASHES_MAX;
pub use ingest::Clock;

/// Largest `Ingest` request in bytes.
const INGEST_BYTES_MAX: usize = 16 << 20;
/// Accepted connections that wait for their thread.
const WAITING_CONNECTIONS_MAX: usize = 256;
/// Flow-control window of one HTTP/2 stream, sized for `Ingest`.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
/// Threads of each runtime for calls that take the worker table's lock.
const BLOCKING_THREADS_MAX: usize = 4;
/// Interval of HTTP/2 pings. A peer that stays silent for two intervals is disconnected.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// Calls of one connection that their callers may cancel before they are accepted. Deadlines are milliseconds, so there
/// are many under load; the default of 20 would end the whole connection.
const ABANDONED_CALLS_MAX: usize = 4_096;
const INDEXER: &str = "kvatlas.v1.Indexer";

/// A running server. Dropping it stops it without a grace period.
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<Option<Duration>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Server {
    /// Binds and serves on `threads` threads, at least one.
    ///
    /// # Errors
    /// The address cannot be used, or the system has no more threads or sockets.
    pub fn start(
        cell: &Arc<Cell>,
        (host, port): (&str, u16),
        threads: usize,
        clock: Clock,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((host, port))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopping) = watch::channel(None);
        let health = HealthReporter::new();
        let routes = routes(cell, clock, &stopping, &health)?;
        let queues = (0..threads.max(1)).map(|_| mpsc::channel(WAITING_CONNECTIONS_MAX));
        let (senders, receivers): (Vec<_>, Vec<_>) = queues.unzip();
        let server = Self {
            address,
            stop,
            threads: Mutex::default(),
        };
        let mut first = Some((listener, senders, health));
        for (number, connections) in receivers.into_iter().enumerate() {
            let runtime = Builder::new_current_thread()
                .max_blocking_threads(BLOCKING_THREADS_MAX)
                .enable_all()
                .build()?;
            if let Some((listener, senders, health)) = first.take() {
                runtime.block_on(set_health(&health, ServingStatus::NotServing));
                runtime.spawn(accept(listener, senders, stopping.clone()));
                runtime.spawn(report_health(Arc::clone(cell), health, stopping.clone()));
            }
            let router = Router::new(Arc::clone(cell), routes.clone());
            let stop = stopping.clone();
            let thread = std::thread::Builder::new().name(format!("kvatlas-rpc-{number}"));
            let handle = thread.spawn(move || serve(runtime, router, connections, stop))?;
            server.threads.lock().push(handle);
        }
        Ok(server)
    }

    /// The address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Refuses new calls, ends streams and waits for running calls, at most `grace`.
    pub fn stop(&self, grace: Duration) {
        self.stop.send_if_modified(|stop| {
            let is_first = stop.is_none();
            stop.get_or_insert(grace);
            is_first
        });
        for thread in self.threads.lock().drain(..) {
            // A panic of the thread is already on stderr; nothing is left to do.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

/// The generated services: `Indexer`, health and reflection.
fn routes(
    cell: &Arc<Cell>,
    clock: Clock,
    stop: &Stop,
    health: &HealthReporter,
) -> io::Result<Routes> {
    let service = IndexerService {
        cell: Arc::clone(cell),
        clock,
        stop: stop.clone(),
        dumps: dump::Slots::default(),
    };
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(v1::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let health = tonic_health::server::HealthService::from_health_reporter(health.clone());
    Ok(
        Routes::new(IndexerServer::new(service).max_decoding_message_size(INGEST_BYTES_MAX))
            .add_service(tonic_health::pb::health_server::HealthServer::new(health))
            .add_service(reflection().build_v1().map_err(io::Error::other)?)
            .add_service(reflection().build_v1alpha().map_err(io::Error::other)?)
            .prepare(),
    )
}

/// Runs one thread: serves its connections until the grace period after a stop is over.
fn serve(runtime: Runtime, router: Router, connections: mpsc::Receiver<TcpStream>, mut stop: Stop) {
    let mut again = stop.clone();
    let grace_over = async move { tokio::time::sleep(stopped(&mut again).await).await };
    runtime.block_on(async move {
        let incoming = ReceiverStream::new(connections).map(Connection::new);
        let shutdown = async move {
            stopped(&mut stop).await;
        };
        let serving = tonic::transport::Server::builder()
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(4 * STREAM_WINDOW_BYTES)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .http2_max_pending_accept_reset_streams(Some(ABANDONED_CALLS_MAX))
            .serve_with_incoming_shutdown(router, incoming, shutdown);
        tokio::select! {
            // The error of one connection is not the server's: it ends only when it is stopped.
            _ = serving => {}
            () = grace_over => {}
        }
    });
    runtime.shutdown_background();
}

/// Accepts connections and hands them out to the threads in turn.
async fn accept(listener: TcpListener, threads: Vec<mpsc::Sender<TcpStream>>, mut stop: Stop) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    let mut threads = threads.iter().cycle();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped(&mut stop) => return,
        };
        match accepted.and_then(|(stream, _)| stream.into_std()) {
            Ok(stream) => {
                if let Some(thread) = threads.next() {
                    // A thread takes no more connections only if the server stops.
                    let _ = thread.send(stream).await;
                }
            }
            // No descriptors left, or a connection that is closed already: try the next one.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Keeps the health service up to date with the cell's readiness.
async fn report_health(cell: Arc<Cell>, health: HealthReporter, mut stop: Stop) {
    let mut ready = cell.watch_readiness();
    loop {
        let stopping = stop.borrow_and_update().is_some();
        let serves = *ready.borrow_and_update() && !stopping;
        let status = if serves {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        set_health(&health, status).await;
        if stopping {
            return;
        }
        tokio::select! {
            changed = ready.changed() => if changed.is_err() { return },
            changed = stop.changed() => if changed.is_err() { return },
        }
    }
}

async fn set_health(health: &HealthReporter, status: ServingStatus) {
    for service in ["", INDEXER] {
        health.set_service_status(service, status).await;
    }
}
