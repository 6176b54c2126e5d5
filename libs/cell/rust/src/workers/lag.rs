//! How far workers are behind the events that are known to exist.

use std::cmp::Reverse;

use kvatlas_index::WorkerKey;

/// The lag of one worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkerLag {
    /// The worker.
    pub key: WorkerKey,
    /// Number of events that exist and are not applied.
    pub events: u64,
    /// Time in ms without progress on them.
    pub ms: u64,
}

/// The lag of all workers.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LagReport {
    /// The workers with the most missing events, the worst first.
    pub furthest_behind: Vec<WorkerLag>,
    /// Number of workers that are behind.
    pub workers: u64,
    /// Missing events of all workers.
    pub events: u64,
    /// The longest time of any worker without progress.
    pub ms_max: u64,
}

impl LagReport {
    /// Sums up these lags and names at most `limit` workers, so that a page of metrics stays short.
    pub(crate) fn new(mut lags: Vec<WorkerLag>, limit: usize) -> Self {
        let workers = lags.len() as u64;
        let events = lags.iter().map(|lag| lag.events).sum();
        let ms_max = lags.iter().map(|lag| lag.ms).max().unwrap_or_default();
        lags.sort_by_key(|lag| (Reverse(lag.events), lag.key));
        lags.truncate(limit);
        Self {
            furthest_behind: lags,
            workers,
            events,
            ms_max,
        }
    }
}
