//! Counters by name and label, and a latency histogram, for the metrics page. All are relaxed atomics.
//!
//! A name is `what` or `what{label="value"}`. Labels come from this file alone, so their number is bounded.
//! Gauges are in `status.rs`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

macro_rules! counts {
    ($($variant:ident $name:literal,)+) => {
        /// The counters of a cell.
        #[allow(missing_docs, reason = "the names are the documentation")]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Count { $($variant,)+ }

        const NAMES: &[&str] = &[$($name,)+];
    };
}

counts! {
    RecordsAccepted "records_accepted",
    RejectedForeign "records_rejected{reason=\"foreign\"}",
    RejectedVersion "records_rejected{reason=\"unknown_version\"}",
    RejectedCorrupt "records_rejected{reason=\"corrupt\"}",
    RejectedMalformed "records_rejected{reason=\"malformed\"}",
    RejectedTooLarge "records_rejected{reason=\"too_large\"}",
    RejectedCell "records_rejected{reason=\"other_cell\"}",
    RejectedModel "records_rejected{reason=\"other_model\"}",
    RejectedBlockSize "records_rejected{reason=\"other_block_size\"}",
    RejectedHashContract "records_rejected{reason=\"other_hash_contract\"}",
    RejectedEpochAhead "records_rejected{reason=\"epoch_ahead\"}",
    RejectedEventIdJump "records_rejected{reason=\"event_id_jump\"}",
    RejectedRival "records_rejected{reason=\"rival_instance\"}",
    RejectedWorkers "records_rejected{reason=\"too_many_workers\"}",
    DroppedSeen "records_dropped{reason=\"seen\"}",
    DroppedOlderEpoch "records_dropped{reason=\"older_epoch\"}",
    DroppedEpochClosed "records_dropped{reason=\"epoch_closed\"}",
    DroppedSnapshotOld "records_dropped{reason=\"snapshot_old\"}",
    HeldBack "batches_held_back",
    HoldBackOverflows "hold_back_overflows",
    EventsApplied "events_applied",
    HashesStored "hashes_stored",
    HashesRemoved "hashes_removed",
    SnapshotsLoaded "snapshots_loaded",
    SnapshotsMismatched "snapshots_refused{reason=\"digest_mismatch\"}",
    SnapshotsTooLarge "snapshots_refused{reason=\"too_large\"}",
    SnapshotsNoRoom "snapshots_refused{reason=\"no_room\"}",
    GapsOutlasted "gaps_outlasted",
    RecoveriesGivenUp "recoveries_given_up",
    DigestsCompared "digests_compared",
    DigestsMismatched "digests_mismatched",
    EpochsBegun "epochs_begun",
    ShutdownsEngineGone "shutdowns{reason=\"engine_gone\"}",
    ShutdownsLeaving "shutdowns{reason=\"publisher_leaving\"}",
    LeasesEnded "leases_ended",
    LeasesResumed "leases_resumed",
    WorkersOverBudget "workers_over_budget",
    WorkersForgotten "workers_forgotten",
    FindOk "find_matches{code=\"ok\"}",
    FindMismatch "find_matches{code=\"failed_precondition\"}",
    FindInvalid "find_matches{code=\"invalid_argument\"}",
    FindTooLarge "find_matches{code=\"resource_exhausted\"}",
    FindNotReady "find_matches{code=\"unavailable\"}",
    FindUnread "find_matches{code=\"internal\"}",
    IngestRequests "ingest_requests",
    WatchesOpened "watches_opened",
    WatchFulls "watch_fulls",
}

/// The values of all counters of one cell.
#[derive(Debug)]
pub struct Counters {
    values: [AtomicU64; NAMES.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            values: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Counters {
    /// Adds one.
    #[inline]
    pub fn add(&self, count: Count) {
        self.add_many(count, 1);
    }

    /// Adds `by`.
    #[inline]
    pub fn add_many(&self, count: Count, by: u64) {
        self.values[count as usize].fetch_add(by, Relaxed);
    }

    /// The current value.
    #[must_use]
    pub fn get(&self, count: Count) -> u64 {
        self.values[count as usize].load(Relaxed)
    }

    /// All values, by name.
    pub fn read(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        NAMES
            .iter()
            .copied()
            .zip(self.values.iter().map(|value| value.load(Relaxed)))
    }
}

/// Upper bounds of the latency buckets, in ns: since a look-up takes microseconds.
pub const BOUNDS_NS: [u64; 19] = [
    1_000,
    2_000,
    3_000,
    5_000,
    7_500,
    10_000,
    15_000,
    20_000,
    30_000,
    50_000,
    75_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    5_000_000,
    20_000_000,
    100_000_000,
    1_000_000_000,
];

/// A latency histogram.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BOUNDS_NS.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    /// Adds an observation.
    #[inline]
    pub fn observe(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_NS.iter().take_while(|&&bound| ns > bound).count();
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(ns, Relaxed);
    }

    /// Upper bounds in seconds, cumulative counts (one more than bounds), and the sum in seconds.
    #[must_use]
    pub fn read(&self) -> (Vec<f64>, Vec<u64>, f64) {
        let mut total = 0;
        let counts = self.buckets.iter().map(|bucket| {
            total += bucket.load(Relaxed);
            total
        });
        let counts = counts.collect();
        let bounds = BOUNDS_NS.iter().map(|&ns| ns as f64 / 1e9).collect();
        (bounds, counts, self.sum_ns.load(Relaxed) as f64 / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observation_is_counted_in_the_first_bucket_that_contains_it() {
        let histogram = Histogram::default();
        for ns in [1, 1_000, 1_001, 2_000_000_000] {
            histogram.observe(Duration::from_nanos(ns));
        }
        let (bounds, counts, sum_s) = histogram.read();
        assert_eq!(counts.len(), bounds.len() + 1);
        assert_eq!(counts[..2], [2, 3]);
        assert_eq!(counts[BOUNDS_NS.len() - 1..], [3, 4]);
        assert!((sum_s - 2.000_002_002).abs() < 1e-9);
    }

    #[test]
    fn every_count_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> = NAMES.iter().collect();
        assert_eq!(names.len(), NAMES.len());
    }
}
