//! Connections of one process to the servers of `FindMatches`, each opened when first used.

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Uri;
use kvatlas_wire::v1::FindMatchesResponse;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::connection::{ConnectionState, keep_connected};
use crate::find_matches::decode;
use crate::{address, grpc};

const PATH: &str = "/kvatlas.v1.Indexer/FindMatches";

/// One server's address.
pub struct Target {
    /// host:port.
    pub address: Arc<str>,
    uri: Uri,
}

impl Target {
    /// Checks the address.
    ///
    /// # Errors
    /// INVALID_ARGUMENT: `address` is not `host:port`.
    pub fn new(address: &str) -> Result<Self, Status> {
        Ok(Self {
            address: address.into(),
            uri: address::uri(address, PATH)?,
        })
    }
}

/// Channels to all targets, on one runtime of one process. A forked child opens its own.
pub struct Channels {
    pid: u32,
    runtime: Handle,
    targets: Arc<[Target]>,
    connections: Box<[OnceLock<watch::Receiver<ConnectionState>>]>,
    closed: AtomicBool,
}

impl Channels {
    /// Connects to nothing yet.
    pub fn new(targets: Arc<[Target]>, runtime: Handle) -> Self {
        let connections = targets.iter().map(|_| OnceLock::new()).collect();
        Self {
            pid: process::id(),
            runtime,
            targets,
            connections,
            closed: AtomicBool::new(false),
        }
    }

    /// Whether a parent process made them: they belong to threads that do not exist here.
    pub fn is_foreign(&self) -> bool {
        self.pid != process::id()
    }

    /// The runtime of the connections.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Makes further calls CANCELLED. Calls under way may finish; their end closes the connections.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Sends an encoded query to one target and waits for at most `limit`.
    ///
    /// # Errors
    /// The server's status; DEADLINE_EXCEEDED after `limit`; UNAVAILABLE without a connection;
    /// CANCELLED when closed.
    pub async fn find_matches(
        &self,
        target: usize,
        message: Bytes,
        limit: Duration,
    ) -> Result<FindMatchesResponse, Status> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Status::cancelled("the client is closed"));
        }
        let Target { address, uri } = &self.targets[target];
        let connection = self.connections[target].get_or_init(|| {
            let (sender, connection) = watch::channel(ConnectionState::Connecting);
            self.runtime
                .spawn(keep_connected(Arc::clone(address), sender));
            connection
        });
        let limit = limit.min(grpc::WAIT_MAX);
        let begin = Instant::now();
        let call = grpc::unary(connection.clone(), uri, message, limit);
        match timeout(limit, call).await {
            // The server has the same limit, and its timer may fire first; tonic then says CANCELLED.
            Ok(Err(status)) if status.code() == Code::Cancelled && begin.elapsed() >= limit => {
                Err(too_late(limit))
            }
            Ok(body) => decode(&body?),
            Err(_) => Err(too_late(limit)),
        }
    }
}

fn too_late(limit: Duration) -> Status {
    let limit_ms = limit.as_secs_f64() * 1e3;
    Status::deadline_exceeded(format!("no answer within {limit_ms:.1} ms"))
}
