//! The flat index, behind the same trait.
//!
//! An adapter of `kvatlas-index`: it keeps a slot per worker, and copies answers into pairs of worker and depth. A cleared worker
//! gets a fresh slot; the sweep removes the old one's memberships when the caller settles or slots run out.

use std::sync::atomic::{AtomicU64, Ordering};

use kvatlas_index::{FindOptions, Index, IndexConfig, Query, SlotId, Tier, WorkerKey};
use parking_lot::RwLock;

use crate::design::{Answer, Match, PrefixIndex};

/// Table entries visited in one slice of the sweep.
const SWEEP_SLICE: usize = 4096;

/// The index, and each worker's slot in it.
pub struct Flat {
    index: Index,
    slots: RwLock<Vec<Option<SlotId>>>,
    refused: AtomicU64,
}

impl Flat {
    /// An empty index.
    ///
    /// # Panics
    /// As [`Index::new`].
    #[must_use]
    pub fn new(config: IndexConfig) -> Self {
        Self {
            index: Index::new(config),
            slots: RwLock::default(),
            refused: AtomicU64::new(0),
        }
    }

    fn slot(&self, worker: u32) -> Option<SlotId> {
        self.slots.read().get(worker as usize).copied().flatten()
    }

    /// The worker's slot, a new one if it has none; `None` if all slots are in use.
    fn take_slot(&self, worker: u32) -> Option<SlotId> {
        let known = self.slot(worker);
        if known.is_some() {
            return known;
        }
        let key = WorkerKey {
            worker_id: u64::from(worker),
            dp_rank: 0,
        };
        let fresh = self.index.allocate(key).or_else(|_| {
            self.sweep();
            self.index.allocate(key)
        });
        let fresh = fresh.ok()?;
        self.index.publish(fresh);
        let mut slots = self.slots.write();
        if slots.len() <= worker as usize {
            slots.resize(worker as usize + 1, None);
        }
        slots[worker as usize] = Some(fresh);
        Some(fresh)
    }

    fn sweep(&self) {
        while self.index.sweep(SWEEP_SLICE).more {
            std::thread::yield_now();
        }
    }
}

impl PrefixIndex for Flat {
    fn store(&self, worker: u32, parent: Option<u64>, chunks: &[u64]) {
        let Some(slot) = self.take_slot(worker) else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.index.store_chunks(slot, Tier::Device, parent, chunks);
    }

    fn remove(&self, worker: u32, hashes: &[u64]) {
        if let Some(slot) = self.slot(worker) {
            self.index.remove(slot, Tier::Device, hashes);
        }
    }

    fn clear(&self, worker: u32) {
        let slot = self
            .slots
            .write()
            .get_mut(worker as usize)
            .map(Option::take);
        if let Some(slot) = slot.flatten() {
            self.index.retire(slot);
        }
    }

    fn find(&self, chunks: &[u64], answer: &mut Answer) {
        answer.begin();
        let options = FindOptions::default();
        self.index
            .find(Query::ChunkHashes(chunks), &options, &mut answer.flat);
        let found = answer.flat.workers.iter().zip(&answer.flat.depths);
        answer.matches.extend(found.map(|(key, &depth)| Match {
            // The adapter's own ids are 32 bits wide.
            worker: key.worker_id as u32,
            depth,
        }));
    }

    fn settle(&self) {
        self.sweep();
    }

    fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Its tables are mapped by the system, not the allocator.
    fn accounted_bytes(&self) -> Option<usize> {
        Some(self.index.memory_bytes().total())
    }
}
