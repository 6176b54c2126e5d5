//! Measures how many bytes of the index one block takes.
//!
//! Bytes divided by blocks is right only while tables are full. A table that has lost blocks keeps its size until it
//! is less than a third full, and then every block in it seems expensive. Judged by that figure, no evicted worker would
//! ever come back, and each eviction would make the remaining blocks seem more expensive still. So a measured figure
//! stays valid until the index itself shows a better one:
//! - It holds more blocks for its size than the figure says: blocks have become cheaper.
//! - It takes more bytes than at the measurement, for at least as many blocks: its tables are full.
//! - It takes many more bytes, for fewer blocks: new blocks did not fit the space that others left, so blocks have
//!   become more expensive.
//!
//! Nothing is measured in a small index, where the smallest tables are most of its bytes.

/// Bytes of the index, and the blocks that they hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Usage {
    pub bytes: u64,
    pub blocks: u64,
}

impl Usage {
    /// Number of blocks that fit into `bytes` at this cost per block.
    fn blocks_in(self, bytes: u64) -> u64 {
        let blocks = u128::from(self.blocks) * u128::from(bytes) / u128::from(self.bytes.max(1));
        u64::try_from(blocks).unwrap_or(u64::MAX)
    }
}

/// A change of the index's bytes by more than one part in this many means that its tables have changed in size.
const RESIZED_SHARE: u64 = 8;

/// The measured cost per block, if there is one.
#[derive(Debug, Default)]
pub(crate) struct BytesPerBlock {
    measured: Option<Usage>,
}

impl BytesPerBlock {
    /// Updates the figure from the current usage. `bytes_max` is the budget. `is_exact` is false while some of the
    /// counted blocks may be gone already.
    pub fn observe(&mut self, now: Usage, bytes_max: u64, is_exact: bool) {
        let bytes_min = bytes_max / 2;
        let Some(known) = self.measured else {
            self.measured = (now.bytes > bytes_min).then_some(now);
            return;
        };
        let resized_bytes = known.bytes / RESIZED_SHARE;
        if now.bytes.max(bytes_min) + resized_bytes < known.bytes {
            // Tables have shrunk: keep the cost per block, but measure growth from the smaller size.
            let bytes = now.bytes.max(bytes_min);
            let blocks = known.blocks_in(bytes);
            self.measured = Some(Usage { bytes, blocks });
        }
        let is_cheaper = is_exact && now.blocks > known.blocks_in(now.bytes);
        let is_full = now.bytes > known.bytes && now.blocks >= known.blocks;
        let is_dearer = now.bytes > known.bytes + resized_bytes;
        if now.bytes > bytes_min && (is_cheaper || is_full || is_dearer) {
            self.measured = Some(now);
        }
    }

    /// Number of blocks that fit into `bytes`; None: not measured yet.
    pub fn blocks_in(&self, bytes: u64) -> Option<u64> {
        self.measured.map(|measured| measured.blocks_in(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: u64 = 1_000;

    /// Number of blocks that fit the budget after these observations of (bytes, blocks).
    fn fit(observed: &[(u64, u64)]) -> Option<u64> {
        let mut cost = BytesPerBlock::default();
        for &(bytes, blocks) in observed {
            cost.observe(Usage { bytes, blocks }, BYTES_MAX, true);
        }
        cost.blocks_in(BYTES_MAX)
    }

    #[test]
    fn nothing_is_measured_in_a_small_index() {
        assert_eq!(fit(&[(500, 1)]), None);
        assert_eq!(fit(&[(800, 80), (400, 1), (500, 50)]), Some(100));
    }

    #[test]
    fn while_the_index_grows_the_cost_per_block_follows_it() {
        assert_eq!(fit(&[(600, 60)]), Some(100));
        assert_eq!(fit(&[(600, 60), (1_000, 70)]), Some(70));
        assert_eq!(fit(&[(600, 60), (601, 60), (2_000, 60)]), Some(30));
    }

    #[test]
    fn blocks_that_leave_without_shrinking_the_tables_do_not_change_the_cost() {
        let full = (1_200, 120);
        assert_eq!(fit(&[full, (1_200, 5)]), Some(100));
        // A few more bytes for the remaining blocks do not change it either.
        assert_eq!(fit(&[full, (1_210, 5)]), Some(100));
        assert_eq!(fit(&[full, (990, 5), (1_010, 5), (990, 5)]), Some(100));
        assert_eq!(fit(&[full, (1_200, 5), (1_200, 119)]), Some(100));
    }

    #[test]
    fn cheaper_blocks_are_taken_over_at_once() {
        assert_eq!(fit(&[(1_200, 120), (1_200, 180)]), Some(150));
        assert_eq!(fit(&[(1_200, 120), (900, 180)]), Some(200));
    }

    #[test]
    fn retired_blocks_that_may_be_gone_do_not_make_the_others_cheaper() {
        let mut cost = BytesPerBlock::default();
        for (bytes, blocks, is_exact) in [(1_200, 120, true), (900, 180, false)] {
            cost.observe(Usage { bytes, blocks }, BYTES_MAX, is_exact);
        }
        assert_eq!(cost.blocks_in(BYTES_MAX), Some(100));
    }

    #[test]
    fn an_index_that_grows_for_fewer_blocks_has_more_expensive_ones() {
        let full = (1_200, 120);
        assert_eq!(fit(&[full, (1_200, 40), (1_400, 50)]), Some(35));
        // The same after tables have shrunk.
        assert_eq!(fit(&[full, (600, 30), (700, 35)]), Some(50));
        assert_eq!(fit(&[full, (600, 30), (660, 35)]), Some(100));
    }
}
