//! A histogram of latencies with an error of half a percent, in 32 KB for any number of them.
//!
//! Its buckets are log-linear: exact up to 255 ns, then 128 per doubling. Counting a latency touches one
//! word, so a benchmark of microseconds can count in its hot loop.

use std::time::Duration;

/// Buckets per doubling, as a power of two.
const FINE_BITS: u32 = 7;
const FINE: usize = 1 << FINE_BITS;
const BUCKETS: usize = (64 - FINE_BITS as usize + 1) * FINE;

/// Number of latencies in each bucket.
pub struct Latencies {
    counts: Vec<u32>,
    total: u64,
    max_ns: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            total: 0,
            max_ns: 0,
        }
    }
}

impl Latencies {
    /// Counts a latency.
    pub fn add(&mut self, took: Duration) {
        self.add_ns(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Counts a latency in ns.
    #[inline]
    pub fn add_ns(&mut self, took_ns: u64) {
        self.counts[bucket(took_ns)] += 1;
        self.total += 1;
        self.max_ns = self.max_ns.max(took_ns);
    }

    /// Adds all latencies of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Number of latencies.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The longest latency, in µs.
    pub fn max_us(&self) -> f64 {
        self.max_ns as f64 / 1e3
    }

    /// The latency that this share of all do not exceed, in µs: the middle of its bucket.
    pub fn quantile_us(&self, share: f64) -> f64 {
        let wanted = (share * self.total as f64).ceil() as u64;
        let mut seen = 0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            seen += u64::from(count);
            if count > 0 && seen >= wanted {
                return middle_ns(bucket).min(self.max_ns as f64) / 1e3;
            }
        }
        0.0
    }
}

/// The highest `FINE_BITS + 1` bits of a number, and how many there are below.
#[inline]
fn bucket(ns: u64) -> usize {
    let below = (63 - FINE_BITS).saturating_sub((ns | 1).leading_zeros());
    (below as usize) * FINE + (ns >> below) as usize
}

fn middle_ns(bucket: usize) -> f64 {
    let below = (bucket / FINE).saturating_sub(1);
    let first = (bucket - below * FINE) as f64;
    let width = 2f64.powi(below as i32);
    first * width + (width - 1.0) / 2.0
}

/// The value in the middle; 0 if there is none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_half_a_percent_of_those_of_the_sorted_latencies() {
        let mut latencies = Latencies::default();
        for us in 1..=100 {
            latencies.add(Duration::from_micros(us));
        }
        let mut more = Latencies::default();
        more.add(Duration::from_secs(1));
        latencies.merge(&more);
        assert_eq!(latencies.total(), 101);
        for (share, us) in [(0.0, 1.0), (0.5, 51.0), (0.9, 91.0), (1.0, 1e6)] {
            let told = latencies.quantile_us(share);
            assert!((told / us - 1.0).abs() < 0.005, "{told} for {us}");
        }
        assert!((latencies.max_us() - 1e6).abs() < 1e-9);
        assert!(Latencies::default().quantile_us(0.5).abs() < 1e-9);
    }

    #[test]
    fn every_number_has_a_bucket_that_is_near_it() {
        let mut last = 0;
        for power in 0..64 {
            for ns in [1u64 << power, (1 << power) + (1u64 << power) / 3] {
                let here = bucket(ns);
                assert!(here >= last && here < BUCKETS, "{ns}");
                assert!((middle_ns(here) / ns as f64 - 1.0).abs() < 0.005, "{ns}");
                last = here;
            }
        }
        assert!(bucket(u64::MAX) < BUCKETS);
        assert!((0..256).all(|ns| bucket(ns) == ns as usize));
    }
}
