//! The plain values of the public interface.

pub use kvatlas_types::{Tier, WorkerKey};
use thiserror::Error;

use crate::sync::sized_for_models;

/// Size of an empty table. Tiny values are legal, and let tests reach growth at once. Memory for large ones is needed when
/// a shard gets its first block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexConfig {
    /// Binary logarithm of the number of shards; at most 16. Each shard has its own writer lock and grows by itself, so
    /// many small shards keep each growth short.
    pub shard_bits: u32,
    /// Table entries (64 bytes for five) that a shard gets with its first block; at least 20. The sizes of the shards
    /// differ by up to a factor of two, so that they do not all grow at once.
    pub initial_entries_per_shard: usize,
}

impl Default for IndexConfig {
    fn default() -> Self {
        Self {
            shard_bits: 10,
            initial_entries_per_shard: 16,
        }
    }
}

/// Number of a worker slot, which stands for one worker in the sets of holders. One owner at a time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
#[repr(transparent)]
pub struct WorkerSlot(u16);

impl WorkerSlot {
    /// Bits of a slot's number.
    pub(crate) const BITS: u32 = 15;
    /// Number of slots that an index has.
    pub(crate) const COUNT: usize = sized_for_models(1 << Self::BITS, 128);

    pub(crate) const fn new(number: u16) -> Self {
        Self(number)
    }

    /// The slot's number, below 32,768.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The slot's number, as an index into an array.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The word of a bitmap that has the slot's bit.
    #[inline(always)]
    pub(crate) const fn word(self) -> usize {
        self.index() / 64
    }

    /// The slot's bit within that word.
    #[inline(always)]
    pub(crate) const fn bit(self) -> u64 {
        1 << (self.0 % 64)
    }
}

/// Handle of a worker slot: its number and a generation. Numbers are reused, generations are not, so a handle that outlives
/// its slot's owner changes nothing and reads nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SlotId {
    pub(crate) slot: WorkerSlot,
    pub(crate) generation: u32,
}

impl SlotId {
    /// The slot, whichever generation it is in.
    #[must_use]
    pub fn slot(self) -> WorkerSlot {
        self.slot
    }
}

/// Error of a call that could not be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum IndexError {
    /// Every worker slot is taken, or waits for the sweep.
    #[error("all {limit} worker slots are in use or not yet swept")]
    SlotsExhausted {
        /// Number of worker slots of an index.
        limit: usize,
    },
}

/// Count and digest of the blocks that a slot holds on one tier.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TierSummary {
    /// Number of blocks.
    pub count: u64,
    /// XOR of their sequence hashes.
    pub digest: u64,
}

/// Counts and digests of the blocks that a slot holds. Exact once the calls that changed them have returned.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SlotSummary {
    /// Per tier, in the order of [`Tier::ALL`].
    pub tiers: [TierSummary; 4],
    /// Blocks held on any tier, each counted once.
    pub blocks: u64,
}

impl SlotSummary {
    /// Count and digest of one tier.
    #[must_use]
    pub fn tier(&self, tier: Tier) -> TierSummary {
        self.tiers[tier as usize]
    }
}

/// Work done by one call of [`crate::Index::sweep`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[must_use]
pub struct Sweep {
    /// Table entries visited.
    pub visited: usize,
    /// Memberships of retired slots removed.
    pub removed: usize,
    /// Worker slots that can be allocated again.
    pub freed: usize,
    /// Whether another call has something to do, now or once running look-ups have ended.
    pub more: bool,
}

/// Bytes that the index uses, by purpose.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MemoryUse {
    /// Table entries, of all shards and tiers.
    pub tables: usize,
    /// Sets that do not fit their entry: spilled set words and bitmaps.
    pub bitmaps: usize,
    /// Records of shards and worker slots, and the view of who is matchable.
    pub fixed: usize,
    /// Memory on pages taken for tables that is free at the moment.
    pub idle: usize,
    /// Retired memory, kept until no running look-up can see it.
    pub retired: usize,
}

impl MemoryUse {
    /// Sum over all purposes.
    #[must_use]
    pub fn total(&self) -> usize {
        self.tables + self.bitmaps + self.fixed + self.idle + self.retired
    }
}

/// Blocks that one slot gains or loses on one tier, in this order.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The slot that gains or loses them.
    pub slot: SlotId,
    /// The tier on which they are stored or removed.
    pub tier: Tier,
    /// True if the blocks are stored, false if they are removed.
    pub stores: bool,
    /// The blocks.
    pub hashes: Hashes<'a>,
}

/// Blocks, named by their hashes.
#[derive(Clone, Copy, Debug)]
pub enum Hashes<'a> {
    /// Sequence hashes.
    Sequences(&'a [u64]),
    /// Chunk hashes of consecutive blocks.
    Chunks {
        /// Sequence hash of the block before the first; none if the first begins a prompt.
        parent: Option<u64>,
        /// Hash of each block's own tokens.
        chunks: &'a [u64],
    },
}

/// Number of blocks that a call changed. Blocks stored that were there, and removed that were not, do not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// Blocks stored.
    pub stored: usize,
    /// Blocks removed.
    pub removed: usize,
}
