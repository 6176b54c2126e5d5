//! Exponential backoff with jitter between attempts to connect.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(20);
const MAX: Duration = Duration::from_secs(1);

/// Pauses that double from 20 ms to 1 s. The jitter takes up to half of each away, so the clients of a
/// restarted server do not return all at once.
pub struct Backoff {
    next: Duration,
    random: u64,
}

impl Backoff {
    /// Starts with the shortest pause; `random` seeds the jitter.
    pub fn new(random: u64) -> Self {
        Self {
            next: FIRST,
            random,
        }
    }

    /// Returns the pause before the next attempt, and doubles the one after it.
    pub fn next_pause(&mut self) -> Duration {
        // The upper bits of a linear congruential step: any sequence that differs between clients
        // is good enough.
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let share = (self.random >> 11) as f64 / (1u64 << 53) as f64;
        let pause = self.next.mul_f64(1.0 - share / 2.0);
        self.next = (self.next * 2).min(MAX);
        pause
    }

    /// Starts again with the shortest pause, after the server answered.
    pub fn reset(&mut self) {
        self.next = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_bound_and_begin_again() {
        let mut backoff = Backoff::new(7);
        let pauses: Vec<Duration> = (0..20).map(|_| backoff.next_pause()).collect();
        assert!(pauses[0] >= FIRST / 2 && pauses[0] <= FIRST);
        assert!(pauses[19] >= MAX / 2 && pauses[19] <= MAX);
        backoff.reset();
        assert!(backoff.next_pause() <= FIRST);
    }

    #[test]
    fn two_clients_pause_differently() {
        assert_ne!(Backoff::new(1).next_pause(), Backoff::new(3).next_pause());
    }
}
