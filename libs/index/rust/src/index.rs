//! The public index: its parts, and the calls that change it or say what is in it.
//!
//! Every call is pinned from start to end: nothing that it can reach is freed or reused meanwhile, neither memory nor worker
//! slots. [`crate::apply`] has how changes go into the tables, [`crate::lookup`] how answers come out, [`crate::export`] how
//! whole sets do.

use std::sync::Arc;

use kvatlas_pages::Prefaulter;

use crate::counters::{Counters, Events, count};
use crate::memory::reclamation::Reclaimer;
use crate::sync::Mutex;
use crate::sync::relaxed::{AtomicUsize, Ordering::Relaxed};
use crate::table::capacity::reserved_size;
use crate::table::context::SharedState;
use crate::table::directory::Directory;
use crate::table::shard_locks::Shards;
use crate::table::spilled_sets::SpilledSets;
use crate::table::tier_tables::{self, Directories, TableKind, WriteContext};
use crate::types::{
    Applied, Change, Hashes, IndexConfig, IndexError, MemoryUse, SlotId, SlotSummary, Sweep, Tier,
    WorkerKey,
};
use crate::workers::sweep::{Sweeper, Swept};
use crate::workers::worker_slots::WorkerSlots;

/// Sequence hash → set of workers. Share it by `Arc`: every method takes `&self`; look-ups take no lock and never wait for
/// writers.
///
/// Several threads may change one slot, but then they must settle the order among themselves.
pub struct Index {
    pub(crate) shared: SharedState,
    pub(crate) directories: Directories,
    pub(crate) shards: Shards,
    sweeper: Mutex<Sweeper>,
}

impl Drop for Index {
    fn drop(&mut self) {
        self.shared.pages.close();
    }
}

impl Index {
    /// An empty index.
    ///
    /// # Panics
    /// If `shard_bits` is above 16.
    #[must_use]
    pub fn new(config: IndexConfig) -> Self {
        assert!(
            config.shard_bits <= 16,
            "shard_bits is {}, at most 16",
            config.shard_bits
        );
        let spilled = Arc::<SpilledSets>::default();
        Self {
            directories: std::array::from_fn(|_| {
                Directory::new(config.shard_bits, Arc::clone(&spilled))
            }),
            shared: SharedState {
                reclaimer: Reclaimer::new(),
                workers: WorkerSlots::new(),
                counters: Counters::default(),
                pages: Arc::default(),
                spilled,
                initial_entries: config.initial_entries_per_shard.into(),
            },
            shards: Shards::new(1 << config.shard_bits),
            sweeper: Mutex::default(),
        }
    }

    /// Takes the memory for `memberships` (of blocks with one holder each) from the system and keeps it. Until there are more,
    /// no table grows. Tables that are full of tombstones are still cleaned up, into memory of their own.
    pub fn reserve(&self, memberships: usize) {
        let pin = self.shared.reclaimer.pin();
        let entries = reserved_size(memberships, self.shards.len());
        self.shared.initial_entries.fetch_max(entries, Relaxed);
        let context = WriteContext::new(&self.shared, &self.directories, &pin);
        for shard in 0..self.shards.len() {
            self.shards.lock_shared().with_shard(shard, |tables| {
                tables.reserve(context.table(TableKind::Main), shard);
            });
        }
    }

    /// Takes so many bytes for tables from the system and keeps them. While tables grow within them, no write
    /// waits for the system to find and clear pages. They count as idle until tables use them. False if the system has no
    /// more memory.
    pub fn keep_memory(&self, bytes: usize) -> bool {
        self.shared.pages.keep(bytes)
    }

    /// The task that takes memory ahead of tables that grow; run it on a thread of its own. Without it, a write waits
    /// whenever a table is the first on a large page, until the system has found and cleared that page.
    #[must_use]
    pub fn prefaulter(&self) -> Prefaulter {
        self.shared.pages.prefaulter()
    }

    /// A fresh, empty slot for `worker`, not yet matchable. A worker may have several at a time: one that is matchable, one
    /// that a snapshot is being loaded into.
    ///
    /// # Errors
    /// When every slot is taken or waits for [`Self::sweep`].
    pub fn allocate(&self, worker: WorkerKey) -> Result<SlotId, IndexError> {
        let (slot, reused) = self.shared.workers.allocate(worker)?;
        if reused {
            count(&self.shared.counters.events.slot_reuses);
        }
        Ok(slot)
    }

    /// Makes a slot matchable: a fresh one, or one that was suspended.
    pub fn publish(&self, slot: SlotId) {
        self.shared.workers.publish(slot, &self.shared.reclaimer);
    }

    /// Takes a slot out of matches and keeps its memberships.
    pub fn suspend(&self, slot: SlotId) {
        self.shared.workers.suspend(slot, &self.shared.reclaimer);
    }

    /// Takes a slot out of matches for good; the sweep removes its memberships. The cost does not depend on how many there
    /// are.
    pub fn retire(&self, slot: SlotId) {
        self.shared.workers.retire(slot, &self.shared.reclaimer);
    }

    /// Publishes `new` and retires `old` in one step: a look-up sees one or the other, never both.
    pub fn replace(&self, old: SlotId, new: SlotId) {
        self.shared
            .workers
            .replace(old, new, &self.shared.reclaimer);
    }

    /// Adds blocks to those that a slot holds on a tier, in the order given; returns how many it did not hold there yet.
    /// Does nothing for a retired slot.
    pub fn store(&self, slot: SlotId, tier: Tier, sequence_hashes: &[u64]) -> usize {
        self.apply_one(slot, tier, true, Hashes::Sequences(sequence_hashes))
            .stored
    }

    /// As [`Self::store`], for blocks given by their chunk hashes: the first follows the block whose sequence hash is
    /// `parent`, or begins a prompt. Sequence hashes are computed while earlier ones wait for memory.
    pub fn store_chunks(
        &self,
        slot: SlotId,
        tier: Tier,
        parent: Option<u64>,
        chunk_hashes: &[u64],
    ) -> usize {
        let chunks = chunk_hashes;
        self.apply_one(slot, tier, true, Hashes::Chunks { parent, chunks })
            .stored
    }

    /// Removes blocks from those that a slot holds on a tier, in the order given; returns how many it did hold there. Does
    /// nothing for a retired slot.
    pub fn remove(&self, slot: SlotId, tier: Tier, sequence_hashes: &[u64]) -> usize {
        self.apply_one(slot, tier, false, Hashes::Sequences(sequence_hashes))
            .removed
    }

    fn apply_one(&self, slot: SlotId, tier: Tier, stores: bool, hashes: Hashes<'_>) -> Applied {
        self.apply([Change {
            slot,
            tier,
            stores,
            hashes,
        }])
    }

    /// Removes all blocks that a slot holds on one tier: a pass over the whole table, shard by shard. To empty a worker on
    /// all tiers, [`Self::replace`] its slot by a fresh one, which costs next to nothing.
    pub fn clear(&self, slot: SlotId, tier: Tier) {
        let pin = self.shared.reclaimer.pin();
        for shard in 0..self.shards.len() {
            if self.summary(slot).tier(tier).count == 0 {
                return;
            }
            let hashes = self.held_in_shard(shard, slot, tier);
            let change = Change {
                slot,
                tier,
                stores: false,
                hashes: Hashes::Sequences(&hashes),
            };
            self.apply_pinned(&mut std::iter::once(change), &pin);
        }
    }

    /// Counts and digests of what a slot holds; zeros for a retired one.
    #[must_use]
    pub fn summary(&self, slot: SlotId) -> SlotSummary {
        self.shared.workers.summary(slot)
    }

    /// Every hash that a slot holds on a tier, in no particular order: a pass over the whole table.
    #[must_use]
    pub fn hashes(&self, slot: SlotId, tier: Tier) -> Vec<u64> {
        let _pin = self.shared.reclaimer.pin();
        let mut hashes = Vec::new();
        for shard in 0..self.shards.len() {
            if !self.shared.workers.is_writable(slot) {
                return Vec::new();
            }
            hashes.extend(self.held_in_shard(shard, slot, tier));
        }
        hashes
    }

    fn held_in_shard(&self, shard: usize, slot: SlotId, tier: Tier) -> Vec<u64> {
        self.shards.lock_shared().with_shard(shard, |tables| {
            tables.held_by(&self.directories, slot.slot, tier)
        })
    }

    /// Whether a slot holds one block on a tier. Takes no lock.
    #[must_use]
    pub fn holds(&self, slot: SlotId, tier: Tier, sequence_hash: u64) -> bool {
        let pin = self.shared.reclaimer.pin();
        self.shared.workers.is_writable(slot)
            && tier_tables::holds(&self.directories, &pin, slot.slot, sequence_hash, tier)
    }

    /// Removes memberships of retired slots: looks at about `budget` table entries, and never keeps a shard locked for more
    /// than a thousand of them. Call it until it says that no more is left. If it makes no progress, look-ups are running,
    /// and a later call will.
    pub fn sweep(&self, budget: usize) -> Sweep {
        let swept = Swept {
            shared: &self.shared,
            directories: &self.directories,
            shards: &self.shards,
        };
        self.sweeper.lock().run(swept, budget)
    }

    /// Bytes in use.
    #[must_use]
    pub fn memory_bytes(&self) -> MemoryUse {
        let SharedState {
            reclaimer,
            workers,
            counters,
            pages,
            spilled,
            ..
        } = &self.shared;
        let load = |bytes: &AtomicUsize| bytes.load(Relaxed);
        let directories: usize = self.directories.iter().map(Directory::bytes).sum();
        MemoryUse {
            tables: load(&counters.table_bytes),
            bitmaps: load(&counters.bitmap_bytes) + spilled.bytes(),
            fixed: reclaimer.fixed_bytes()
                + workers.bytes()
                + directories
                + self.shards.bytes()
                + load(&counters.side_table_bytes),
            idle: pages.idle_bytes(),
            retired: reclaimer.retired_bytes(),
        }
    }

    /// Number of (worker slot, block) pairs of slots that are not retired.
    #[must_use]
    pub fn memberships(&self) -> u64 {
        self.shared.workers.memberships()
    }

    /// How often each inner event has happened.
    #[must_use]
    pub fn events(&self) -> Events {
        self.shared.counters.events.read()
    }
}
