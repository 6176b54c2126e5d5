//! The types that several crates share. Each mirrors a message or an enum of `events.proto`, and
//! `kvatlas_wire.types` has the same in Python.

use std::fmt;

/// One engine rank with a cache of its own; unique in a cell.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct WorkerKey {
    /// Id of the worker.
    pub worker_id: u64,
    /// Data-parallel rank within the worker.
    pub dp_rank: u32,
}

impl fmt::Display for WorkerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.worker_id, self.dp_rank)
    }
}

/// Kind of memory that holds a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Tier {
    /// Memory of the accelerator.
    Device,
    /// Memory of the host.
    Host,
    /// A local disk.
    Disk,
    /// A store shared over the network.
    Remote,
}

impl Tier {
    /// Every tier, nearest first; the position of a tier is its number.
    pub const ALL: [Self; 4] = [Self::Device, Self::Host, Self::Disk, Self::Remote];
    /// Number of tiers.
    pub const COUNT: usize = Self::ALL.len();
}

/// Number and XOR of the sequence hashes of one tier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct TierDigest {
    /// Number of blocks.
    pub blocks: u64,
    /// XOR of their sequence hashes.
    pub digest: u64,
}

impl TierDigest {
    /// The digest of these hashes.
    #[must_use]
    pub fn of(hashes: &[u64]) -> Self {
        Self {
            blocks: hashes.len() as u64,
            digest: hashes.iter().fold(0, |digest, hash| digest ^ hash),
        }
    }
}
