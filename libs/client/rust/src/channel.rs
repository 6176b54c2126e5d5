//! `FindMatches` of one server: blocking calls for threads, spawned calls for event loops.

use std::future::Future;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Uri;
use kvatlas_wire::v1::FindMatchesResponse;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::connection::{ConnectionState, keep_connected};
use crate::find_matches::{Query, decode, encode};
use crate::{address, grpc, io_thread};

const PATH: &str = "/kvatlas.v1.Indexer/FindMatches";

/// One server's `FindMatches`. Thread-safe; connects when first used.
pub struct Channel {
    address: String,
    uri: Arc<Uri>,
    state: Mutex<State>,
}

enum State {
    Idle,
    /// Opened by the process of this id; a forked child opens its own.
    Open(u32, Handle, watch::Receiver<ConnectionState>),
    Closed,
}

impl Channel {
    /// Makes a channel to `host:port`, not yet connected.
    ///
    /// # Errors
    /// INVALID_ARGUMENT: `address` is not `host:port`.
    pub fn new(address: &str) -> Result<Self, Status> {
        Ok(Self {
            address: address.to_owned(),
            uri: Arc::new(address::uri(address, PATH)?),
            state: Mutex::new(State::Idle),
        })
    }

    /// Asks, and blocks the thread for at most `limit`. Must not be called on the I/O thread.
    ///
    /// # Errors
    /// The server's status; DEADLINE_EXCEEDED after `limit`; UNAVAILABLE without a connection;
    /// CANCELLED when closed.
    pub fn find_matches(
        &self,
        query: &Query<'_>,
        limit: Duration,
    ) -> Result<FindMatchesResponse, Status> {
        let message = encode(query)?;
        let (runtime, state) = self.open()?;
        runtime.block_on(answer(state, Arc::clone(&self.uri), message, limit))
    }

    /// Asks, and calls `done` with the outcome on the I/O thread, which `done` must not block.
    ///
    /// # Errors
    /// As [`Self::find_matches`], for errors that are known at once; `done` is not called then.
    pub fn find_matches_soon(
        &self,
        query: &Query<'_>,
        limit: Duration,
        done: impl FnOnce(Result<FindMatchesResponse, Status>) + Send + 'static,
    ) -> Result<(), Status> {
        let message = encode(query)?;
        let (runtime, state) = self.open()?;
        let call = answer(state, Arc::clone(&self.uri), message, limit);
        runtime.spawn(async move { done(call.await) });
        Ok(())
    }

    /// Closes the connection. Calls under way may finish on it; new ones are CANCELLED.
    pub fn close(&self) {
        let mut state = self.lock();
        let previous = std::mem::replace(&mut *state, State::Closed);
        forget_if_foreign(previous);
    }

    fn open(&self) -> Result<(Handle, watch::Receiver<ConnectionState>), Status> {
        let mut state = self.lock();
        match &*state {
            State::Closed => return Err(Status::cancelled("the channel is closed")),
            State::Open(pid, runtime, connection) if *pid == process::id() => {
                return Ok((runtime.clone(), connection.clone()));
            }
            State::Idle | State::Open(..) => (),
        }
        let runtime = io_thread::open()?;
        let (sender, connection) = watch::channel(ConnectionState::Connecting);
        runtime.spawn(keep_connected(self.address.clone(), sender));
        let opened = State::Open(process::id(), runtime.clone(), connection.clone());
        forget_if_foreign(std::mem::replace(&mut *state, opened));
        Ok((runtime, connection))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // Every change is one assignment, so a panic leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.close();
    }
}

/// Leaks a parent's connection in a forked child: it belongs to threads that do not exist here.
fn forget_if_foreign(state: State) {
    if matches!(state, State::Open(pid, ..) if pid != process::id()) {
        std::mem::forget(state);
    }
}

fn too_late(limit: Duration) -> Status {
    let limit_ms = limit.as_secs_f64() * 1e3;
    Status::deadline_exceeded(format!("no answer within {limit_ms:.1} ms"))
}

fn answer(
    state: watch::Receiver<ConnectionState>,
    uri: Arc<Uri>,
    message: Bytes,
    limit: Duration,
) -> impl Future<Output = Result<FindMatchesResponse, Status>> + Send {
    let limit = limit.min(grpc::WAIT_MAX);
    async move {
        let begin = Instant::now();
        let outcome = timeout(limit, grpc::unary(state, &uri, message, limit)).await;
        match outcome {
            // The server has the same limit, and its timer may fire first; tonic then says CANCELLED.
            Ok(Err(status)) if status.code() == Code::Cancelled && begin.elapsed() >= limit => {
                Err(too_late(limit))
            }
            Ok(body) => decode(&body?),
            Err(_) => Err(too_late(limit)),
        }
    }
}
