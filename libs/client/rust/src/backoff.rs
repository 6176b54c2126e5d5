//! Exponential backoff with jitter between attempts to connect.

use std::time::Duration;

use crate::random::Random;

const FIRST: Duration = Duration::from_millis(20);
const MAX: Duration = Duration::from_secs(1);

/// Pauses that double from 20 ms to 1 s. The jitter takes up to half of each away, so the clients of a
/// restarted server do not return all at once.
pub struct Backoff {
    next: Duration,
    random: Random,
}

impl Backoff {
    /// Starts with the shortest pause; `seed` is the jitter's.
    pub fn new(seed: u64) -> Self {
        Self {
            next: FIRST,
            random: Random::new(seed),
        }
    }

    /// Returns the pause before the next attempt, and doubles the one after it.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next.mul_f64(self.random.jitter());
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
