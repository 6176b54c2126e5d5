//! A request to recover a worker: what it lacks, and where its publisher answers.

use kvatlas_index::WorkerKey;

/// A worker that lacks records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecoveryRequest {
    /// The worker.
    pub key: WorkerKey,
    /// Address of its publisher, from its last heartbeat; empty before the first.
    pub publisher_rpc: String,
    /// The epoch that the cell follows.
    pub epoch: u64,
    /// The last event whose effect the set holds.
    pub applied: u64,
    /// The highest event id that is known to exist.
    pub known: u64,
    /// True: the worker is not matched until it is whole. False: it is matched, behind a gap that may close by itself.
    pub recovering: bool,
}
