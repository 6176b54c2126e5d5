//! The look-up: at which depths does the set of holders change?
//!
//! Sets only shrink with depth. A dependent read from memory costs more than ten independent ones, so
//! the search does not bisect: each round probes several places of every interval in question, all
//! fetched together, and goes on only into intervals whose ends differ. Intervals know the set at
//! their head; the *open* one, at the frontier, does not yet know the set at its end: it gallops, each
//! time further, and where sequence hashes must be chained, they are chained only so far.
//!
//! `unsafe` here: set words are kept in buffers between the two passes of a round, without their
//! lifetime. Sound because they are read from this table and used under one and the same pin, within
//! the call that read them. Checked by `tests/stress.rs`.

use std::cmp::Reverse;

use crate::answer::{Matches, report};
use crate::gather::{Gathered, SetRef};
use crate::grace::Pin;
use crate::query::{Chained, FindOptions, Given, Hashes, LeBytes, Query};
use crate::roster::View;
use crate::set::{EMPTY, Set};
use crate::table::Directory;

/// Places probed per interval and round.
const PROBES: usize = 8;
/// The last place of the first gallop, where hashes are chained: most prompts match little.
const FIRST_REACH: usize = 7;
/// Each gallop ends this many times as deep as the one before it.
const GALLOP: usize = 4;
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
}

/// Buffers of a look-up, used again by the next.
#[derive(Default)]
pub(crate) struct Scratch {
    chain: Vec<u64>,
    pub gathered: Gathered,
    pub groups: Vec<Group>,
    words: Vec<u64>,
    intervals: Vec<Interval>,
    next: Vec<Interval>,
}

pub(crate) fn find(
    table: &Directory,
    pin: &Pin<'_>,
    view: &View,
    query: Query<'_>,
    options: &FindOptions,
    out: &mut Matches,
) {
    let mut chain = std::mem::take(&mut out.scratch.chain);
    chain.clear();
    match query {
        Query::SequenceHashes(hashes) => run(table, pin, view, Given(hashes), options, out),
        Query::SequenceHashesLe(bytes) => {
            run(table, pin, view, Given(LeBytes(bytes)), options, out)
        }
        Query::ChunkHashes(chunks) => {
            run(
                table,
                pin,
                view,
                Chained {
                    chunks,
                    chain: &mut chain,
                },
                options,
                out,
            );
        }
        Query::ChunkHashesLe(bytes) => {
            let chunks = LeBytes(bytes);
            run(
                table,
                pin,
                view,
                Chained {
                    chunks,
                    chain: &mut chain,
                },
                options,
                out,
            );
        }
    }
    out.scratch.chain = chain;
}

fn run<H: Hashes>(
    table: &Directory,
    pin: &Pin<'_>,
    view: &View,
    hashes: H,
    options: &FindOptions,
    out: &mut Matches,
) {
    out.clear();
    let mut search = Search {
        table,
        pin,
        hashes,
        scratch: &mut out.scratch,
    };
    if search.run(view, options.exact) {
        let Search { hashes, .. } = search;
        report(
            view,
            options.limit,
            |depth| hashes.at(depth as usize - 1),
            out,
        );
    }
}

struct Search<'a, 'p, H> {
    table: &'a Directory,
    pin: &'p Pin<'p>,
    hashes: H,
    scratch: &'a mut Scratch,
}

impl<H: Hashes> Search<'_, '_, H> {
    /// Fills the groups, deepest first; false if nobody matches.
    fn run(&mut self, view: &View, exact: bool) -> bool {
        self.scratch.groups.clear();
        // Depths are u32 on the wire, and no prompt is that long.
        let count = self.hashes.count().min(u32::MAX as usize);
        if count == 0 {
            return false;
        }
        self.hashes.reach(1);
        let first = self.hashes.at(0);
        self.table.prefetch(first, self.pin);
        let last = count - 1;
        let reach = last.min(if H::LAZY || exact { FIRST_REACH } else { last });
        // The first gallop's lines are fetched along with the first block's.
        self.hashes.reach(reach + 1);
        for place in places(0, reach, true) {
            self.table.prefetch(self.hashes.at(place), self.pin);
        }
        let Some(set) = self.table.look(first, self.pin) else {
            return false;
        };
        if !self.scratch.gathered.begin(set, &view.alive) {
            return false;
        }
        let deepest = if exact {
            self.verify(last)
        } else {
            self.search(reach, last)
        };
        if let Some((place, set)) = deepest {
            self.end(place, set);
        }
        self.scratch
            .groups
            .sort_unstable_by_key(|group| Reverse(group.depth));
        true
    }

    /// Records that the workers of `set` hold `place` and nothing after it.
    fn end(&mut self, place: usize, set: SetRef) {
        self.scratch.groups.push(Group {
            depth: place as u32 + 1,
            set,
        });
    }

    /// Finds all places where sets change; returns the last place and its set, if anyone gets there.
    fn search(&mut self, reach: usize, last: usize) -> Option<(usize, SetRef)> {
        if last == 0 {
            return Some((0, Gathered::FIRST));
        }
        let open = Interval {
            lo: 0,
            hi: reach,
            above: Gathered::FIRST,
            below: None,
        };
        let mut intervals = std::mem::take(&mut self.scratch.intervals);
        let mut next = std::mem::take(&mut self.scratch.next);
        intervals.clear();
        intervals.push(open);
        let mut deepest = None;
        while !intervals.is_empty() {
            self.fetch(&intervals);
            self.look(&intervals);
            next.clear();
            let mut probe = 0;
            for &interval in &intervals {
                deepest = self
                    .divide(interval, last, &mut probe, &mut next)
                    .or(deepest);
            }
            std::mem::swap(&mut intervals, &mut next);
        }
        (self.scratch.intervals, self.scratch.next) = (intervals, next);
        deepest
    }

    /// Asks for the table slots of a round's probes.
    fn fetch(&mut self, intervals: &[Interval]) {
        for interval in intervals {
            self.hashes.reach(interval.hi + 1);
            for place in places(interval.lo, interval.hi, interval.below.is_none()) {
                self.table.prefetch(self.hashes.at(place), self.pin);
            }
        }
    }

    /// Reads the set words of a round's probes, and asks for their bitmaps.
    fn look(&mut self, intervals: &[Interval]) {
        self.scratch.words.clear();
        for interval in intervals {
            for place in places(interval.lo, interval.hi, interval.below.is_none()) {
                self.look_at(place);
            }
        }
    }

    fn look_at(&mut self, place: usize) {
        let set = self.table.look(self.hashes.at(place), self.pin);
        if let Some(set) = set {
            self.scratch.gathered.prefetch(set);
        }
        self.scratch.words.push(set.map_or(EMPTY, Set::word));
    }

    /// The set of a probe that [`Self::look`] read in this round.
    fn narrow(&mut self, probe: usize, above: SetRef, below: Option<SetRef>) -> SetRef {
        // SAFETY: read from the table in this round, under the pin that is still held.
        let set = unsafe { Set::from_word(self.scratch.words[probe]) };
        self.scratch.gathered.narrow(set, above, below)
    }

    /// Compares an interval's probes with each other: records ends between neighbouring places, and
    /// puts off what lies between others to the next round.
    fn divide(
        &mut self,
        interval: Interval,
        last: usize,
        probe: &mut usize,
        next: &mut Vec<Interval>,
    ) -> Option<(usize, SetRef)> {
        let Interval {
            lo,
            hi,
            above,
            below,
        } = interval;
        let (mut lo, mut above) = (lo, above);
        for place in places(lo, hi, below.is_none()) {
            let set = self.narrow(*probe, above, below);
            *probe += 1;
            self.step(lo, place, above, set, next);
            (lo, above) = (place, set);
        }
        if let Some(below) = below {
            self.step(lo, hi, above, below, next);
            return None;
        }
        if self.scratch.gathered.is_empty(above) {
            return None;
        }
        if hi == last {
            return Some((hi, above));
        }
        let further = ((hi + 1) * GALLOP - 1).min(last);
        next.push(Interval {
            lo: hi,
            hi: further,
            above,
            below: None,
        });
        None
    }

    /// From `lo` to `hi` with nothing probed between them.
    fn step(
        &mut self,
        lo: usize,
        hi: usize,
        above: SetRef,
        below: SetRef,
        next: &mut Vec<Interval>,
    ) {
        if above == below {
            return;
        }
        if hi - lo > 1 {
            next.push(Interval {
                lo,
                hi,
                above,
                below: Some(below),
            });
            return;
        }
        let ended = self.scratch.gathered.difference(above, below);
        if !self.scratch.gathered.is_empty(ended) {
            self.end(lo, ended);
        }
    }

    /// Goes through every depth in turn; returns the last place and its set, if anyone gets there.
    fn verify(&mut self, last: usize) -> Option<(usize, SetRef)> {
        let mut above = Gathered::FIRST;
        let mut lo = 0;
        while lo < last {
            let hi = (lo + VERIFY_WINDOW).min(last);
            self.hashes.reach(hi + 1);
            for place in lo + 1..=hi {
                self.table.prefetch(self.hashes.at(place), self.pin);
            }
            self.scratch.words.clear();
            (lo + 1..=hi).for_each(|place| self.look_at(place));
            for place in lo + 1..=hi {
                let set = self.narrow(place - lo - 1, above, None);
                if set != above {
                    let ended = self.scratch.gathered.difference(above, set);
                    self.end(place - 1, ended);
                }
                above = set;
            }
            if self.scratch.gathered.is_empty(above) {
                return None;
            }
            lo = hi;
        }
        Some((last, above))
    }
}

/// The places to probe between `lo` and `hi`, evenly spread; with `hi` itself if that is open.
fn places(lo: usize, hi: usize, open: bool) -> impl Iterator<Item = usize> {
    let span = hi - lo;
    let between = if open { span } else { span.saturating_sub(1) };
    let probes = between.min(PROBES);
    let parts = if open { probes } else { probes + 1 };
    (1..=probes).map(move |part| lo + span * part / parts)
}

#[cfg(test)]
mod tests {
    use super::places;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn places_ascend_within_their_interval_and_leave_nothing_out_of_small_ones(
            lo in 0usize..1000, span in 0usize..3000, open: bool,
        ) {
            let hi = lo + span;
            let found: Vec<usize> = places(lo, hi, open).collect();
            prop_assert!(found.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(found.iter().all(|&place| place > lo && place < hi + usize::from(open)));
            if open && span > 0 {
                prop_assert_eq!(*found.last().unwrap(), hi);
            }
            if span <= 8 {
                prop_assert_eq!(found.len(), if open { span } else { span.saturating_sub(1) });
            }
        }
    }
}
