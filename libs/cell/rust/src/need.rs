//! Which workers lack records, and what asking for them takes: the list that recovery works from.
//!
//! The table keeps the set of their keys as records and ticks change it, so that asking costs what
//! the answer is long and a healthy cell pays nothing. A silent worker is not on it: nobody would
//! answer, and an ended lease keeps it out of matches anyway.

use std::ops::Bound;

use kvatlas_index::WorkerKey;

use crate::cell::Cell;

/// A worker that lacks records, and where they may be asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerNeed {
    /// Who.
    pub key: WorkerKey,
    /// Where its publisher answers, as its last heartbeat said; empty before the first.
    pub publisher_rpc: String,
    /// Of the publisher's life that is followed.
    pub epoch: u64,
    /// The last event whose effect the set holds.
    pub applied: u64,
    /// The highest event id that is known to exist.
    pub known: u64,
    /// True: it is not matched until it is whole. False: behind a gap that may still close by itself.
    pub recovering: bool,
}

impl Cell {
    /// At most `limit` workers that lack records, in the order of their keys, after `after`.
    #[must_use]
    pub fn needs(&self, limit: usize, after: Option<WorkerKey>) -> Vec<WorkerNeed> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.with_table(|table| {
            let keys = table.in_need.range((from, Bound::Unbounded));
            keys.filter_map(|key| table.workers.get(key))
                .take(limit)
                .map(|worker| worker.need())
                .collect()
        })
    }

    /// What one worker lacks; `None`: nothing, or nothing that could be asked for.
    #[must_use]
    pub fn need_of(&self, key: WorkerKey) -> Option<WorkerNeed> {
        self.with_table(|table| {
            let worker = table.workers.get(&key)?;
            table.in_need.contains(&key).then(|| worker.need())
        })
    }
}
