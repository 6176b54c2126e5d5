//! The result of one trial, and whether the trial counts.

use crate::index::cpu::Meter;
use crate::latency::Latencies;

/// The measurements of one trial.
#[derive(Default)]
pub struct TrialResult {
    /// When the last record was issued, ns from the start.
    pub issued_ns: u64,
    /// When the last event was applied.
    pub finished_ns: u64,
    /// How long the index took to settle afterwards.
    pub settle_ns: u64,
    /// Blocks asked for, stored and removed.
    pub block_ops: u64,
    /// Duration of look-ups, from call to return.
    pub lookup: Latencies,
    /// Blocks of each look-up's deepest match, if the design reports them.
    pub deepest: Vec<u32>,
    /// Delay of records: how long after their time they were issued.
    pub late: Latencies,
    /// Delay of events, from their time until they were applied; empty for a design with writers of its own.
    pub apply: Latencies,
    /// The same if every block took what it took on average: what is left is due to the stream's bursts. Empty for
    /// several appliers, or without a pace.
    pub even: Latencies,
    /// Processor time per block stored or removed.
    pub write: Meter,
}

impl TrialResult {
    /// Whether it kept up: all issued within 1.01 windows, all applied within 1.10.
    pub fn kept_up(&self, window_ms: u64) -> bool {
        let window_ns = window_ms as f64 * 1e6;
        window_ms > 0
            && self.issued_ns as f64 <= 1.01 * window_ns
            && self.finished_ns as f64 <= 1.10 * window_ns
    }

    /// Adds an applier's measurements to those of the issuing thread.
    pub fn take(&mut self, applied: &Self) {
        self.finished_ns = self.finished_ns.max(applied.finished_ns);
        self.apply.merge(&applied.apply);
        self.write.take(applied.write);
    }
}

/// How long events would wait for being applied, given as times and blocks, if each block took so long.
pub fn even_lag(events: impl Iterator<Item = (u64, usize)>, ns_per_block: f64) -> Latencies {
    let mut lag = Latencies::default();
    let mut free_ns = 0;
    for (due_ns, blocks) in events {
        free_ns = free_ns.max(due_ns) + (blocks as f64 * ns_per_block) as u64;
        lag.add_ns(free_ns - due_ns);
    }
    lag
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_even_cost_an_event_waits_for_those_before_it_and_for_no_others() {
        let events = [(0, 10), (0, 30), (50_000, 10)];
        let lag = even_lag(events.into_iter(), 1000.0);
        let near = |share, us: f64| (lag.quantile_us(share) / us - 1.0).abs() < 0.05;
        assert_eq!(lag.total(), 3);
        assert!(near(0.5, 10.0) && near(1.0, 40.0));
    }

    #[test]
    fn keeping_up_is_issuing_within_1_01_and_applying_within_1_10_windows() {
        let kept_up = |issued_ns, finished_ns, window_ms| {
            TrialResult {
                issued_ns,
                finished_ns,
                ..TrialResult::default()
            }
            .kept_up(window_ms)
        };
        assert!(kept_up(101_000_000, 110_000_000, 100));
        assert!(!kept_up(101_000_001, 110_000_000, 100));
        assert!(!kept_up(101_000_000, 110_000_001, 100));
        assert!(!kept_up(0, 0, 0), "no window, nothing to keep up with");
    }
}
