//! A channel to one server: blocking calls for threads, spawned ones for event loops.

use std::future::Future;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Uri;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::link::{Link, keep};
use crate::message::{Matches, Query, decode, encode};
use crate::{address, call, runtime};

const PATH: &str = "/kvatlas.v1.Indexer/FindMatches";
/// Longer than anyone waits; beyond it a timer would overflow.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3_600);

/// One server's `FindMatches`. Thread-safe; connects when first used.
pub struct Channel {
    address: String,
    uri: Arc<Uri>,
    state: Mutex<State>,
}

enum State {
    Idle,
    /// In the process of this id; a forked child makes a connection of its own.
    Open(u32, Handle, watch::Receiver<Link>),
    Closed,
}

impl Channel {
    /// A channel to `host:port`, not yet connected.
    ///
    /// # Errors
    /// INVALID_ARGUMENT: no `host:port`.
    pub fn new(address: &str) -> Result<Self, Status> {
        Ok(Self {
            address: address.to_owned(),
            uri: Arc::new(address::uri(address, PATH)?),
            state: Mutex::new(State::Idle),
        })
    }

    /// Asks, and blocks the thread for at most `limit`. Not to be called on an I/O thread.
    ///
    /// # Errors
    /// The server's status; DEADLINE_EXCEEDED after `limit`; UNAVAILABLE without a connection;
    /// CANCELLED when closed.
    pub fn find_matches(&self, query: &Query<'_>, limit: Duration) -> Result<Matches, Status> {
        let message = encode(query)?;
        let (runtime, link) = self.open()?;
        runtime.block_on(answer(link, Arc::clone(&self.uri), message, limit))
    }

    /// Asks, and hands the outcome to `done` on the I/O thread, which `done` must not hold up.
    ///
    /// # Errors
    /// As [`Self::find_matches`], for what can be told at once; `done` is not called then.
    pub fn find_matches_soon(
        &self,
        query: &Query<'_>,
        limit: Duration,
        done: impl FnOnce(Result<Matches, Status>) + Send + 'static,
    ) -> Result<(), Status> {
        let message = encode(query)?;
        let (runtime, link) = self.open()?;
        let call = answer(link, Arc::clone(&self.uri), message, limit);
        runtime.spawn(async move { done(call.await) });
        Ok(())
    }

    /// Gives up the connection. Calls under way may finish on it; new ones are CANCELLED.
    pub fn close(&self) {
        let mut state = self.lock();
        let previous = std::mem::replace(&mut *state, State::Closed);
        forget_if_foreign(previous);
    }

    fn open(&self) -> Result<(Handle, watch::Receiver<Link>), Status> {
        let mut state = self.lock();
        match &*state {
            State::Closed => return Err(Status::cancelled("the channel is closed")),
            State::Open(pid, runtime, link) if *pid == process::id() => {
                return Ok((runtime.clone(), link.clone()));
            }
            State::Idle | State::Open(..) => (),
        }
        let runtime = runtime::open()?;
        let (sender, link) = watch::channel(Link::Connecting);
        runtime.spawn(keep(self.address.clone(), sender));
        let opened = State::Open(process::id(), runtime.clone(), link.clone());
        forget_if_foreign(std::mem::replace(&mut *state, opened));
        Ok((runtime, link))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // Every change is one assignment, so a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.close();
    }
}

/// A parent's connection, in a forked child, belongs to threads that are not here: never touch it.
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
    link: watch::Receiver<Link>,
    uri: Arc<Uri>,
    message: Bytes,
    limit: Duration,
) -> impl Future<Output = Result<Matches, Status>> + Send {
    let limit = limit.min(TIMEOUT_MAX);
    async move {
        let begin = Instant::now();
        let outcome = timeout(limit, call::unary(link, &uri, message, limit)).await;
        match outcome {
            // The server was told the same limit, and its timer can be the one that is heard first;
            // tonic's says CANCELLED.
            Ok(Err(status)) if status.code() == Code::Cancelled && begin.elapsed() >= limit => {
                Err(too_late(limit))
            }
            Ok(body) => decode(&body?),
            Err(_) => Err(too_late(limit)),
        }
    }
}
