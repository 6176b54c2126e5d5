//! How long to wait before a server that refused is tried again.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(20);
const MAX: Duration = Duration::from_secs(1);

/// Waits that double from 20 ms to a second, each shortened by up to a half at random, so that the
/// clients of a restarted server do not come back all at once.
pub struct Backoff {
    next: Duration,
    random: u64,
}

impl Backoff {
    /// Starts at the shortest wait; `random` seeds the jitter.
    pub fn new(random: u64) -> Self {
        Self {
            next: FIRST,
            random,
        }
    }

    /// The wait before the next attempt.
    pub fn wait(&mut self) -> Duration {
        // A linear congruential step, of which the upper bits are used: any sequence that differs
        // between clients will do.
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let share = (self.random >> 11) as f64 / (1u64 << 53) as f64;
        let wait = self.next.mul_f64(1.0 - share / 2.0);
        self.next = (self.next * 2).min(MAX);
        wait
    }

    /// The server answered: begin with the shortest wait again.
    pub fn reset(&mut self) {
        self.next = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_bound_and_begin_again() {
        let mut backoff = Backoff::new(7);
        let waits: Vec<Duration> = (0..20).map(|_| backoff.wait()).collect();
        assert!(waits[0] >= FIRST / 2 && waits[0] <= FIRST);
        assert!(waits[19] >= MAX / 2 && waits[19] <= MAX);
        backoff.reset();
        assert!(backoff.wait() <= FIRST);
    }

    #[test]
    fn two_clients_wait_differently() {
        assert_ne!(Backoff::new(1).wait(), Backoff::new(3).wait());
    }
}
