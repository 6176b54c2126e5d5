//! The words of the public surface: plain values, no behaviour beyond reading them.

use thiserror::Error;

/// How large the table starts. Tiny values are legal, and make tests reach growth at once; the memory that large ones ask for
/// must be there when shards get their first blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexConfig {
    /// The table has `2^shard_bits` shards, each with a writer lock of its own and a growth of its
    /// own. Many small shards keep each growth short. At most 16.
    pub shard_bits: u32,
    /// Table slots (five to 64 bytes) a shard gets when its first block arrives; never fewer than
    /// 20. Shards start up to twice as large as this, each by another factor, so that their growths
    /// spread evenly.
    pub initial_slots_per_shard: usize,
}

impl Default for IndexConfig {
    fn default() -> Self {
        Self {
            shard_bits: 10,
            initial_slots_per_shard: 16,
        }
    }
}

/// One scheduler with a KV cache of its own: a worker and its data-parallel rank.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct WorkerKey {
    /// The worker's id.
    pub worker_id: u64,
    /// The data-parallel rank within it.
    pub dp_rank: u32,
}

/// Where a worker holds a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Tier {
    /// The accelerator's memory.
    Device,
    /// The host's memory.
    Host,
    /// A local disk.
    Disk,
    /// A store shared over the network.
    Remote,
}

impl Tier {
    /// Every tier, nearest first; a tier's place here is its index in [`SlotSummary::tiers`].
    pub const ALL: [Self; 4] = [Self::Device, Self::Host, Self::Disk, Self::Remote];
}

/// One life of a worker's set in the table. Slots are used again, lives are not: an id kept past
/// its life changes nothing and reads nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SlotId {
    pub(crate) slot: u16,
    pub(crate) life: u32,
}

impl SlotId {
    /// The slot's number, below 32,768: the same in all its lives, and of one owner at a time.
    #[must_use]
    pub fn number(self) -> u16 {
        self.slot
    }
}

/// Why a call could not be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum IndexError {
    /// Every worker slot is taken, or waits for the sweep.
    #[error("all {limit} worker slots are in use or not yet swept")]
    SlotsExhausted {
        /// The number of worker slots an index has.
        limit: usize,
    },
}

/// Count and digest of what a slot holds on one tier.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TierSummary {
    /// Number of blocks.
    pub count: u64,
    /// XOR of their sequence hashes.
    pub digest: u64,
}

/// What a slot holds. Exact once the calls that changed it have returned.
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

/// What one slice of the background clean-up did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[must_use]
pub struct Sweep {
    /// Table slots looked at.
    pub visited: usize,
    /// Memberships of dead workers removed.
    pub removed: usize,
    /// Worker slots given back.
    pub freed: usize,
    /// Whether another call has something to do, now or once running look-ups have ended.
    pub more: bool,
}

/// Bytes in use, by what they are for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MemoryUse {
    /// Table slots, of all shards and tiers.
    pub tables: usize,
    /// Bitmaps of blocks with many holders.
    pub bitmaps: usize,
    /// Shards' own records, worker slots, the view of who is matchable.
    pub fixed: usize,
    /// On pages taken for tables, and free at the moment.
    pub idle: usize,
    /// Retired, and kept only until no running look-up can hold it.
    pub retired: usize,
}

impl MemoryUse {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> usize {
        self.tables + self.bitmaps + self.fixed + self.idle + self.retired
    }
}

/// Blocks that one slot gains or loses on one tier, in this order.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Whose.
    pub slot: SlotId,
    /// Where.
    pub tier: Tier,
    /// They come; else they go.
    pub stores: bool,
    /// Which.
    pub hashes: Hashes<'a>,
}

/// Blocks, by their hashes.
#[derive(Clone, Copy, Debug)]
pub enum Hashes<'a> {
    /// By sequence hashes.
    Sequences(&'a [u64]),
    /// By the hashes of their own tokens.
    Chunks {
        /// Sequence hash of the block before the first; none if that begins a prompt.
        parent: Option<u64>,
        /// One for each.
        chunks: &'a [u64],
    },
}

/// How many blocks a call changed; those that came and were there, or went and were not, do not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// That came.
    pub stored: usize,
    /// That went.
    pub removed: usize,
}
