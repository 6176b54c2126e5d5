//! What a block takes, in an index whose tables keep their size when blocks leave.
//!
//! Bytes divided by blocks is what a block takes only while tables are used. A table that has lost blocks
//! stays as it is until it is less than a third full, and then every block in it looks dear: who is judged
//! by that is let in never again, and who is put out by it makes the rest look dearer still. So a figure
//! stands until the index itself shows another one:
//! - it holds more blocks, for its size, than the figure says: blocks have become lighter;
//! - it takes more than where it was measured, for at least as many blocks: its tables are full;
//! - it takes far more, for fewer blocks: whoever came found no room in what others left, so blocks have
//!   become heavier.
//!
//! Nothing is measured while the index takes little: its smallest tables are then most of it.

/// What the index takes, and for how much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Use {
    pub bytes: u64,
    pub blocks: u64,
}

impl Use {
    /// How many blocks fit into so many bytes, if they are like these.
    fn fit(self, bytes: u64) -> u64 {
        let blocks = u128::from(self.blocks) * u128::from(bytes) / u128::from(self.bytes.max(1));
        u64::try_from(blocks).unwrap_or(u64::MAX)
    }
}

/// Of the bytes where it was measured: what an index has to take more, or less, before its tables are
/// others than they were.
const RENEWED_SHARE: u64 = 8;

/// What a block takes, as far as that is known.
#[derive(Debug, Default)]
pub(crate) struct Weight {
    measured: Option<Use>,
}

impl Weight {
    /// The index takes so much, and may take `bytes_max`. `is_exact`: of its blocks, none is only thought to
    /// be there still.
    pub fn observe(&mut self, now: Use, bytes_max: u64, is_exact: bool) {
        let bytes_min = bytes_max / 2;
        let Some(known) = self.measured else {
            self.measured = (now.bytes > bytes_min).then_some(now);
            return;
        };
        let share = known.bytes / RENEWED_SHARE;
        if now.bytes.max(bytes_min) + share < known.bytes {
            // Tables have become smaller: from here on, what they grow by counts again.
            let bytes = now.bytes.max(bytes_min);
            let blocks = known.fit(bytes);
            self.measured = Some(Use { bytes, blocks });
        }
        let is_lighter = is_exact && now.blocks > known.fit(now.bytes);
        let is_full = now.bytes > known.bytes && now.blocks >= known.blocks;
        let is_heavier = now.bytes > known.bytes + share;
        if now.bytes > bytes_min && (is_lighter || is_full || is_heavier) {
            self.measured = Some(now);
        }
    }

    /// How many blocks fit into so many bytes; none: it is not known.
    pub fn fit(&self, bytes: u64) -> Option<u64> {
        self.measured.map(|measured| measured.fit(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: u64 = 1_000;

    /// How many blocks the budget is enough for after these observations.
    fn fit(observed: &[(u64, u64)]) -> Option<u64> {
        let mut weight = Weight::default();
        for &(bytes, blocks) in observed {
            weight.observe(Use { bytes, blocks }, BYTES_MAX, true);
        }
        weight.fit(BYTES_MAX)
    }

    #[test]
    fn nothing_is_measured_in_an_index_that_takes_little() {
        assert_eq!(fit(&[(500, 1)]), None);
        assert_eq!(fit(&[(800, 80), (400, 1), (500, 50)]), Some(100));
    }

    #[test]
    fn while_the_index_grows_every_block_counts_at_what_it_takes() {
        assert_eq!(fit(&[(600, 60)]), Some(100));
        assert_eq!(fit(&[(600, 60), (1_000, 70)]), Some(70));
        assert_eq!(fit(&[(600, 60), (601, 60), (2_000, 60)]), Some(30));
    }

    #[test]
    fn blocks_that_left_tables_as_large_as_they_were_make_nobody_dearer() {
        let full = (1_200, 120);
        assert_eq!(fit(&[full, (1_200, 5)]), Some(100));
        // A few bytes more, for whoever is there still, say nothing of the many that were.
        assert_eq!(fit(&[full, (1_210, 5)]), Some(100));
        assert_eq!(fit(&[full, (990, 5), (1_010, 5), (990, 5)]), Some(100));
        assert_eq!(fit(&[full, (1_200, 5), (1_200, 119)]), Some(100));
    }

    #[test]
    fn blocks_that_weigh_less_are_believed_at_once() {
        assert_eq!(fit(&[(1_200, 120), (1_200, 180)]), Some(150));
        assert_eq!(fit(&[(1_200, 120), (900, 180)]), Some(200));
    }

    #[test]
    fn the_dead_that_may_have_gone_make_nobody_lighter() {
        let mut weight = Weight::default();
        for (bytes, blocks, is_exact) in [(1_200, 120, true), (900, 180, false)] {
            weight.observe(Use { bytes, blocks }, BYTES_MAX, is_exact);
        }
        assert_eq!(weight.fit(BYTES_MAX), Some(100));
    }

    #[test]
    fn an_index_that_grows_for_fewer_blocks_than_it_held_has_heavier_ones() {
        let full = (1_200, 120);
        assert_eq!(fit(&[full, (1_200, 40), (1_400, 50)]), Some(35));
        // Also from tables that have become smaller meanwhile.
        assert_eq!(fit(&[full, (600, 30), (700, 35)]), Some(50));
        assert_eq!(fit(&[full, (600, 30), (660, 35)]), Some(100));
    }
}
