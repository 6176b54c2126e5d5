//! Latencies, counted exactly to a tenth of a microsecond, in bounded memory.

use std::time::Duration;

const STEP_NS: u128 = 100;
const STEPS: usize = 200_000;

/// Counts by tenths of a microsecond up to 20 ms; what is longer shares the last place.
pub struct Latencies {
    counts: Vec<u32>,
    total: u64,
    max: Duration,
}

impl Latencies {
    /// None yet.
    pub fn new() -> Self {
        Self {
            counts: vec![0; STEPS],
            total: 0,
            max: Duration::ZERO,
        }
    }

    /// One more.
    pub fn add(&mut self, took: Duration) {
        let step = usize::try_from(took.as_nanos() / STEP_NS).unwrap_or(STEPS);
        self.counts[step.min(STEPS - 1)] += 1;
        self.total += 1;
        self.max = self.max.max(took);
    }

    /// All of another's.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    /// How many.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The longest, in µs.
    pub fn max_us(&self) -> f64 {
        self.max.as_nanos() as f64 / 1e3
    }

    /// The smallest latency that this share of all calls did not exceed, in µs.
    pub fn quantile_us(&self, share: f64) -> f64 {
        let wanted = (share * self.total as f64).ceil() as u64;
        let mut seen = 0;
        for (step, &count) in self.counts.iter().enumerate() {
            seen += u64::from(count);
            if seen >= wanted.max(1) {
                return step as f64 / 10.0;
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_sorted_latencies() {
        let mut latencies = Latencies::new();
        for us in 1..=100 {
            latencies.add(Duration::from_micros(us));
        }
        let mut more = Latencies::new();
        more.add(Duration::from_secs(1));
        latencies.merge(&more);
        assert_eq!(latencies.total(), 101);
        assert!((latencies.quantile_us(0.5) - 51.0).abs() < 1e-9);
        assert!((latencies.quantile_us(0.9) - 91.0).abs() < 1e-9);
        assert!((latencies.max_us() - 1e6).abs() < 1e-9);
        assert!(Latencies::new().quantile_us(0.5).abs() < 1e-9);
    }
}
