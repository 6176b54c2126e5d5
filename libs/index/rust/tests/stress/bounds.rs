//! The bounds of an answer: for each worker of a prompt, the depths that some moment of the look-up allowed.
//!
//! One check serves every kind of look-up, since limit, minimal depth and filter only leave rows out:
//!
//! - no worker is named twice, or against the filter, or too shallow, or at a depth that it never had;
//! - a worker that must be found is found, at that depth; or the limit left it out, and then the answer is full of workers
//!   at least as deep, and among equals of those that the tie break prefers.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;

/// The depths at which a worker may be found; 0 means not at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DepthRange {
    pub least: usize,
    pub most: usize,
    /// Either all or nothing: its set does not change while it can be found.
    all_or_nothing: bool,
}

impl DepthRange {
    /// Bounds of a worker that holds this all the time.
    pub const fn always(depth: usize) -> Self {
        Self::between(depth, depth)
    }

    pub const fn between(least: usize, most: usize) -> Self {
        Self {
            least,
            most,
            all_or_nothing: false,
        }
    }

    /// Bounds of a worker that may join or leave during the look-up, with all its blocks.
    pub const fn all_or_nothing(depth: usize) -> Self {
        Self {
            least: 0,
            most: depth,
            all_or_nothing: true,
        }
    }

    fn allows(self, depth: usize) -> bool {
        let lowest = if self.all_or_nothing {
            self.most
        } else {
            self.least
        };
        (lowest.max(1)..=self.most).contains(&depth)
    }

    /// The bounds for a query of so many blocks.
    fn within(self, blocks: usize) -> Self {
        Self {
            least: self.least.min(blocks),
            most: self.most.min(blocks),
            all_or_nothing: self.all_or_nothing,
        }
    }
}

/// Bounds by worker; others are never found.
pub type Bounds = BTreeMap<u64, DepthRange>;

/// A query and its options.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// Sequence hashes of the query.
    pub hashes: &'a [u64],
    pub limit: usize,
    pub min_depth: usize,
}

/// Checks that an answer was possible; an error says why it was not.
pub fn check(asked: Asked<'_>, bounds: &Bounds, found: &[(u64, usize)]) -> Result<(), String> {
    let Asked {
        hashes,
        limit,
        min_depth,
    } = asked;
    let mut named = BTreeMap::new();
    for (place, &(who, depth)) in found.iter().enumerate() {
        let range = bounds.get(&who).map(|range| range.within(hashes.len()));
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
    for (&who, range) in bounds {
        let least = range.within(hashes.len()).least;
        if named.contains_key(&who) || least < min_depth.max(1) {
            continue;
        }
        let is_preferred = |&(other, depth): &(u64, usize)| {
            depth > least
                || depth == least && tie_break(other, hashes, depth) < tie_break(who, hashes, depth)
        };
        if !full || !found.iter().all(is_preferred) {
            return Err(format!("{who} is missing, which always had {least}"));
        }
    }
    Ok(())
}

/// The hash that decides among workers of equal depth; the smallest is preferred.
fn tie_break(who: u64, hashes: &[u64], depth: usize) -> u64 {
    let mut bytes = who.to_le_bytes().to_vec();
    bytes.extend(0u32.to_le_bytes());
    bytes.extend(hashes[depth - 1].to_le_bytes());
    xxh3_64(&bytes)
}

#[test]
fn the_check_accepts_possible_answers_and_no_others() {
    let hashes: Vec<u64> = (0..10).collect();
    let bounds = Bounds::from([
        (1, DepthRange::always(5)),
        (2, DepthRange::always(5)),
        (3, DepthRange::between(2, 7)),
        (4, DepthRange::all_or_nothing(6)),
    ]);
    let accepts = |limit: usize, min_depth: usize, found: &[(u64, usize)]| {
        let asked = Asked {
            hashes: &hashes,
            limit,
            min_depth,
        };
        check(asked, &bounds, found).is_ok()
    };
    let (preferred, other) = if tie_break(1, &hashes, 5) < tie_break(2, &hashes, 5) {
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
        assert!(accepts(limit, min_depth, found), "{found:?}");
    }
    for (limit, min_depth, found) in [
        (0, 0, &[(1, 5), (2, 5)][..]),             // 3 is missing
        (0, 0, &[(3, 7), (1, 5)]),                 // 2 is missing
        (0, 0, &[(1, 5), (2, 4), (3, 3)]),         // 2 never had so little
        (0, 0, &[(3, 8), (1, 5), (2, 5)]),         // 3 never had so much
        (0, 0, &[(1, 5), (2, 5), (4, 4), (3, 3)]), // 4 has all or nothing
        (0, 0, &[(3, 2), (1, 5), (2, 5)]),         // out of order
        (0, 0, &[(3, 6), (1, 5), (2, 5), (3, 3)]), // twice
        (0, 0, &[(9, 7), (3, 6), (1, 5), (2, 5)]), // no worker of the prompt
        (0, 6, &[(1, 5), (2, 5)]),                 // too shallow
        (2, 0, &[(4, 6)]),                         // there is room
        (1, 0, &[(3, 4)]),                         // 1 and 2 are deeper
        (1, 0, &[(4, 6), (1, 5)]),                 // past the limit
        (1, 0, &[(other, 5)]),                     // the one that the tie break prefers is missing
    ] {
        assert!(!accepts(limit, min_depth, found), "{found:?}");
    }
}
