//! The public index: batches in, answers out.
//!
//! Every call is pinned from start to end: nothing it can reach is freed or used again meanwhile, neither memory nor
//! worker slots. How changes go into the tables is told in [`crate::write`], how answers come out in [`crate::lookup`].

use std::sync::Arc;

use kvatlas_pages::Preparer;

use crate::cells::Cells;
use crate::counters::{Counters, Events};
use crate::grace::Grace;
use crate::membership::{self, Directories, Kind, Writing};
use crate::renewal::slots_reserved;
use crate::rights::Shards;
use crate::roster::Roster;
use crate::shard_table::Shared;
use crate::sweep::Sweeper;
use crate::sync::tally::Ordering::Relaxed;
use crate::sync::{Mutex, tally};
use crate::table::Directory;
use crate::types::{
    Applied, Hashes, IndexConfig, IndexError, MemoryUse, Run, SlotId, SlotSummary, Sweep, Tier,
    WorkerKey,
};

/// Sequence hash → set of workers. Share it by `Arc`: every method takes `&self`; look-ups take no
/// lock and are never kept waiting by writers.
///
/// The calls that change one slot may come from several threads, but then the order in which they take
/// effect is theirs to see to.
pub struct Index {
    pub(crate) shared: Shared,
    pub(crate) directories: Directories,
    pub(crate) shards: Shards,
    pub(crate) sweeper: Mutex<Sweeper>,
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
        let cells = Arc::<Cells>::default();
        Self {
            directories: std::array::from_fn(|_| {
                Directory::new(config.shard_bits, Arc::clone(&cells))
            }),
            shared: Shared {
                grace: Grace::new(),
                roster: Roster::new(),
                counters: Counters::default(),
                pages: Arc::default(),
                cells,
                initial_slots: config.initial_slots_per_shard.into(),
            },
            shards: Shards::new(1 << config.shard_bits),
            sweeper: Mutex::default(),
        }
    }

    /// Takes the memory for `memberships` (of blocks with one holder each) from the system, for good: until there are
    /// more, no table grows. Tables are still cleaned up where keys that nobody holds fill them, into memory of their own.
    pub fn reserve(&self, memberships: usize) {
        let pin = self.shared.grace.pin();
        let slots = slots_reserved(memberships, self.shards.len());
        self.shared.initial_slots.fetch_max(slots, Relaxed);
        let writing = Writing::new(&self.shared, &self.directories, &pin);
        for shard in 0..self.shards.len() {
            let mut rights = self.shards.enter_shared();
            rights.with(shard, |tables| {
                tables.reserve(writing.target(Kind::Anywhere), shard);
            });
        }
    }

    /// Takes so many bytes for tables from the system, and keeps them for good: while tables grow within them, no write
    /// waits for the system to find and clear pages. They count as idle until tables lie there. False if the system has
    /// no more to give.
    pub fn keep(&self, bytes: usize) -> bool {
        self.shared.pages.keep(bytes)
    }

    /// What takes memory ahead of tables that grow, on whatever thread runs it: without one, writes wait whenever a table
    /// is the first on a large page, until the system has found and cleared that.
    #[must_use]
    pub fn preparer(&self) -> Preparer {
        self.shared.pages.preparer()
    }

    /// A fresh, empty slot for `worker`, not yet matchable. A worker may have several at a time: one
    /// that is matchable, one that a snapshot is being loaded into.
    ///
    /// # Errors
    /// When every slot is taken or waits for [`Self::sweep`].
    pub fn allocate(&self, worker: WorkerKey) -> Result<SlotId, IndexError> {
        let (slot, reused) = self.shared.roster.allocate(worker)?;
        if reused {
            crate::counters::count(&self.shared.counters.events.slot_reuses);
        }
        Ok(slot)
    }

    /// Makes a slot matchable: a fresh one, or one that was suspended.
    pub fn publish(&self, slot: SlotId) {
        self.shared.roster.publish(slot, &self.shared.grace);
    }

    /// Takes a slot out of matches and keeps its memberships.
    pub fn suspend(&self, slot: SlotId) {
        self.shared.roster.suspend(slot, &self.shared.grace);
    }

    /// Takes a slot out of matches for ever; its memberships go with the sweep. The cost does not
    /// depend on how many there are.
    pub fn retire(&self, slot: SlotId) {
        self.shared.roster.retire(slot, &self.shared.grace);
    }

    /// Publishes `new` and retires `old` in one step: a look-up sees one or the other, never both.
    pub fn replace(&self, old: SlotId, new: SlotId) {
        self.shared.roster.replace(old, new, &self.shared.grace);
    }

    /// Adds blocks to what a slot holds on a tier, in the order given; returns how many it did not
    /// hold there yet. Nothing for a retired slot.
    pub fn store(&self, slot: SlotId, tier: Tier, sequence_hashes: &[u64]) -> usize {
        self.apply_one(slot, tier, true, Hashes::Sequences(sequence_hashes))
            .stored
    }

    /// As [`Self::store`], for blocks that are given by the hashes of their own tokens: the first follows the block whose
    /// sequence hash is `parent`, or begins a prompt. Sequence hashes are computed while earlier ones wait for memory.
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

    /// Takes blocks from what a slot holds on a tier, in the order given; returns how many it did
    /// hold there. Nothing for a retired slot.
    pub fn remove(&self, slot: SlotId, tier: Tier, sequence_hashes: &[u64]) -> usize {
        self.apply_one(slot, tier, false, Hashes::Sequences(sequence_hashes))
            .removed
    }

    fn apply_one(&self, slot: SlotId, tier: Tier, stores: bool, hashes: Hashes<'_>) -> Applied {
        self.apply([Run {
            slot,
            tier,
            stores,
            hashes,
        }])
    }

    /// Removes all that a live slot holds on one tier, at once: a pass over the whole table, shard by
    /// shard. To empty a worker on all tiers, [`Self::replace`] by a fresh slot costs next to nothing.
    pub fn clear(&self, slot: SlotId, tier: Tier) {
        let pin = self.shared.grace.pin();
        for shard in 0..self.shards.len() {
            if self.summary(slot).tier(tier).count == 0 {
                return;
            }
            let hashes = self.shards.enter_shared().with(shard, |tables| {
                tables.held_by(&self.directories, slot.slot, tier)
            });
            let run = Run {
                slot,
                tier,
                stores: false,
                hashes: Hashes::Sequences(&hashes),
            };
            self.apply_pinned(&mut std::iter::once(run), &pin);
        }
    }

    /// Counts and digests of what a slot holds; zeros for a retired one.
    #[must_use]
    pub fn summary(&self, slot: SlotId) -> SlotSummary {
        self.shared.roster.summary(slot)
    }

    /// Every hash a slot holds on a tier, in no particular order: a pass over the whole table.
    #[must_use]
    pub fn hashes(&self, slot: SlotId, tier: Tier) -> Vec<u64> {
        let _pin = self.shared.grace.pin();
        let mut hashes = Vec::new();
        for shard in 0..self.shards.len() {
            if !self.shared.roster.writable(slot) {
                return Vec::new();
            }
            hashes.extend(self.shards.enter_shared().with(shard, |tables| {
                tables.held_by(&self.directories, slot.slot, tier)
            }));
        }
        hashes
    }

    /// Whether a slot holds one block on a tier. Takes no lock.
    #[must_use]
    pub fn holds(&self, slot: SlotId, tier: Tier, sequence_hash: u64) -> bool {
        let pin = self.shared.grace.pin();
        self.shared.roster.writable(slot)
            && membership::holds(&self.directories, &pin, slot.slot, sequence_hash, tier)
    }

    /// A slice of the background clean-up: looks at about `budget` table slots, never keeping a shard
    /// locked for more than a thousand of them. Call it until it says that no more is left; if it does
    /// not move on, look-ups are running, and a later call will.
    pub fn sweep(&self, budget: usize) -> Sweep {
        self.sweeper.lock().run(self, budget)
    }

    /// Bytes in use.
    #[must_use]
    pub fn memory_bytes(&self) -> MemoryUse {
        let Shared {
            grace,
            roster,
            counters,
            pages,
            cells,
            ..
        } = &self.shared;
        let load = |bytes: &tally::AtomicUsize| bytes.load(tally::Ordering::Relaxed);
        let directories: usize = self.directories.iter().map(Directory::bytes).sum();
        MemoryUse {
            tables: load(&counters.table_bytes),
            bitmaps: load(&counters.bitmap_bytes) + cells.bytes(),
            fixed: grace.fixed_bytes()
                + roster.bytes()
                + directories
                + self.shards.bytes()
                + load(&counters.aside_bytes),
            idle: pages.idle_bytes(),
            retired: grace.retired_bytes(),
        }
    }

    /// Number of (worker slot, block) pairs of slots that are not retired.
    #[must_use]
    pub fn memberships(&self) -> u64 {
        self.shared.roster.memberships()
    }

    /// How often each inner event has happened.
    #[must_use]
    pub fn events(&self) -> Events {
        self.shared.counters.events.read()
    }
}
