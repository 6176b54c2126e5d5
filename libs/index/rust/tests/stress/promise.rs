//! What an answer may say, and must: for each worker of a prompt the depths that some moment of the look-up allowed.
//!
//! One check serves every kind of look-up, since limit, least depth and filter only cut an answer down:
//!
//! - nobody is named twice, or who is not meant, or too shallow, or at a depth that the worker never had;
//! - whoever must be there is there, at that depth; or the limit cut them off, and then the answer is
//!   full of workers at least as deep, and among equals of such as the tie-break prefers.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;

/// The depths at which a worker may be found, 0 meaning not at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    pub least: usize,
    pub most: usize,
    /// Nothing in between: its set does not change while it can be found.
    whole: bool,
}

impl Range {
    /// Holds this all the time.
    pub const fn always(depth: usize) -> Self {
        Self::between(depth, depth)
    }

    pub const fn between(least: usize, most: usize) -> Self {
        let whole = false;
        Self { least, most, whole }
    }

    /// May come or go during the look-up, with all it has.
    pub const fn whole_or_not(depth: usize) -> Self {
        let (least, most, whole) = (0, depth, true);
        Self { least, most, whole }
    }

    fn allows(self, depth: usize) -> bool {
        let lowest = if self.whole { self.most } else { self.least };
        (lowest.max(1)..=self.most).contains(&depth)
    }

    /// As seen by a query of so many blocks.
    fn within(self, blocks: usize) -> Self {
        Self {
            least: self.least.min(blocks),
            most: self.most.min(blocks),
            whole: self.whole,
        }
    }
}

/// By worker; whoever is not named here is never found.
pub type Promise = BTreeMap<u64, Range>;

/// What was asked.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// Sequence hashes, as many as the query has blocks.
    pub hashes: &'a [u64],
    pub limit: usize,
    pub min_depth: usize,
}

/// Whether an answer was possible; if not, why.
pub fn check(asked: Asked<'_>, promise: &Promise, found: &[(u64, usize)]) -> Result<(), String> {
    let Asked {
        hashes,
        limit,
        min_depth,
    } = asked;
    let mut named = BTreeMap::new();
    for (place, &(who, depth)) in found.iter().enumerate() {
        let range = promise.get(&who).map(|range| range.within(hashes.len()));
        if !range.is_some_and(|range| range.allows(depth)) || depth < min_depth {
            return Err(format!("{who} at {depth}, where {range:?} is possible"));
        }
        if place > 0 && found[place - 1].1 < depth {
            return Err(format!("{who} comes after shallower ones"));
        }
        if named.insert(who, depth).is_some() {
            return Err(format!("{who} is named twice"));
        }
    }
    let full = limit > 0 && found.len() >= limit;
    if full && found.len() > limit {
        return Err("more than the limit".to_owned());
    }
    for (&who, range) in promise {
        let least = range.within(hashes.len()).least;
        if named.contains_key(&who) || least < min_depth.max(1) {
            continue;
        }
        let drawn = |&(other, depth): &(u64, usize)| {
            depth > least || depth == least && draw(other, hashes, depth) < draw(who, hashes, depth)
        };
        if !full || !found.iter().all(drawn) {
            return Err(format!("{who} is missing, which always had {least}"));
        }
    }
    Ok(())
}

/// What decides among workers of equal depth, the smallest first.
fn draw(who: u64, hashes: &[u64], depth: usize) -> u64 {
    let mut bytes = who.to_le_bytes().to_vec();
    bytes.extend(0u32.to_le_bytes());
    bytes.extend(hashes[depth - 1].to_le_bytes());
    xxh3_64(&bytes)
}

#[test]
fn the_check_tells_possible_answers_from_impossible_ones() {
    let hashes: Vec<u64> = (0..10).collect();
    let promise = Promise::from([
        (1, Range::always(5)),
        (2, Range::always(5)),
        (3, Range::between(2, 7)),
        (4, Range::whole_or_not(6)),
    ]);
    let says = |limit: usize, min_depth: usize, found: &[(u64, usize)]| {
        let asked = Asked {
            hashes: &hashes,
            limit,
            min_depth,
        };
        check(asked, &promise, found).is_ok()
    };
    let (preferred, other) = if draw(1, &hashes, 5) < draw(2, &hashes, 5) {
        (1, 2)
    } else {
        (2, 1)
    };
    for (limit, min_depth, found) in [
        (0, 0, &[(4, 6), (1, 5), (2, 5), (3, 2)][..]),
        (0, 0, &[(3, 7), (1, 5), (2, 5)]),
        (0, 3, &[(1, 5), (2, 5)]), // 3 may hold too little
        (1, 0, &[(4, 6)]),
        (1, 0, &[(3, 6)]),
        (1, 0, &[(preferred, 5)]),
    ] {
        assert!(says(limit, min_depth, found), "{found:?}");
    }
    for (limit, min_depth, found) in [
        (0, 0, &[(1, 5), (2, 5)][..]),             // 3 is missing
        (0, 0, &[(3, 7), (1, 5)]),                 // 2 is missing
        (0, 0, &[(1, 5), (2, 4), (3, 3)]),         // 2 never had so little
        (0, 0, &[(3, 8), (1, 5), (2, 5)]),         // 3 never had so much
        (0, 0, &[(1, 5), (2, 5), (4, 4), (3, 3)]), // 4 has all or nothing
        (0, 0, &[(3, 2), (1, 5), (2, 5)]),         // out of order
        (0, 0, &[(3, 6), (1, 5), (2, 5), (3, 3)]), // twice
        (0, 0, &[(9, 7), (3, 6), (1, 5), (2, 5)]), // nobody's
        (0, 6, &[(1, 5), (2, 5)]),                 // too shallow
        (2, 0, &[(4, 6)]),                         // there is room
        (1, 0, &[(3, 4)]),                         // 1 and 2 are deeper
        (1, 0, &[(4, 6), (1, 5)]),                 // past the limit
        (1, 0, &[(other, 5)]),                     // the one that the tie-break prefers is missing
    ] {
        assert!(!says(limit, min_depth, found), "{found:?}");
    }
}
