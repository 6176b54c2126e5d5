//! The public index: batches in, answers out.
//!
//! Writers take one shard's lock per block, after asking for the cache lines of a whole window of
//! blocks, so that their misses overlap. Every call is pinned from start to end: nothing it can reach
//! is freed or used again meanwhile, neither memory nor worker slots.

use parking_lot::Mutex;

use crate::answer::Matches;
use crate::counters::{Counters, Events};
use crate::find;
use crate::grace::{Grace, Pin};
use crate::membership::{self, Directories, Member, Shard};
use crate::query::{FindOptions, Query};
use crate::roster::{Change, Roster};
use crate::shard_table::Shared;
use crate::sweep::Sweeper;
use crate::table::Directory;
use crate::types::{
    IndexConfig, IndexError, MemoryUse, SlotId, SlotSummary, Sweep, Tier, WorkerKey,
};

/// Blocks whose table slots are fetched together, ahead of being written.
const WINDOW: usize = 32;

/// Sequence hash → set of workers. Share it by `Arc`: every method takes `&self`; look-ups take no
/// lock and are never kept waiting by writers.
///
/// The calls that change one slot may come from several threads, but then the order in which they take
/// effect is theirs to see to.
pub struct Index {
    pub(crate) shared: Shared,
    pub(crate) directories: Directories,
    pub(crate) shards: Box<[Shard]>,
    pub(crate) sweeper: Mutex<Sweeper>,
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
        Self {
            shared: Shared {
                grace: Grace::new(),
                roster: Roster::new(),
                counters: Counters::default(),
                initial_slots: config.initial_slots_per_shard,
            },
            directories: std::array::from_fn(|_| Directory::new(config.shard_bits)),
            shards: (0..1usize << config.shard_bits)
                .map(|_| Shard::default())
                .collect(),
            sweeper: Mutex::default(),
        }
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
        self.change(slot, tier, sequence_hashes, true)
    }

    /// Takes blocks from what a slot holds on a tier, in the order given; returns how many it did
    /// hold there. Nothing for a retired slot.
    pub fn remove(&self, slot: SlotId, tier: Tier, sequence_hashes: &[u64]) -> usize {
        self.change(slot, tier, sequence_hashes, false)
    }

    /// Removes all that a live slot holds on one tier, at once: a pass over the whole table, shard by
    /// shard. To empty a worker on all tiers, [`Self::replace`] by a fresh slot costs next to nothing.
    pub fn clear(&self, slot: SlotId, tier: Tier) {
        let pin = self.shared.grace.pin();
        for shard in 0..self.shards.len() {
            if self.summary(slot).tier(tier).count == 0 {
                return;
            }
            let hashes =
                self.shards[shard]
                    .tables
                    .lock()
                    .held_by(&self.directories, slot.slot, tier);
            self.change_window(slot, tier, &hashes, false, &pin);
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
        for shard in &self.shards {
            if !self.shared.roster.writable(slot) {
                return Vec::new();
            }
            hashes.extend(
                shard
                    .tables
                    .lock()
                    .held_by(&self.directories, slot.slot, tier),
            );
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

    /// Who holds how many leading blocks of `query`, into `out`, whose buffers are used again.
    pub fn find(&self, query: Query<'_>, options: &FindOptions, out: &mut Matches) {
        let pin = self.shared.grace.pin();
        let view = self.shared.roster.view(&pin);
        find::find(&self.directories[0], &pin, view, query, options, out);
    }

    /// Bytes in use.
    #[must_use]
    pub fn memory_bytes(&self) -> MemoryUse {
        let Shared {
            grace,
            roster,
            counters,
            ..
        } = &self.shared;
        let load = |bytes: &std::sync::atomic::AtomicUsize| {
            bytes.load(std::sync::atomic::Ordering::Relaxed)
        };
        let directories: usize = self.directories.iter().map(Directory::bytes).sum();
        MemoryUse {
            tables: load(&counters.table_bytes),
            bitmaps: load(&counters.bitmap_bytes),
            fixed: grace.fixed_bytes() + roster.bytes() + directories + size_of_val(&*self.shards),
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

    fn change(&self, slot: SlotId, tier: Tier, hashes: &[u64], stores: bool) -> usize {
        let pin = self.shared.grace.pin();
        hashes
            .chunks(WINDOW)
            .map(|window| self.change_window(slot, tier, window, stores, &pin))
            .sum()
    }

    fn change_window(
        &self,
        slot: SlotId,
        tier: Tier,
        hashes: &[u64],
        stores: bool,
        pin: &Pin<'_>,
    ) -> usize {
        let Self {
            shared,
            directories,
            shards,
            ..
        } = self;
        for &hash in hashes {
            directories[0].prefetch(hash, pin);
        }
        let mut change = Change::default();
        for &hash in hashes {
            let place = directories[0].place(hash);
            let mut tables = shards[place.shard].tables.lock();
            // Asked under the lock, see `Roster::writable`. And while pinned: so the slot cannot
            // begin another life before what was changed is accounted for.
            if !shared.roster.writable(slot) {
                break;
            }
            let member = Member {
                place,
                hash,
                slot: slot.slot,
            };
            let changed = if stores {
                tables.store(shared, directories, member, tier)
            } else {
                tables.remove(shared, directories, member, tier)
            };
            drop(tables);
            change.tier_count += usize::from(changed.tier);
            change.blocks += usize::from(changed.anywhere);
            change.digest ^= if changed.tier { hash } else { 0 };
        }
        shared.roster.account(slot.slot, tier, &change, stores);
        change.tier_count
    }
}
