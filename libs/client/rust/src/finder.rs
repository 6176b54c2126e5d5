//! `FindMatches` of a cell: replica after replica, within one deadline.
//!
//! A replica that hangs must not use up the deadline. While there is another replica to ask, an attempt
//! gets half of the time that is left. A query is encoded once, whatever the number of attempts.

use std::future::Future;
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvatlas_wire::v1::FindMatchesResponse;
use tokio::runtime::Handle;
use tonic::Status;

use crate::channel::{Channels, Target};
use crate::find_error::{Failure, FindError};
use crate::find_matches::{CellTerms, Encoder, Query};
use crate::health::{ReplicaHealth, Replicas};
use crate::{grpc, io_thread};

/// A shorter attempt is not sent after the first one: even loopback takes longer.
const ATTEMPT_MIN: Duration = Duration::from_micros(200);

/// Asks the replicas of one cell; thread-safe. Connects when first used.
///
/// Connections run on the process's I/O thread, or on the runtime that [`Self::run_on`] names. Calls
/// after a fork open their own connections in the child, on its I/O thread.
pub struct Finder {
    targets: Arc<[Target]>,
    replicas: Replicas,
    terms: Arc<CellTerms>,
    encoder: Encoder,
    /// From here on, `replicas` count the time.
    epoch: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// None: the I/O thread of the process.
    runtime: Option<(u32, Handle)>,
    channels: Option<Arc<Channels>>,
    closed: bool,
}

/// An answer, and who gave it.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Workers in parallel columns, deepest first.
    pub response: FindMatchesResponse,
    /// The replica that answered, host:port.
    pub replica: Arc<str>,
}

impl Finder {
    /// Makes a finder over the replicas at `addresses`, each host:port. `seed` chooses the first one to
    /// ask, and the jitter of backoffs; clients of one cell should differ in it.
    ///
    /// # Errors
    /// INVALID_ARGUMENT: there is no address, or one is not `host:port`.
    pub fn new(
        addresses: impl IntoIterator<Item = impl AsRef<str>>,
        terms: CellTerms,
        seed: u64,
    ) -> Result<Self, Status> {
        let targets = addresses
            .into_iter()
            .map(|address| Target::new(address.as_ref()))
            .collect::<Result<Arc<[Target]>, Status>>()?;
        if targets.is_empty() {
            return Err(Status::invalid_argument("there is no address of a replica"));
        }
        let addresses = targets.iter().map(|target| Arc::clone(&target.address));
        Ok(Self {
            replicas: Replicas::new(addresses, seed),
            targets,
            encoder: Encoder::new(&terms),
            terms: Arc::new(terms),
            epoch: Instant::now(),
            state: Mutex::default(),
        })
    }

    /// Opens connections on `runtime` from now on, which must drive I/O and time; calls under way keep
    /// theirs. A caller on that runtime then awaits answers without a hop between threads.
    pub fn run_on(&self, runtime: Handle) {
        let mut state = self.lock();
        state.runtime = Some((process::id(), runtime));
        discard(state.channels.take());
    }

    /// Asks until a replica answers or the deadline, counted from the first poll, is over.
    ///
    /// The query is encoded at once. The future must be polled on a runtime with timers; dropping it
    /// cancels the call.
    ///
    /// # Errors
    /// See [`FindError`].
    pub fn find_matches<'a>(
        &'a self,
        query: &Query<'_>,
        deadline: Duration,
    ) -> impl Future<Output = Result<Found, FindError>> + Send + use<'a> {
        let begun = self.begin(query, deadline);
        async move {
            let (channels, message) = begun?;
            self.attempt_all(&channels, message, deadline).await
        }
    }

    /// Does the same, and blocks the thread. Must not be called on a thread of a runtime.
    ///
    /// # Errors
    /// See [`FindError`].
    pub fn find_matches_blocking(
        &self,
        query: &Query<'_>,
        deadline: Duration,
    ) -> Result<Found, FindError> {
        let (channels, message) = self.begin(query, deadline)?;
        let attempts = self.attempt_all(&channels, message, deadline);
        channels.runtime().block_on(attempts)
    }

    /// Does the same in the background: calls `done` exactly once with the outcome, on the runtime of
    /// the connections, which `done` must not block. An error that is known at once is reported before
    /// this returns. If the runtime ends first, the error has no failures.
    pub fn find_matches_soon(
        self: &Arc<Self>,
        query: &Query<'_>,
        deadline: Duration,
        done: impl FnOnce(Result<Found, FindError>) + Send + 'static,
    ) {
        let (channels, message) = match self.begin(query, deadline) {
            Ok(begun) => begun,
            Err(error) => return done(Err(error)),
        };
        let finder = Arc::clone(self);
        let runtime = channels.runtime().clone();
        let completion = Completion {
            done: Some(done),
            deadline,
        };
        runtime.spawn(async move {
            completion.end(finder.attempt_all(&channels, message, deadline).await);
        });
    }

    /// Returns the observations of each replica, in the order of configuration.
    pub fn replicas(&self) -> Vec<ReplicaHealth> {
        self.replicas.observed()
    }

    /// Closes all connections. Attempts under way may finish; further ones are CANCELLED.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        if let Some(channels) = &state.channels {
            channels.close();
        }
        discard(state.channels.take());
    }

    /// Encodes the query and returns the channels of this process.
    fn begin(
        &self,
        query: &Query<'_>,
        deadline: Duration,
    ) -> Result<(Arc<Channels>, Bytes), FindError> {
        let message = self.encoder.encode(query).map_err(|status| {
            // No replica has seen it.
            FindError::QueryRejected(Failure::new(&"this client".into(), &status))
        })?;
        let channels = self.channels().map_err(|status| {
            let replicas = self.replicas.addresses().iter();
            FindError::NoReplica {
                deadline,
                failures: replicas.map(|each| Failure::new(each, &status)).collect(),
            }
        })?;
        Ok((channels, message))
    }

    async fn attempt_all(
        &self,
        channels: &Channels,
        message: Bytes,
        deadline: Duration,
    ) -> Result<Found, FindError> {
        let begin = Instant::now();
        let mut failures = Vec::new();
        let mut order = self.replicas.order(begin - self.epoch);
        while let Some(replica) = order.next() {
            let left = deadline.min(grpc::WAIT_MAX).saturating_sub(begin.elapsed());
            let Some(limit) = limit_of_attempt(left, failures.is_empty(), order.len() == 0) else {
                break;
            };
            let answer = channels.find_matches(replica, message.clone(), limit);
            let status = match answer.await {
                Ok(response) => {
                    self.replicas.answered(replica);
                    let replica = Arc::clone(&self.targets[replica].address);
                    return Ok(Found { response, replica });
                }
                Err(status) => status,
            };
            let failure = Failure::new(&self.targets[replica].address, &status);
            match failure.into_final(&self.terms) {
                Ok(error) => return Err(error),
                Err(failure) => {
                    self.replicas
                        .failed(replica, self.epoch.elapsed(), &failure.message);
                    failures.push(failure);
                }
            }
        }
        Err(FindError::NoReplica { deadline, failures })
    }

    fn channels(&self) -> Result<Arc<Channels>, Status> {
        let mut state = self.lock();
        if state.closed {
            return Err(Status::cancelled("the client is closed"));
        }
        if let Some(channels) = &state.channels
            && !channels.is_foreign()
        {
            return Ok(Arc::clone(channels));
        }
        let runtime = match &state.runtime {
            Some((pid, runtime)) if *pid == process::id() => runtime.clone(),
            _ => io_thread::open()?,
        };
        let channels = Arc::new(Channels::new(Arc::clone(&self.targets), runtime));
        discard(state.channels.replace(Arc::clone(&channels)));
        Ok(channels)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is one assignment, so a panic leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Finder {
    fn drop(&mut self) {
        self.close();
    }
}

/// The callback of a call in the background; it is called even if the runtime drops the call.
struct Completion<F: FnOnce(Result<Found, FindError>)> {
    done: Option<F>,
    deadline: Duration,
}

impl<F: FnOnce(Result<Found, FindError>)> Completion<F> {
    fn end(mut self, outcome: Result<Found, FindError>) {
        if let Some(done) = self.done.take() {
            done(outcome);
        }
    }
}

impl<F: FnOnce(Result<Found, FindError>)> Drop for Completion<F> {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done(Err(FindError::NoReplica {
                deadline: self.deadline,
                failures: Vec::new(),
            }));
        }
    }
}

/// Drops channels, or leaks those of a parent process in a forked child: dropping them would wake
/// threads that do not exist here.
fn discard(channels: Option<Arc<Channels>>) {
    if let Some(channels) = channels
        && channels.is_foreign()
    {
        std::mem::forget(channels);
    }
}

/// Returns how long an attempt may take of the time `left`; None: it is too late for another one.
fn limit_of_attempt(left: Duration, is_first: bool, is_last: bool) -> Option<Duration> {
    if left < ATTEMPT_MIN && !is_first {
        return None;
    }
    Some(if is_last { left } else { left / 2 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The limits of `count` attempts, each of which takes `share` of its own.
    fn limits(count: usize, share: f64) -> Vec<f64> {
        let mut left = SECOND;
        let mut limits = Vec::new();
        for i in 0..count {
            let Some(limit) = limit_of_attempt(left, i == 0, i + 1 == count) else {
                break;
            };
            limits.push(limit.as_secs_f64());
            left = left.saturating_sub(limit.mul_f64(share));
        }
        limits
    }

    #[test]
    fn a_lone_replica_has_the_whole_deadline() {
        assert_eq!(limits(1, 1.0), [1.0]);
    }

    #[test]
    fn each_attempt_has_half_of_the_time_left_and_the_last_one_all() {
        assert_eq!(limits(3, 1.0), [0.5, 0.25, 0.25]);
    }

    #[test]
    fn a_quick_failure_leaves_the_others_more() {
        assert_eq!(limits(2, 0.25), [0.5, 0.875]);
    }

    #[test]
    fn there_is_no_attempt_after_the_deadline() {
        assert_eq!(limits(3, 4.0), [0.5]);
        assert_eq!(
            limit_of_attempt(Duration::ZERO, true, true),
            Some(Duration::ZERO)
        );
    }

    #[test]
    fn addresses_are_checked() {
        let none: [&str; 0] = [];
        assert!(Finder::new(none, CellTerms::default(), 0).is_err());
        for bad in ["", "host", ":80", "http://host:80", "host:80/path", "a b:1"] {
            assert!(
                Finder::new([bad], CellTerms::default(), 0).is_err(),
                "{bad}"
            );
        }
        for good in ["host:80", "127.0.0.1:1", "[::1]:50051"] {
            assert!(
                Finder::new([good], CellTerms::default(), 0).is_ok(),
                "{good}"
            );
        }
    }
}
