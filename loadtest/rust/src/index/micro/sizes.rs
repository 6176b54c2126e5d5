//! How much the benchmarks of single calls measure.

/// Sizes of the indexes and of the calls.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Memberships of the indexes that calls are timed on.
    pub memberships: &'static [u64],
    /// Blocks of a query, with 64 holders; blocks of an event.
    pub depths: &'static [usize],
    /// Holders of a query of 64 blocks, and of an event's.
    pub holders: &'static [u32],
    /// Live workers, at eight holders of 256 blocks.
    pub fleets: &'static [u32],
    /// Number of calls whose median is reported.
    pub samples: usize,
    /// Blocks of a worker that dies.
    pub victim_blocks: u64,
    /// Workers that die, and windows of look-ups with a sweep.
    pub victims: u32,
}

/// The sizes of a full run.
pub const FULL: Sizes = Sizes {
    memberships: &[100_000, 1_000_000, 10_000_000],
    depths: &[1, 8, 64, 256, 1024, 8192],
    holders: &[1, 4, 16, 64, 256, 1024, 4096],
    fleets: &[16, 64, 256, 1024],
    samples: 101,
    victim_blocks: 100_000,
    victims: 24,
};

/// The sizes of `--quick`.
pub const QUICK: Sizes = Sizes {
    memberships: &[10_000],
    depths: &[1, 64, 300],
    holders: &[1, 100],
    fleets: &[16, 64],
    samples: 3,
    victim_blocks: 1_000,
    victims: 20,
};
