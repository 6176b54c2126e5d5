//! The gRPC server over a cell: `kvatlas.v1.Indexer`, health and reflection, on threads of its own.
//!
//! Each thread runs a single-threaded runtime with connections of its own; the first also accepts
//! and deals new connections out in turn. A call never changes threads, and look-ups share nothing
//! between threads but the index.

mod dump;
mod find_matches;
mod front;
mod ingest;
mod rpc;
mod stream;

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
use front::Front;
use stream::Stream;

pub use find_matches::HASHES_MAX;

/// Wall clock in ms since the Unix epoch.
pub type Clock = fn() -> u64;
/// Set once, to the grace period, when the server is to stop.
type Stopping = Option<Duration>;

/// Bytes of one `Ingest` request.
const INGEST_BYTES_MAX: usize = 16 << 20;
/// Connections accepted and not yet taken up by their thread.
const WAITING_CONNECTIONS_MAX: usize = 256;
/// Bytes of an `Ingest` stream on their way.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
/// Threads a runtime has for calls that take the worker table's lock.
const BLOCKING_THREADS_MAX: usize = 4;
/// A peer that is gone without a word is noticed after this, twice.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// Calls that their callers gave up before we took them up. Deadlines are milliseconds, so under
/// load there are many; the default of 20 would end the whole connection.
const ABANDONED_CALLS_MAX: usize = 4_096;
const INDEXER: &str = "kvatlas.v1.Indexer";

/// A running server. Dropping it stops it without grace.
pub struct Server {
    address: SocketAddr,
    stopping: watch::Sender<Stopping>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Server {
    /// Bind and serve on `threads` threads, at least one.
    ///
    /// # Errors
    /// When the address cannot be used, or the system gives no more threads or sockets.
    pub fn start(
        cell: &Arc<Cell>,
        (host, port): (&str, u16),
        threads: usize,
        clock: Clock,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((host, port))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stopping, stop) = watch::channel(None);
        let health = HealthReporter::new();
        let routes = routes(cell, clock, &stop, &health)?;
        let mut dealt = Vec::new();
        let mut waiting = Vec::new();
        for _ in 0..threads.max(1) {
            let (deal, connections) = mpsc::channel(WAITING_CONNECTIONS_MAX);
            dealt.push(deal);
            waiting.push(connections);
        }
        let server = Self {
            address,
            stopping,
            threads: Mutex::default(),
        };
        let mut first = Some((listener, dealt, health));
        for (number, connections) in waiting.into_iter().enumerate() {
            let runtime = Builder::new_current_thread()
                .max_blocking_threads(BLOCKING_THREADS_MAX)
                .enable_all()
                .build()?;
            if let Some((listener, dealt, health)) = first.take() {
                runtime.block_on(set_health(&health, ServingStatus::NotServing));
                runtime.spawn(accept(listener, dealt, stop.clone()));
                runtime.spawn(report_health(Arc::clone(cell), health, stop.clone()));
            }
            let front = Front::new(Arc::clone(cell), routes.clone());
            let stop = stop.clone();
            let thread = std::thread::Builder::new().name(format!("kvatlas-rpc-{number}"));
            let handle = thread.spawn(move || serve(runtime, front, connections, stop))?;
            server.threads.lock().push(handle);
        }
        Ok(server)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Refuse new calls, end streams, wait for running calls at most `grace`.
    pub fn stop(&self, grace: Duration) {
        self.stopping.send_if_modified(|stopping| {
            let first = stopping.is_none();
            stopping.get_or_insert(grace);
            first
        });
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked has told so on stderr; there is nothing left to end.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

fn routes(
    cell: &Arc<Cell>,
    clock: Clock,
    stop: &watch::Receiver<Stopping>,
    health: &HealthReporter,
) -> io::Result<Routes> {
    let rpc = rpc::Rpc {
        cell: Arc::clone(cell),
        clock,
        stopping: stop.clone(),
        dumps: dump::Running::default(),
    };
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(v1::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let health = tonic_health::server::HealthService::from_health_reporter(health.clone());
    Ok(
        Routes::new(IndexerServer::new(rpc).max_decoding_message_size(INGEST_BYTES_MAX))
            .add_service(tonic_health::pb::health_server::HealthServer::new(health))
            .add_service(reflection().build_v1().map_err(io::Error::other)?)
            .add_service(reflection().build_v1alpha().map_err(io::Error::other)?)
            .prepare(),
    )
}

fn serve(
    runtime: Runtime,
    front: Front,
    connections: mpsc::Receiver<TcpStream>,
    mut stop: watch::Receiver<Stopping>,
) {
    let grace_over = grace_over(stop.clone());
    runtime.block_on(async move {
        let incoming = ReceiverStream::new(connections).map(Stream::new);
        let stopped = async move {
            // An error means that the server is gone, which is a stop too.
            let _ = stop.wait_for(Option::is_some).await;
        };
        let serving = tonic::transport::Server::builder()
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(4 * STREAM_WINDOW_BYTES)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .http2_max_pending_accept_reset_streams(Some(ABANDONED_CALLS_MAX))
            .serve_with_incoming_shutdown(front, incoming, stopped);
        tokio::select! {
            // What ends one connection is no error of the server; it ends when it is stopped.
            _ = serving => {}
            () = grace_over => {}
        }
    });
    runtime.shutdown_background();
}

async fn grace_over(mut stop: watch::Receiver<Stopping>) {
    let grace = stop
        .wait_for(Option::is_some)
        .await
        .map_or(None, |grace| *grace);
    tokio::time::sleep(grace.unwrap_or_default()).await;
}

async fn accept(
    listener: TcpListener,
    dealt: Vec<mpsc::Sender<TcpStream>>,
    mut stop: watch::Receiver<Stopping>,
) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    let mut turns = dealt.iter().cycle();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(Option::is_some) => return,
        };
        match accepted.and_then(|(stream, _)| stream.into_std()) {
            Ok(stream) => {
                if let Some(turn) = turns.next() {
                    // A thread that no longer takes connections is stopping, and so are we.
                    let _ = turn.send(stream).await;
                }
            }
            // Out of descriptors, or a connection that was gone at once: the next may do better.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn report_health(
    cell: Arc<Cell>,
    health: HealthReporter,
    mut stop: watch::Receiver<Stopping>,
) {
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
