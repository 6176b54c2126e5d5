//! The look-up: at which depths does the set of holders change?
//!
//! Sets only shrink with depth. A dependent read from memory costs more than ten independent ones, so
//! the search does not bisect: each round probes several places of every interval in question, all
//! fetched together, and goes on only into intervals whose ends differ. Intervals know the set at
//! their head; the *open* one, at the frontier, does not yet know the set at its end. Where sequence hashes must
//! be chained it gallops, each time further, and chains on while the round's lines are on their way.
//!
//! A look-up goes in steps that end where memory would be waited for, so that several can take turns:
//! [`Search::open`], [`Search::begin`], then [`Search::look`] and [`Search::resolve`] until nothing is left to find. That most prompts
//! match nothing is settled by one probe, before anything else is touched.
//!
//! `unsafe` here: set words are kept in buffers between the two passes of a round, without their
//! lifetime. Sound because they are read from this table and used under one and the same pin, within
//! the call that read them. Checked by `tests/stress.rs`.

use std::cmp::Reverse;

use crate::filter::Filters;
use crate::gather::{Gathered, SetRef};
use crate::grace::Pin;
use crate::opening::{FIRST_REACH, Heads, first_places, places_around};
use crate::query::{FindOptions, Hashes};
use crate::roster::{Roster, View};
use crate::set::{EMPTY, Set};
use crate::table::Directory;

/// So far the second one ends; each later one goes twice as far as the one before it.
const SECOND_REACH: usize = 63;
/// Places between the probes of a gallop: so many that one more round finds what lies between.
const GALLOP_STRIDE: usize = 8;
/// Probes of a gallop, however far it goes.
const GALLOP_PROBES: usize = 8;
/// Hashes chained while a round's lines are fetched: about as long as that takes.
const CHAINED_AHEAD: usize = 16;
/// Parts into which a round divides an interval, at most. 11 settle 11 places in one round, 121 in two, 1,331 in three.
const MOST_PARTS: usize = 11;
/// Depths verified together when every one is.
const VERIFY_WINDOW: usize = 16;

/// Workers whose sets end at `depth`.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    pub depth: u32,
    pub set: SetRef,
}

/// Places `lo` and `hi`, 0 being the first block, with the sets there; `below` is not known yet in
/// the open interval.
#[derive(Clone, Copy)]
struct Interval {
    lo: usize,
    hi: usize,
    above: SetRef,
    below: Option<SetRef>,
    /// How many of the round's probes are within it.
    probes: usize,
}

/// What all steps of a look-up read.
#[derive(Clone, Copy)]
pub(crate) struct Source<'p> {
    pub table: &'p Directory,
    pub roster: &'p Roster,
    pub pin: &'p Pin<'p>,
    /// Who is matchable, as it was before any set was read. Read later it could name a slot's next owner as alive, while a
    /// set still had the one before.
    pub view: &'p View,
}

/// A look-up under way, and buffers that the next one uses again.
#[derive(Default)]
pub(crate) struct Search {
    pub chain: Vec<u64>,
    pub gathered: Gathered,
    /// Deepest first, once the search has ended.
    pub groups: Vec<Group>,
    filters: Filters,
    heads: Heads,
    /// Whether the first round looks where a head ended.
    knows_head: bool,
    /// The first place that counts, and the last.
    base: usize,
    last: usize,
    /// The depths that are being verified, if all are.
    verified: Option<Verified>,
    intervals: Vec<Interval>,
    next: Vec<Interval>,
    /// Places probed in this round, and the set words found there.
    probes: Vec<usize>,
    words: Vec<u64>,
}

#[derive(Clone, Copy)]
struct Verified {
    /// The next place to verify, and the set of those who have all places before it.
    place: usize,
    set: SetRef,
}

impl Search {
    /// Asks for the first place that counts, and for what the first round reads; false if the query cannot match.
    pub fn open<H: Hashes>(
        &mut self,
        hashes: &mut H,
        source: Source<'_>,
        options: &FindOptions<'_>,
    ) -> bool {
        self.groups.clear();
        self.probes.clear();
        // Depths are u32 on the wire, and no prompt is that long.
        let count = hashes.count().min(u32::MAX as usize);
        let base = options.min_depth.saturating_sub(1);
        if base >= count {
            return false;
        }
        (self.base, self.last) = (base, count - 1);
        // What matches nothing should not cost a long chain.
        if H::LAZY && base > FIRST_REACH {
            hashes.reach(1);
            if source.table.look(hashes.at(0), source.pin).is_none() {
                return false;
            }
        }
        hashes.reach(base + 1);
        source.table.prefetch(hashes.at(base), source.pin);
        if options.exact {
            self.window(usize::from(base == 0), FIRST_REACH);
        } else {
            let head = self.heads.end(hashes.at(base)).filter(|_| H::LAZY);
            self.knows_head = head.is_some();
            match head {
                Some(end) => self.probes.extend(places_around(base, self.last, end)),
                None => self.probes.extend(first_places(base, self.last, H::LAZY)),
            }
        }
        self.fetch(hashes, source);
        true
    }

    /// Looks at the first place that counts; none if nobody who may be named holds it.
    pub fn begin<'p, H: Hashes>(
        &mut self,
        hashes: &H,
        source: Source<'p>,
        options: &FindOptions<'_>,
    ) -> Option<&'p View> {
        let set = source.table.look(hashes.at(self.base), source.pin)?;
        // A first block that more hold than fit its word is a head that many prompts share. Most of them part soon
        // after it; so, unless the end of the prompt or of the head is being looked at as well, all near places are at once.
        if H::LAZY && set.is_spilled() && !options.exact && !self.knows_head {
            self.add_near_places(hashes, source);
        }
        Gathered::prefetch_whole(set);
        let view = source.view;
        let meant = options
            .filter
            .map(|filter| self.filters.bits(filter, source.roster, view));
        let above = self.gathered.begin(set, &view.alive, meant)?;
        self.intervals.clear();
        self.verified = options.exact.then_some(Verified {
            place: usize::from(self.base == 0),
            set: above,
        });
        if !options.exact {
            self.intervals.push(Interval {
                lo: self.base,
                hi: self.probes.last().copied().unwrap_or(self.base),
                above,
                below: None,
                probes: self.probes.len(),
            });
        }
        Some(view)
    }

    /// Reads the set words of a round's probes, and asks for their bitmaps.
    pub fn look<H: Hashes>(&mut self, hashes: &H, source: Source<'_>) {
        self.words.clear();
        if let Some(verified) = self.verified {
            (0..self.probes.len()).for_each(|at| self.look_at(at, verified.set, hashes, source));
            return;
        }
        let mut at = 0;
        for place in 0..self.intervals.len() {
            let Interval { above, probes, .. } = self.intervals[place];
            for _ in 0..probes {
                self.look_at(at, above, hashes, source);
                at += 1;
            }
        }
    }

    #[inline]
    fn look_at<H: Hashes>(&mut self, at: usize, above: SetRef, hashes: &H, source: Source<'_>) {
        let set = source.table.look(hashes.at(self.probes[at]), source.pin);
        if let Some(set) = set {
            self.gathered.prefetch(set, above);
        }
        self.words.push(set.map_or(EMPTY, Set::word));
    }

    /// Draws the conclusions of a round, and asks for what the next one reads; false if there is none.
    pub fn resolve<H: Hashes>(&mut self, hashes: &mut H, source: Source<'_>) -> bool {
        let goes_on = match self.verified {
            Some(verified) => self.verify(verified),
            None => self.divide_all(),
        };
        if goes_on {
            let furthest = self.fetch(hashes, source);
            if H::LAZY {
                hashes.reach((furthest + 1 + CHAINED_AHEAD).min(self.last + 1));
            }
        } else {
            self.groups
                .sort_unstable_by_key(|group| Reverse(group.depth));
            if H::LAZY
                && let Some(&Group { depth, set }) = self.groups.last()
                && matches!(set, SetRef::Wide(_))
            {
                self.heads.remember(hashes.at(self.base), depth);
            }
        }
        goes_on
    }

    /// Asks for the table slots of a round's probes; returns the furthest of them.
    fn fetch<H: Hashes>(&mut self, hashes: &mut H, source: Source<'_>) -> usize {
        let mut furthest = 0;
        for &place in &self.probes {
            hashes.reach(place + 1);
            furthest = furthest.max(place);
            source.table.prefetch(hashes.at(place), source.pin);
        }
        furthest
    }

    /// Adds all places before the first one of the round.
    fn add_near_places<H: Hashes>(&mut self, hashes: &H, source: Source<'_>) {
        let Some(&first) = self.probes.first() else {
            return;
        };
        let near = self.base + 1..first;
        for place in near.clone() {
            source.table.prefetch(hashes.at(place), source.pin);
        }
        let count = near.len();
        self.probes.extend(near);
        self.probes.rotate_right(count);
    }

    /// The places of an interval's next round; returns how many.
    fn places(&mut self, lo: usize, hi: usize, parts: usize) -> usize {
        let span = hi - lo;
        self.probes
            .extend((1..parts).map(|part| lo + span * part / parts));
        parts - 1
    }

    /// Compares all probes of a round with each other; false if nothing is left to find.
    fn divide_all(&mut self) -> bool {
        let probes = std::mem::take(&mut self.probes);
        let mut at = 0;
        for number in 0..self.intervals.len() {
            let interval = self.intervals[number];
            let end = at + interval.probes;
            self.divide(interval, &probes[at..end], at);
            at = end;
        }
        self.probes = probes;
        self.probes.clear();
        std::mem::swap(&mut self.intervals, &mut self.next);
        self.next.clear();
        for number in 0..self.intervals.len() {
            let Interval { lo, hi, below, .. } = self.intervals[number];
            let probes = if below.is_some() {
                self.places(lo, hi, parts(hi - lo))
            } else {
                let parts = ((hi - lo) / GALLOP_STRIDE).clamp(3, GALLOP_PROBES);
                let inner = self.places(lo, hi, parts.min(hi - lo));
                self.probes.push(hi);
                inner + 1
            };
            self.intervals[number].probes = probes;
        }
        !self.intervals.is_empty()
    }

    /// The set of a probe that [`Self::look`] read in this round.
    #[inline]
    fn narrow(&mut self, probe: usize, above: SetRef, below: Option<SetRef>) -> SetRef {
        // SAFETY: read from the table in this round, under the pin that is still held.
        let set = unsafe { Set::from_word(self.words[probe]) };
        self.gathered.narrow(set, above, below)
    }

    /// Compares an interval's probes with each other: records ends between neighbouring places, and
    /// puts off what lies between others to the next round.
    fn divide(&mut self, interval: Interval, places: &[usize], first: usize) {
        let Interval {
            mut lo,
            hi,
            mut above,
            below,
            ..
        } = interval;
        for (probe, &place) in places.iter().enumerate() {
            let set = self.narrow(first + probe, above, below);
            self.step(lo, place, above, set);
            (lo, above) = (place, set);
            if Gathered::is_empty(above) {
                return;
            }
        }
        if let Some(below) = below {
            self.step(lo, hi, above, below);
        } else if hi == self.last {
            self.end(hi, above);
        } else {
            let reached = hi - self.base;
            let further = (self.base + SECOND_REACH.max(2 * reached + 1)).min(self.last);
            self.next.push(Interval {
                lo: hi,
                hi: further,
                above,
                below: None,
                probes: 0,
            });
        }
    }

    /// From `lo` to `hi` with nothing probed between them.
    fn step(&mut self, lo: usize, hi: usize, above: SetRef, below: SetRef) {
        if above == below {
            return;
        }
        if hi - lo > 1 {
            self.next.push(Interval {
                lo,
                hi,
                above,
                below: Some(below),
                probes: 0,
            });
            return;
        }
        let ended = self.gathered.difference(above, below);
        self.end(lo, ended);
    }

    /// Records that the workers of `set` hold `place` and nothing after it.
    fn end(&mut self, place: usize, set: SetRef) {
        if !Gathered::is_empty(set) {
            self.groups.push(Group {
                depth: place as u32 + 1,
                set,
            });
        }
    }

    /// The places to verify next.
    fn window(&mut self, from: usize, count: usize) {
        let to = (from + count).min(self.last + 1);
        self.probes.extend(from..to);
    }

    /// Goes through a window of depths in turn; false if the last one is done, or nobody left.
    fn verify(&mut self, verified: Verified) -> bool {
        let Verified { mut place, set } = verified;
        let mut above = set;
        for probe in 0..self.words.len() {
            let set = self.narrow(probe, above, None);
            // Whoever lacks a place before the first that counts is dropped.
            if set != above && place > self.base {
                let ended = self.gathered.difference(above, set);
                self.end(place - 1, ended);
            }
            (above, place) = (set, place + 1);
            if Gathered::is_empty(above) {
                return false;
            }
        }
        if place > self.last {
            self.end(self.last, above);
            return false;
        }
        self.verified = Some(Verified { place, set: above });
        self.probes.clear();
        self.window(place, VERIFY_WINDOW);
        true
    }
}

/// Into how many parts to divide `span`, so that the fewest rounds of the fewest probes settle it.
fn parts(span: usize) -> usize {
    if span <= MOST_PARTS {
        return span;
    }
    let rounds = if span <= MOST_PARTS * MOST_PARTS {
        2
    } else {
        3
    };
    (3..MOST_PARTS)
        .find(|parts| parts.pow(rounds) >= span)
        .unwrap_or(MOST_PARTS)
}

#[cfg(test)]
mod tests {
    use super::{Search, parts};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn places_ascend_within_their_interval_and_leave_nothing_out_of_small_ones(
            lo in 0usize..1000, span in 2usize..3000,
        ) {
            let hi = lo + span;
            let mut search = Search::default();
            let count = search.places(lo, hi, parts(span));
            prop_assert_eq!(count, search.probes.len());
            prop_assert!(search.probes.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(search.probes.iter().all(|&place| place > lo && place < hi));
            if span <= 11 {
                prop_assert_eq!(count, span - 1);
            }
        }
    }
}
