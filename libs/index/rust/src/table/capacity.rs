//! Sizes of a shard's table: the capacity classes that its address carries, and the sizes through which it grows.

use crate::table::line::ENTRIES_PER_LINE;

/// Capacities are multiples of it.
const LINES_PER_UNIT: usize = crate::sync::sized_for_models(4, 1);
/// Ratio of a growing shard's table to the one before.
const GROWTH: f64 = 2.0;
/// A table that has grown is less full than this.
const MAX_LOAD_AFTER_GROWTH: f64 = 0.7;

/// The capacity of a class in lines. Capacities are whole units: any number up to 63, then 32 to 63 times a power of two,
/// so that rounding up never adds more than 1/32. The class is such a number in 16 bits, ascending with it.
pub(crate) fn lines_of_class(class: u16) -> usize {
    let class = usize::from(class);
    let units = if class < 64 {
        class
    } else {
        (32 + class % 32) << (class / 32 - 1)
    };
    LINES_PER_UNIT * units
}

/// The smallest class with at least `entries` entries.
pub(crate) fn class_for(entries: usize) -> u16 {
    let units = entries.div_ceil(LINES_PER_UNIT * ENTRIES_PER_LINE).max(1);
    if units < 64 {
        return units as u16;
    }
    let exponent = units.ilog2() - 5;
    // Rounding up to 64 carries over into the exponent: the next class, as it should be.
    ((exponent as u16 + 1) << 5) + (units.div_ceil(1 << exponent) - 32) as u16
}

/// Keys that a table of `capacity` entries may have: 5/6 of them, so one entry at least is always vacant.
pub(crate) fn max_keys(capacity: usize) -> usize {
    capacity * 5 / 6
}

/// Entries for `held` keys in a table that does not grow: 60 % full.
pub(crate) fn fitting_entries(held: usize) -> usize {
    held * 5 / 3 + 1
}

/// Entries of a shard's smallest table.
pub(crate) fn smallest_size(shard: usize, initial: usize) -> usize {
    growth_size(shard, initial, 0.0)
}

/// Entries of a shard's next table, after one with `keys` keys of which `held` have holders.
pub(crate) fn next_size(shard: usize, initial: usize, held: usize, keys: usize) -> usize {
    if held + 1 >= keys - keys / 5 {
        growth_size(shard, initial, (held + 1) as f64 / MAX_LOAD_AFTER_GROWTH)
    } else {
        fitting_entries(held + 1).max(smallest_size(shard, initial))
    }
}

/// The first of the sizes through which a shard grows that is not below `at_least`. Sizes are `GROWTH` apart, and those of
/// different shards are spread evenly in between. So at any time some shards are about to grow and some have just grown,
/// and neither the work nor the spare room of all of them peaks at once.
fn growth_size(shard: usize, initial: usize, at_least: f64) -> usize {
    // Bits reversed: the first few shards are as evenly spread as all of them.
    let phase = if cfg!(feature = "without-staggered-growth") {
        0.0
    } else {
        (shard as u32).reverse_bits() as f64 / f64::from(u32::MAX)
    };
    let first = initial.max(1) as f64 * GROWTH.powf(phase);
    let growths = (at_least / first).max(1.0).log(GROWTH).ceil();
    // `as` saturates, and a table of that size could not be had anyway.
    (first * GROWTH.powf(growths)).ceil() as usize
}

/// Entries with which a shard must start so that `memberships`, spread over `shards`, cause no growth.
pub(crate) fn reserved_size(memberships: usize, shards: usize) -> usize {
    let keys = memberships as f64 / shards as f64;
    // No shard has many more than its share: five standard deviations.
    ((keys + 5.0 * keys.sqrt()) * 6.0 / 5.0).ceil() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_class_is_the_smallest_that_has_room(entries in 0usize..1 << 40) {
            let class = class_for(entries);
            prop_assert!(lines_of_class(class) * ENTRIES_PER_LINE >= entries);
            prop_assert!(class == 1 || lines_of_class(class - 1) * ENTRIES_PER_LINE < entries);
        }
    }
}
