//! Where a key may be, and where a search for it may end.
//!
//! A key's home is a cache line of four slots. Where that is full, a neighbour in its group of lines takes the key; where
//! all of the group is full, the key goes on to its next *station*, a line of another group, and there it is the
//! same again. Every station says by four marks what became of those who came to it: three name the neighbours that
//! have such a key, the last one tells that such a key went on. So a search reads the home, and then just the lines
//! where marks send it; most end at home. Neighbours come from memory at little more than the price of one line.
//!
//! Marks follow the keys that are held. A key that nobody holds any more leaves nothing behind that later searches
//! would have to walk past, so a table in which as much is removed as is stored need never be made anew. (Hopscotch
//! hashing, Herlihy, Shavit and Tzafrir 2008, keeps such bits beside each bucket; there they are addresses, here only
//! directions, since a line has four bits to spare: the highest of each of its words.)
//!
//! A mark is set before the key is, and taken back after it. So whoever looks for a key that is held all the while
//! finds every mark on its way.

use crate::set::{Set, is_held, takes_key};
use crate::table::{LINES_PER_GROUP, Line, SLOTS_PER_LINE, Slot, Slots, prefetch};

/// The mark of a station from which a key went on; those before it name the neighbours.
const WENT_ON: usize = SLOTS_PER_LINE - 1;
/// So many stations are all over the table; the others are one in each group, in turn, so that every line is reached.
pub(crate) const LEAPS: usize = 8;
/// Stations after which an insertion asks whether it is slots waiting for readers that keep it from finding one.
const LONG_WAY: usize = 4;

/// A bit for each slot of a line, the first in the lowest.
#[inline(always)]
pub(crate) fn bits(line: &Line, marked: impl Fn(&Slot) -> bool) -> u32 {
    let [first, second, third, fourth] = line;
    u32::from(marked(first))
        | u32::from(marked(second)) << 1
        | u32::from(marked(third)) << 2
        | u32::from(marked(fourth)) << 3
}

/// The marks of a station, that of the first neighbour in the lowest bit.
#[inline(always)]
pub(crate) fn marks(station: &Line) -> u32 {
    bits(station, Slot::is_marked)
}

/// The first slot of a line that may take another key.
#[inline(always)]
pub(crate) fn free_slot(line: &Line, now: u64) -> Option<&Slot> {
    let free = bits(line, |slot| takes_key(slot.word(), now));
    (free != 0).then(|| &line[free.trailing_zeros() as usize % SLOTS_PER_LINE])
}

/// The slot of a line with that key, and who holds it, if somebody does.
#[inline(always)]
pub(crate) fn held_in(line: &Line, hash: u64) -> Option<(&Slot, Set<'_>)> {
    let sets: [Set<'_>; SLOTS_PER_LINE] = std::array::from_fn(|at| line[at].set());
    let mut found = 0u32;
    // No short circuit: which of a line's slots it is cannot be foreseen, so no branch should depend on it. The
    // words are loaded before the keys in any case.
    for (at, slot) in line.iter().enumerate() {
        found |= u32::from(!sets[at].is_empty() & (slot.key() == hash)) << at;
    }
    let at = found.trailing_zeros() as usize % SLOTS_PER_LINE;
    (found != 0).then(|| (&line[at], sets[at]))
}

/// The stations from a home to the group that has a key.
struct Trail {
    stations: [usize; LEAPS + 1],
    last: usize,
}

impl<'p> Slots<'p> {
    /// The line, the slot and the holders of a hash with that home; none if nobody holds it.
    #[inline(always)]
    pub fn find_from(self, hash: u64, home: usize) -> Option<(usize, &'p Slot, Set<'p>)> {
        let line = self.lines.get(home)?;
        if let Some((slot, set)) = held_in(line, hash) {
            return Some((home, slot, set));
        }
        match marks(line) {
            0 => None,
            marks => self.find_away(hash, home, marks),
        }
    }

    /// As [`Self::find_from`] once it is known not to be at home, which has those marks.
    #[inline(never)]
    fn find_away(self, hash: u64, home: usize, marked: u32) -> Option<(usize, &'p Slot, Set<'p>)> {
        let (mut station, mut marked) = (home, marked);
        for number in 0..self.most_stations() {
            for within in 1..LINES_PER_GROUP {
                if marked >> (within - 1) & 1 == 1
                    && let Some((slot, set)) = held_in(self.lines.get(station ^ within)?, hash)
                {
                    return Some((station ^ within, slot, set));
                }
            }
            if marked >> WENT_ON & 1 == 0 {
                return None;
            }
            station = self.next(station, number);
            let line = self.lines.get(station)?;
            marked = marks(line);
            if let Some((slot, set)) = held_in(line, hash) {
                return Some((station, slot, set));
            }
        }
        None
    }

    /// Starts fetching the lines to which a home's marks lead.
    #[inline(always)]
    pub fn prefetch_way(self, home: usize, marks: u32) {
        for within in 1..LINES_PER_GROUP {
            if marks >> (within - 1) & 1 == 1 {
                self.prefetch(home ^ within);
            }
        }
        if marks >> WENT_ON & 1 == 1 {
            self.prefetch(self.next(home, 0));
        }
    }

    /// Starts fetching where a key goes for which there is no room in its home's group.
    #[inline]
    pub fn prefetch_station(self, home: usize) {
        let station = self.next(home, 0);
        self.prefetch(station);
        self.prefetch(station ^ (1 % LINES_PER_GROUP));
    }

    #[inline(always)]
    fn prefetch(self, line: usize) {
        if let Some(line) = self.lines.get(line) {
            prefetch(line);
        }
    }

    /// Whether no slot in the group of `home` may take another key. Reads its lines in the order in which they are filled.
    #[inline(always)]
    pub fn is_group_full(self, home: usize, now: u64) -> bool {
        let lines = (0..LINES_PER_GROUP).filter_map(|within| self.lines.get(home ^ within));
        lines.into_iter().all(|line| free_slot(line, now).is_none())
    }

    /// Stations from a home until every line was reached.
    fn most_stations(self) -> usize {
        match self.groups() {
            0 | 1 => 1,
            groups => LEAPS + groups,
        }
    }

    fn groups(self) -> usize {
        self.lines.len() / LINES_PER_GROUP
    }

    /// The station after the one with that number, counted from the home, which is 0.
    fn next(self, station: usize, number: usize) -> usize {
        let groups = self.groups();
        let (group, within) = (station / LINES_PER_GROUP, station % LINES_PER_GROUP);
        let ahead = if number < LEAPS {
            // Each of a group's lines leads to another group.
            let spread = (station as u32).wrapping_mul(0x9e37_79b9);
            1 + ((u64::from(spread) * (groups as u64).saturating_sub(1)) >> 32) as usize
        } else {
            1
        };
        (group + ahead).checked_rem(groups).unwrap_or(0) * LINES_PER_GROUP + within
    }

    /// Writer only: gives a key that nobody holds the first free slot on its way. Returns how many stations it went on
    /// from; none if there is no slot, or if too many of those it came by wait for readers.
    #[inline(always)]
    pub fn give(self, home: usize, key: u64, word: u64, now: u64) -> Option<usize> {
        if let Some(slot) = free_slot(self.lines.get(home)?, now) {
            slot.claim(key, word);
            return Some(0);
        }
        self.give_away(home, key, word, now)
    }

    #[inline(never)]
    fn give_away(self, home: usize, key: u64, word: u64, now: u64) -> Option<usize> {
        let (mut station, mut waiting) = (home, 0);
        for number in 0..self.most_stations() {
            for within in 0..LINES_PER_GROUP {
                let line = self.lines.get(station ^ within)?;
                if let Some(slot) = free_slot(line, now) {
                    self.mark_way(home, number);
                    if within > 0 {
                        self.mark(station, within - 1, true);
                    }
                    slot.claim(key, word);
                    return Some(number);
                }
                waiting += bits(line, |slot| !is_held(slot.word())).count_ones() as usize;
            }
            if number == LONG_WAY && waiting > LONG_WAY * LINES_PER_GROUP * SLOTS_PER_LINE / 8 {
                return None;
            }
            station = self.next(station, number);
        }
        None
    }

    fn mark_way(self, home: usize, stations: usize) {
        let mut station = home;
        for number in 0..stations {
            self.mark(station, WENT_ON, true);
            station = self.next(station, number);
        }
    }

    fn mark(self, station: usize, which: usize, marked: bool) {
        if let Some(line) = self.lines.get(station) {
            line[which].mark(marked);
        }
    }

    /// Writer only: takes back the marks that nothing but the key which was on `line`, and is not held any more, needs.
    /// `home_of` tells a key's home, `is_far` whether any key of the table ever went on from more than [`LEAPS`] stations.
    #[inline(always)]
    pub fn unmark(self, home: usize, line: usize, is_far: bool, home_of: impl Fn(u64) -> usize) {
        if line != home {
            self.unmark_way(home, line, is_far, home_of);
        }
    }

    #[inline(never)]
    fn unmark_way(self, home: usize, line: usize, is_far: bool, home_of: impl Fn(u64) -> usize) {
        // What is not understood stays: a mark too many costs a search a line, no more.
        let Some(Trail { stations, last }) = self.trail(home, line) else {
            return;
        };
        let station = stations[last];
        let came_here = |key: u64| {
            let trail = self.trail(home_of(key), line);
            trail.is_none_or(|trail| trail.stations[trail.last] == station)
        };
        if line != station && !self.any_held(line..line + 1, came_here) {
            self.mark(station, (line ^ station) - 1, false);
        }
        if is_far {
            return;
        }
        for number in (0..last).rev() {
            let (from, to) = (stations[number], stations[number + 1]);
            let group = to / LINES_PER_GROUP * LINES_PER_GROUP;
            let came_from_there = |key: u64| {
                let trail = self.trail(home_of(key), to);
                trail.is_none_or(|trail| trail.last > 0 && trail.stations[trail.last - 1] == from)
            };
            let goes_on = self
                .lines
                .get(to)
                .is_none_or(|line| marks(line) >> WENT_ON == 1);
            if goes_on || self.any_held(group..group + LINES_PER_GROUP, came_from_there) {
                return;
            }
            self.mark(from, WENT_ON, false);
        }
    }

    fn any_held(self, lines: std::ops::Range<usize>, which: impl Fn(u64) -> bool) -> bool {
        let slots = self.lines.get(lines).into_iter().flatten().flatten();
        slots
            .filter(|slot| is_held(slot.word()))
            .any(|slot| which(slot.key()))
    }

    /// The way from `home` to the group of `line`; none if that is further than all leaps.
    fn trail(self, home: usize, line: usize) -> Option<Trail> {
        let mut stations = [home; LEAPS + 1];
        for last in 0..=LEAPS {
            if stations[last] / LINES_PER_GROUP == line / LINES_PER_GROUP {
                return Some(Trail { stations, last });
            }
            if last < LEAPS {
                stations[last + 1] = self.next(stations[last], last);
            }
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::set::{Few, emptied};
    use crate::table::capacity_of_class;
    use crate::zeroed::Zeroed;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Homes of three lines only, so that groups fill up and keys go on.
    fn home_of(key: u64, lines: usize) -> usize {
        [0, 1, lines - 1][key as usize % 3]
    }

    proptest! {
        #[test]
        fn every_line_is_on_the_way_from_any_home(class in 1u16..90, home: prop::sample::Index) {
            let array = Zeroed::<Slot>::new(capacity_of_class(class));
            let slots = Slots::of(&array);
            let mut station = home.index(slots.lines.len());
            let mut reached = vec![false; slots.lines.len()];
            for number in 0..slots.most_stations() {
                (0..LINES_PER_GROUP).for_each(|within| reached[station ^ within] = true);
                station = slots.next(station, number);
            }
            prop_assert!(reached.into_iter().all(|reached| reached));
        }

        #[test]
        fn what_is_held_is_found_and_what_is_not_leaves_no_mark(
            class in 1u16..12,
            steps in prop::collection::vec((any::<bool>(), 1u64..120), 1..300),
        ) {
            let array = Zeroed::<Slot>::new(capacity_of_class(class));
            let slots = Slots::of(&array);
            let lines = slots.lines.len();
            let one = Few::one(1).word();
            let (mut held, mut is_far) = (BTreeMap::new(), false);
            for (gives, key) in steps {
                let home = home_of(key, lines);
                if gives && !held.contains_key(&key) {
                    if let Some(stations) = slots.give(home, key, one, 1) {
                        is_far |= stations >= LEAPS;
                        held.insert(key, ());
                    }
                } else if !gives && held.remove(&key).is_some() {
                    let (line, slot, _) = slots.find_from(key, home).unwrap();
                    slot.publish(emptied(0));
                    slots.unmark(home, line, is_far, |key| home_of(key, lines));
                }
                for key in 1..120 {
                    let found = slots.find_from(key, home_of(key, lines)).is_some();
                    prop_assert_eq!(found, held.contains_key(&key), "key {}", key);
                }
            }
            // In an order that is none of theirs.
            while let Some(key) = held.keys().copied().max_by_key(|key| key.wrapping_mul(0x9e37_79b9) % 127) {
                held.remove(&key);
                let home = home_of(key, lines);
                let (line, slot, _) = slots.find_from(key, home).unwrap();
                slot.publish(emptied(0));
                slots.unmark(home, line, is_far, |key| home_of(key, lines));
            }
            // Keys that went beyond all leaps leave theirs. So may ways that meet in a station from which a key went on.
            let neighbours = slots.lines.iter().map(|line| marks(line) & ((1 << WENT_ON) - 1));
            prop_assert!(is_far || neighbours.sum::<u32>() == 0);
        }
    }
}
