//! The parts of the index that changes to all tables share.

use std::sync::Arc;

use kvatlas_pages::PageHeap;

use crate::counters::Counters;
use crate::memory::reclamation::{Pin, Reclaimer};
use crate::sync::relaxed::AtomicUsize;
use crate::table::directory::Directory;
use crate::table::spilled_sets::SpilledSets;
use crate::workers::worker_slots::WorkerSlots;

/// One of each in an index.
pub(crate) struct SharedState {
    pub reclaimer: Reclaimer,
    pub workers: WorkerSlots,
    pub counters: Counters,
    pub pages: Arc<PageHeap>,
    pub spilled: Arc<SpilledSets>,
    /// Entries of a shard's smallest table, before sizes are spread over the shards.
    pub initial_entries: AtomicUsize,
}

/// Everything that a change to one table needs.
#[derive(Clone, Copy)]
pub(crate) struct TableContext<'a> {
    pub shared: &'a SharedState,
    pub directory: &'a Directory,
    /// The writer's pin.
    pub pin: &'a Pin<'a>,
    /// The epoch, now or a little ago.
    pub epoch: u64,
}
