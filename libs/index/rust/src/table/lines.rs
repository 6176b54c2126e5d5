//! The lines of one shard's table, and the order in which a search reads them.
//!
//! A search starts at its home line. If that is full, it reads the line beside it, which is fetched at little cost. Then it
//! leaps to another pair of lines, at a distance given by the hash's lower bits. So full lines do not gather in runs.
//! A line's probe filter ends the search for a key that never went past it.
//!
//! `unsafe` here: turning a compact set into the stored set. Sound because the lines are borrowed for as long as a pin or
//! the shard's lock protects them. Checked by `tests/stress.rs` and `tests/differential.rs`.

use crate::memory::zeroed_array::ZeroedArray;
use crate::table::compact_set::CompactSet;
use crate::table::entry::Entry;
use crate::table::line::{ENTRIES_PER_LINE, Line};
use crate::table::set_word::StoredSet;
use crate::table::spilled_sets::SpilledSets;

/// Lines that a search reads in pairs; then it goes from line to line, and so to all of them.
const LEAPS: u32 = if cfg!(feature = "without-leaps") {
    0
} else {
    32
};

/// The lines of an array, borrowed for as long as a pin (or the shard's lock) holds them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Lines<'p> {
    lines: &'p [Line],
}

impl<'p> Lines<'p> {
    pub fn of(array: &'p ZeroedArray<Line>) -> Self {
        Self::new(array.as_slice())
    }

    pub fn new(lines: &'p [Line]) -> Self {
        Self { lines }
    }

    /// Number of entries.
    pub fn entry_count(self) -> usize {
        self.lines.len() * ENTRIES_PER_LINE
    }

    /// The line where the search for a key starts; see [`crate::table::directory::Home::fraction`].
    #[inline]
    pub fn home_line(self, fraction: u64) -> usize {
        ((u128::from(fraction) * self.lines.len() as u128) >> 64) as usize
    }

    /// The set of the key; a vacant one if the key is not there.
    #[inline]
    pub fn find(self, hash: u64, fraction: u64, spilled: &'p SpilledSets) -> StoredSet<'p> {
        let mut at = self.home_line(fraction);
        let mut step = 0;
        // Ends: the writer keeps at least one entry vacant, and nothing goes past its line.
        loop {
            let line = &self.lines[at];
            if let Some(set) = line.find(hash, fraction) {
                // SAFETY: loaded with `Acquire` from an entry that is protected for `'p`.
                return unsafe { StoredSet::from_word(spilled.word_of(set)) };
            }
            step += 1;
            at = self.next_line(at, fraction, step);
        }
    }

    /// Whether these are the lines of `array`.
    #[inline]
    pub fn are_of(self, array: Option<&ZeroedArray<Line>>) -> bool {
        array.map_or(self.lines.is_empty(), |array| {
            std::ptr::eq(array.first().as_ptr(), self.lines.as_ptr())
        })
    }

    /// A line; none past the end.
    #[inline(always)]
    pub fn line(self, at: usize) -> Option<&'p Line> {
        self.lines.get(at)
    }

    /// An entry, counted through all lines; none past the end.
    #[inline]
    pub fn entry(self, at: usize, spilled: &'p SpilledSets) -> Option<Entry<'p>> {
        let line = self.lines.get(at / ENTRIES_PER_LINE)?;
        Some(line.entry(at % ENTRIES_PER_LINE, spilled))
    }

    /// All entries.
    pub fn entries(self, spilled: &'p SpilledSets) -> impl Iterator<Item = Entry<'p>> {
        self.lines
            .iter()
            .flat_map(move |line| (0..ENTRIES_PER_LINE).map(move |at| line.entry(at, spilled)))
    }

    /// Writer only, before the lines are published: adds a key that is not there yet. `key_counts` has the number of keys
    /// of each line.
    #[inline(always)]
    pub fn fill(self, key_counts: &mut [u8], fraction: u64, key: u64, set: CompactSet) {
        let mut at = self.home_line(fraction);
        let mut step = 0;
        loop {
            let keys = usize::from(key_counts[at]);
            if keys < ENTRIES_PER_LINE {
                key_counts[at] += 1;
                self.lines[at].fill(keys, key, set);
                return;
            }
            self.lines[at].probe_filter.insert(fraction);
            step += 1;
            at = self.next_line(at, fraction, step);
        }
    }

    /// The line that a search reads as number `step`, after line `at`.
    #[inline]
    pub fn next_line(self, at: usize, fraction: u64, step: u32) -> usize {
        let beside = at ^ 1;
        let lines = self.lines.len();
        let next = if step >= LEAPS {
            at + 1
        } else if step % 2 == 1 {
            // The last line of a table may have none beside it.
            return if beside < lines { beside } else { at };
        } else {
            let leap = ((fraction & u64::from(u32::MAX)) * lines as u64) >> 32 | 1;
            beside + leap as usize
        };
        if next < lines {
            next
        } else {
            // A table without lines has no next one; `line` then says so.
            next.checked_rem(lines).unwrap_or(0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::capacity::{class_for, lines_of_class};

    /// Lines that a new key reads beyond its own in a table that grows from 42 to 83 % full, on average: with leaps, and
    /// from line to line.
    fn lines_beyond_home(leaps: bool) -> f64 {
        let array = ZeroedArray::<Line>::new(lines_of_class(class_for(30_000)));
        let lines = Lines::of(&array);
        let (mut key_counts, mut read, mut counted) = (vec![0u8; array.len()], 0.0, 0.0);
        for key in 0..lines.entry_count() * 5 / 6 {
            let fraction = kvatlas_hashing::sequence_step(1, key as u64);
            let (mut at, mut step) = (lines.home_line(fraction), 0);
            while usize::from(key_counts[at]) == ENTRIES_PER_LINE {
                step += 1;
                at = if leaps {
                    lines.next_line(at, fraction, step)
                } else {
                    (at + 1) % array.len()
                };
            }
            key_counts[at] += 1;
            if key * 12 >= lines.entry_count() * 5 {
                // Growing tables spend as long on every doubling of their keys.
                read += f64::from(step) / key as f64;
                counted += 1.0 / key as f64;
            }
        }
        read / counted
    }

    #[test]
    #[cfg_attr(miri, ignore = "it counts, in large tables, and borrows nothing")]
    #[cfg_attr(feature = "without-leaps", ignore = "it counts leaps")]
    fn leaps_keep_full_lines_from_gathering_in_runs() {
        let (leaping, in_line) = (lines_beyond_home(true), lines_beyond_home(false));
        assert!((0.4..0.55).contains(&leaping), "{leaping} lines");
        assert!((0.5..0.8).contains(&in_line), "{in_line} lines");
    }

    #[test]
    #[cfg_attr(miri, ignore = "as above")]
    #[cfg_attr(feature = "without-leaps", ignore = "it counts leaps")]
    fn a_search_for_an_absent_key_seldom_reads_on() {
        let array = ZeroedArray::<Line>::new(lines_of_class(class_for(30_000)));
        let lines = Lines::of(&array);
        let (mut key_counts, count) = (vec![0u8; array.len()], lines.entry_count() * 5 / 6);
        let fraction_of = |number: usize| kvatlas_hashing::sequence_step(1, number as u64);
        for number in 0..count {
            let set = CompactSet::from_bits(1);
            lines.fill(
                &mut key_counts,
                fraction_of(number),
                fraction_of(number),
                set,
            );
        }
        let lines_beyond_home = |fraction, ends: fn(&Line, u64) -> bool| {
            let (mut at, mut step) = (lines.home_line(fraction), 0);
            while !ends(&array.as_slice()[at], fraction) {
                step += 1;
                at = lines.next_line(at, fraction, step);
            }
            step
        };
        let (mut with_filter, mut without) = (0, 0);
        for fraction in (count..2 * count).map(fraction_of) {
            with_filter += lines_beyond_home(fraction, |line, fraction| {
                !line.probe_filter.may_contain(fraction)
            });
            without += lines_beyond_home(fraction, |line, _| line.has_vacancy());
        }
        let [with_filter, without] =
            [with_filter, without].map(|lines| f64::from(lines) / count as f64);
        assert!((0.03..0.1).contains(&with_filter), "{with_filter} lines");
        assert!((1.5..2.2).contains(&without), "{without} lines");
    }
}
