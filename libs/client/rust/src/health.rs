//! Chooses the replica to ask next, from what was observed of each. Time and randomness are arguments.
//!
//! Healthy replicas take turns, so each gets its share of the calls and every failure is noticed. A
//! replica that failed is tried last until its backoff is over. Each failure in a row doubles the
//! backoff, from 0.1 s to 5 s. Then one call tries it first again, and if that is answered, all calls
//! do.
//!
//! While all replicas are healthy, a call costs one atomic step: it takes no lock and allocates nothing.

use std::iter::FusedIterator;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::random::Random;

/// Longest backoff after a first failure.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// Longest backoff after any number of failures.
pub const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Observed health of all replicas; thread-safe.
///
/// A replica is an index into the addresses. A time is the distance from any fixed moment of a
/// monotonic clock.
pub struct Replicas {
    addresses: Box<[Arc<str>]>,
    turn: AtomicUsize,
    /// Whether some replica's last call failed. A thread that reads it late treats one more call as if
    /// all were healthy, or takes the lock for nothing.
    failing: AtomicBool,
    observed: Mutex<Observed>,
}

struct Observed {
    states: Box<[State]>,
    random: Random,
}

#[derive(Clone, Debug, Default)]
struct State {
    failures: u32,
    last_error: Option<String>,
    /// End of the backoff.
    retry: Duration,
    /// A call tries the replica after its backoff and has not ended yet.
    probed: bool,
}

/// Observations of one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaHealth {
    /// The replica, host:port.
    pub address: Arc<str>,
    /// Failures in a row; 0: the last call was answered, or there was none.
    pub failures: u32,
    /// Reason of the last failure.
    pub last_error: Option<String>,
}

impl Replicas {
    /// All replicas start healthy; `seed` chooses the first one to ask, and the jitter of backoffs.
    pub fn new(addresses: impl IntoIterator<Item = Arc<str>>, seed: u64) -> Self {
        let addresses: Box<[Arc<str>]> = addresses.into_iter().collect();
        let mut random = Random::new(seed);
        let turn = random.next() as usize % addresses.len().max(1);
        let states = vec![State::default(); addresses.len()].into();
        Self {
            addresses,
            turn: AtomicUsize::new(turn),
            failing: AtomicBool::new(false),
            observed: Mutex::new(Observed { states, random }),
        }
    }

    /// The addresses, in the order of configuration.
    pub fn addresses(&self) -> &[Arc<str>] {
        &self.addresses
    }

    /// Returns all replicas, the one to ask first in front.
    pub fn order(&self, now: Duration) -> Order {
        let count = self.addresses.len();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let rotation = Order {
            first: turn % count.max(1),
            count,
            taken: 0,
            sorted: None,
        };
        if !self.failing.load(Ordering::Relaxed) {
            return rotation;
        }
        let mut observed = self.lock();
        let mut sorted: Box<[usize]> = rotation.clone().collect();
        // Stable: replicas that may be asked (zero) keep their turns, the others follow by time.
        sorted.sort_by_key(|replica| observed.states[*replica].retry.saturating_sub(now));
        if let Some(first) = sorted.first() {
            let State {
                failures, retry, ..
            } = observed.states[*first];
            if failures > 0 && retry <= now {
                // Only this call tries it; until it succeeds, other calls use healthy replicas.
                let retry = now + observed.backoff(failures);
                let state = &mut observed.states[*first];
                state.retry = retry;
                state.probed = true;
            }
        }
        Order {
            sorted: Some(sorted),
            ..rotation
        }
    }

    /// Reports that the replica answered.
    pub fn answered(&self, replica: usize) {
        if !self.failing.load(Ordering::Relaxed) {
            return;
        }
        let mut observed = self.lock();
        observed.states[replica] = State::default();
        let failing = observed.states.iter().any(|state| state.failures > 0);
        self.failing.store(failing, Ordering::Relaxed);
    }

    /// Reports that the replica was not reached in time, or cannot serve.
    pub fn failed(&self, replica: usize, now: Duration, error: &str) {
        let mut observed = self.lock();
        self.failing.store(true, Ordering::Relaxed);
        let state = &observed.states[replica];
        // Calls under way at the same time fail together; that is one failure.
        if state.failures == 0 || state.probed || state.retry <= now {
            let failures = state.failures.saturating_add(1);
            let retry = now + observed.backoff(failures);
            let state = &mut observed.states[replica];
            state.failures = failures;
            state.probed = false;
            state.retry = retry;
        }
        observed.states[replica].last_error = Some(error.to_owned());
    }

    /// Returns the time until some replica may be asked; zero: now.
    pub fn wait(&self, now: Duration) -> Duration {
        let observed = self.lock();
        let retries = observed.states.iter().map(|state| state.retry);
        retries.min().unwrap_or_default().saturating_sub(now)
    }

    /// Returns a copy of the observations, in the order of configuration.
    pub fn observed(&self) -> Vec<ReplicaHealth> {
        let observed = self.lock();
        let each = self.addresses.iter().zip(&observed.states);
        each.map(|(address, state)| ReplicaHealth {
            address: Arc::clone(address),
            failures: state.failures,
            last_error: state.last_error.clone(),
        })
        .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Observed> {
        // No step under the lock can panic between two changes that belong together.
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observed {
    fn backoff(&mut self, failures: u32) -> Duration {
        let doubled = BACKOFF_FIRST * (1 << failures.saturating_sub(1).min(16));
        doubled.min(BACKOFF_MAX).mul_f64(self.random.jitter())
    }
}

/// The replicas that one query may ask, in order.
#[derive(Clone, Debug)]
pub struct Order {
    first: usize,
    count: usize,
    taken: usize,
    /// None: in rotation, from `first` on.
    sorted: Option<Box<[usize]>>,
}

impl Iterator for Order {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.taken == self.count {
            return None;
        }
        let place = self.taken;
        self.taken += 1;
        Some(match &self.sorted {
            Some(sorted) => sorted[place],
            None => (self.first + place) % self.count,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.count - self.taken;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Order {}
impl FusedIterator for Order {}

#[cfg(test)]
mod tests;
