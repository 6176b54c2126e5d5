//! The search for the depths at which the set of holders changes: where each worker's match ends.
//!
//! Sets only shrink with depth. A dependent read from memory costs more than ten independent ones, so the search does not
//! bisect. Each round probes several places of every interval in question, all fetched together, and goes on only into
//! intervals whose ends differ. An interval knows the set at its start; the *open* one, at the frontier, does not yet know
//! the set at its end. Where sequence hashes must be chained the search gallops, each time further, and chains on while the
//! round's lines are on their way.
//!
//! A look-up goes in steps that end where it would wait for memory, so that several can take turns:
//! [`PrefixSearch::start`], [`PrefixSearch::read_first`], then [`PrefixSearch::read_round`] and
//! [`PrefixSearch::end_round`] until nothing is left to find. Most prompts match nothing, which one probe settles before
//! anything else is read.
//!
//! Places are numbers of blocks, 0 being the first; a depth is a number of leading blocks.
//!
//! `unsafe` here: set words are kept in buffers between the two passes of a round, without their lifetime. Sound because
//! they are read from this table and used under one and the same pin, within the call that read them. Checked by
//! `tests/stress.rs`.

use std::cmp::Reverse;

use crate::lookup::first_round::{FIRST_REACH, first_places, places_around_end};
use crate::lookup::holders::{HolderSet, HolderSets};
use crate::lookup::prefix_end_cache::PrefixEndCache;
use crate::lookup::query::{FindOptions, SequenceHashes};
use crate::lookup::worker_filter::FilterCache;
use crate::memory::reclamation::Pin;
use crate::table::directory::Directory;
use crate::table::set_word::{SetWord, StoredSet};
use crate::workers::view::WorkerView;
use crate::workers::worker_slots::WorkerSlots;

/// Distance to the end of the second gallop; each later one goes twice as far as the one before it.
const SECOND_REACH: usize = 63;
/// Places between the probes of a gallop: so few that one more round finds what lies between.
const GALLOP_STRIDE: usize = 8;
/// Probes of a gallop, however far it goes.
const MAX_GALLOP_PROBES: usize = 8;
/// Hashes chained while a round's lines are fetched: about as long as that takes.
const CHAINED_AHEAD: usize = if cfg!(feature = "without-chained-ahead") {
    0
} else {
    16
};
/// Parts into which a round divides an interval, at most. 11 settle 11 places in one round, 121 in two, 1,331 in three.
const MAX_PARTS: usize = 11;
/// Depths verified together when every one is.
const VERIFY_WINDOW: usize = 16;

/// Workers whose matches end at `depth`.
#[derive(Clone, Copy)]
pub(crate) struct DepthGroup {
    pub depth: u32,
    pub set: HolderSet,
}

/// Places `lo` to `hi`, with the sets there; `below` is not known yet in the open interval.
#[derive(Clone, Copy)]
struct Interval {
    lo: usize,
    hi: usize,
    above: HolderSet,
    below: Option<HolderSet>,
    /// Number of the round's probes that are within it.
    probes: usize,
}

/// The data that all steps of a look-up read.
#[derive(Clone, Copy)]
pub(crate) struct ReadContext<'p> {
    pub table: &'p Directory,
    pub workers: &'p WorkerSlots,
    pub pin: &'p Pin<'p>,
    /// The view as it was before any set was read. A later view could have a slot's next owner as matchable, while a set
    /// still had the one before.
    pub view: &'p WorkerView,
}

/// A look-up in progress, and buffers that the next one reuses.
#[derive(Default)]
pub(crate) struct PrefixSearch {
    /// Sequence hashes computed so far, where they are chained.
    pub chain: Vec<u64>,
    pub holders: HolderSets,
    /// Deepest first, once the search has ended.
    pub groups: Vec<DepthGroup>,
    filters: FilterCache,
    prefix_ends: PrefixEndCache,
    /// Whether the first round looks where a shared prefix ended.
    end_is_cached: bool,
    /// The first place that counts, and the last.
    base: usize,
    last: usize,
    /// Progress through the depths, if every one is verified.
    verified: Option<Verified>,
    intervals: Vec<Interval>,
    next: Vec<Interval>,
    /// Places probed in this round, and the set words found there.
    probes: Vec<usize>,
    words: Vec<SetWord>,
}

#[derive(Clone, Copy)]
struct Verified {
    /// The next place to verify, and the set of those who hold all places before it.
    place: usize,
    set: HolderSet,
}

impl PrefixSearch {
    /// Asks for the line of the first place that counts, and for those of the first round; false if the query cannot match.
    pub fn start<H: SequenceHashes>(
        &mut self,
        hashes: &mut H,
        context: ReadContext<'_>,
        options: &FindOptions<'_>,
    ) -> bool {
        self.groups.clear();
        self.probes.clear();
        // Depths are u32 on the wire, and no prompt is that long.
        let count = hashes.len().min(u32::MAX as usize);
        let base = options.min_depth.saturating_sub(1);
        if base >= count {
            return false;
        }
        (self.base, self.last) = (base, count - 1);
        // A prompt that matches nothing should not cost a long chain.
        if H::CHAINED && base > FIRST_REACH {
            hashes.compute(1);
            if context.table.find(hashes.at(0), context.pin).is_none() {
                return false;
            }
        }
        hashes.compute(base + 1);
        context.table.prefetch(hashes.at(base), context.pin);
        if options.exact {
            self.add_window(usize::from(base == 0), FIRST_REACH);
        } else {
            let is_asked = H::CHAINED && !cfg!(feature = "without-prefix-end-cache");
            let end = self.prefix_ends.get(hashes.at(base)).filter(|_| is_asked);
            self.end_is_cached = end.is_some();
            match end {
                Some(end) => self.probes.extend(places_around_end(base, self.last, end)),
                None => self
                    .probes
                    .extend(first_places(base, self.last, H::CHAINED)),
            }
        }
        self.fetch_round(hashes, context);
        true
    }

    /// Reads the first place that counts; false if nobody who may be named holds it.
    pub fn read_first<H: SequenceHashes>(
        &mut self,
        hashes: &H,
        context: ReadContext<'_>,
        options: &FindOptions<'_>,
    ) -> bool {
        let Some(set) = context.table.find(hashes.at(self.base), context.pin) else {
            return false;
        };
        // A first block with a bitmap of holders begins a prefix that many prompts share. Most of them part soon after it.
        // So all near places are looked at at once, unless the end of the prompt or of the prefix is being looked at too.
        if !cfg!(feature = "without-near-places")
            && H::CHAINED
            && set.word().is_bitmap()
            && !options.exact
            && !self.end_is_cached
        {
            self.add_near_places(hashes, context);
        }
        HolderSets::prefetch_all(set);
        let view = context.view;
        let included = options
            .filter
            .map(|filter| self.filters.bits(filter, context.workers, view));
        let Some(above) = self.holders.begin(set, &view.matchable, included) else {
            return false;
        };
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
        true
    }

    /// Reads the set words of a round's probes, and asks for their bitmaps.
    pub fn read_round<H: SequenceHashes>(&mut self, hashes: &H, context: ReadContext<'_>) {
        self.words.clear();
        if let Some(verified) = self.verified {
            (0..self.probes.len())
                .for_each(|probe| self.read_probe(probe, verified.set, hashes, context));
            return;
        }
        let mut probe = 0;
        for number in 0..self.intervals.len() {
            let Interval { above, probes, .. } = self.intervals[number];
            for _ in 0..probes {
                self.read_probe(probe, above, hashes, context);
                probe += 1;
            }
        }
    }

    #[inline]
    fn read_probe<H: SequenceHashes>(
        &mut self,
        probe: usize,
        above: HolderSet,
        hashes: &H,
        context: ReadContext<'_>,
    ) {
        let hash = hashes.at(self.probes[probe]);
        let set = context.table.find(hash, context.pin);
        if let Some(set) = set {
            self.holders.prefetch(set, above);
        }
        self.words.push(set.map_or(SetWord::EMPTY, StoredSet::word));
    }

    /// Draws the conclusions of a round, and asks for the lines of the next one; false if there is none.
    pub fn end_round<H: SequenceHashes>(
        &mut self,
        hashes: &mut H,
        context: ReadContext<'_>,
    ) -> bool {
        let goes_on = match self.verified {
            Some(verified) => self.verify(verified),
            None => self.divide_all(),
        };
        if goes_on {
            let furthest = self.fetch_round(hashes, context);
            if H::CHAINED {
                hashes.compute((furthest + 1 + CHAINED_AHEAD).min(self.last + 1));
            }
        } else {
            self.groups
                .sort_unstable_by_key(|group| Reverse(group.depth));
            if H::CHAINED
                && let Some(&DepthGroup { depth, set }) = self.groups.last()
                && matches!(set, HolderSet::Words(_))
            {
                self.prefix_ends.insert(hashes.at(self.base), depth);
            }
        }
        goes_on
    }

    /// Asks for the lines of a round's probes; returns the furthest place.
    fn fetch_round<H: SequenceHashes>(
        &mut self,
        hashes: &mut H,
        context: ReadContext<'_>,
    ) -> usize {
        let mut furthest = 0;
        for &place in &self.probes {
            hashes.compute(place + 1);
            furthest = furthest.max(place);
            context.table.prefetch(hashes.at(place), context.pin);
        }
        furthest
    }

    /// Adds all places before the first one of the round.
    fn add_near_places<H: SequenceHashes>(&mut self, hashes: &H, context: ReadContext<'_>) {
        let Some(&first) = self.probes.first() else {
            return;
        };
        let near = self.base + 1..first;
        for place in near.clone() {
            context.table.prefetch(hashes.at(place), context.pin);
        }
        let count = near.len();
        self.probes.extend(near);
        self.probes.rotate_right(count);
    }

    /// Adds the places at which an interval's next round divides it; returns how many.
    fn add_places(&mut self, lo: usize, hi: usize, parts: usize) -> usize {
        let span = hi - lo;
        self.probes
            .extend((1..parts).map(|part| lo + span * part / parts));
        parts - 1
    }

    /// Compares the probes of every interval with each other, and chooses those of the next round; false if nothing is left
    /// to find.
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
                self.add_places(lo, hi, parts(hi - lo))
            } else {
                let parts = ((hi - lo) / GALLOP_STRIDE).clamp(3, MAX_GALLOP_PROBES);
                let inner = self.add_places(lo, hi, parts.min(hi - lo));
                self.probes.push(hi);
                inner + 1
            };
            self.intervals[number].probes = probes;
        }
        !self.intervals.is_empty()
    }

    /// The set of a probe that [`Self::read_round`] read, between its neighbours.
    #[inline]
    fn narrow(&mut self, probe: usize, above: HolderSet, below: Option<HolderSet>) -> HolderSet {
        // SAFETY: read from the table in this round, under the pin that is still held.
        let set = unsafe { StoredSet::from_word(self.words[probe]) };
        self.holders.narrow(set, above, below)
    }

    /// Compares an interval's probes with each other: credits workers whose matches end between neighbouring places, and
    /// leaves what lies between others to the next round.
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
            self.compare(lo, place, above, set);
            (lo, above) = (place, set);
            if HolderSets::is_empty(above) {
                return;
            }
        }
        if let Some(below) = below {
            self.compare(lo, hi, above, below);
        } else if hi == self.last {
            self.credit(hi, above);
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

    /// Compares the sets at `lo` and `hi`, between which nothing was probed.
    fn compare(&mut self, lo: usize, hi: usize, above: HolderSet, below: HolderSet) {
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
        let ended = self.holders.difference(above, below);
        self.credit(lo, ended);
    }

    /// Credits the workers of `set` with a match that ends at `place`: they hold it, and nothing after it.
    fn credit(&mut self, place: usize, set: HolderSet) {
        if !HolderSets::is_empty(set) {
            self.groups.push(DepthGroup {
                depth: place as u32 + 1,
                set,
            });
        }
    }

    /// Adds the places to verify next.
    fn add_window(&mut self, from: usize, count: usize) {
        let to = (from + count).min(self.last + 1);
        self.probes.extend(from..to);
    }

    /// Goes through a window of depths in turn; false if the last one is done, or nobody is left.
    fn verify(&mut self, verified: Verified) -> bool {
        let Verified { mut place, set } = verified;
        let mut above = set;
        for probe in 0..self.words.len() {
            let set = self.narrow(probe, above, None);
            // A worker that lacks a place before the first that counts is dropped.
            if set != above && place > self.base {
                let ended = self.holders.difference(above, set);
                self.credit(place - 1, ended);
            }
            (above, place) = (set, place + 1);
            if HolderSets::is_empty(above) {
                return false;
            }
        }
        if place > self.last {
            self.credit(self.last, above);
            return false;
        }
        self.verified = Some(Verified { place, set: above });
        self.probes.clear();
        self.add_window(place, VERIFY_WINDOW);
        true
    }
}

/// Number of parts into which to divide `span`, so that the fewest rounds of the fewest probes settle it.
fn parts(span: usize) -> usize {
    if span <= MAX_PARTS {
        return span;
    }
    let rounds = if span <= MAX_PARTS * MAX_PARTS { 2 } else { 3 };
    (3..MAX_PARTS)
        .find(|parts| parts.pow(rounds) >= span)
        .unwrap_or(MAX_PARTS)
}

#[cfg(test)]
mod tests {
    use super::{PrefixSearch, parts};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn places_ascend_within_their_interval_and_leave_nothing_out_of_small_ones(
            lo in 0usize..1000, span in 2usize..3000,
        ) {
            let hi = lo + span;
            let mut search = PrefixSearch::default();
            let count = search.add_places(lo, hi, parts(span));
            prop_assert_eq!(count, search.probes.len());
            prop_assert!(search.probes.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(search.probes.iter().all(|&place| place > lo && place < hi));
            if span <= 11 {
                prop_assert_eq!(count, span - 1);
            }
        }
    }
}
