//! A snapshot being put together from its parts.
//!
//! Parts arrive late, twice, or, from two transports, as two copies that are cut differently. A
//! later copy of a part replaces an earlier one; whenever every part is there, the digests decide
//! whether they are one set. Memory is bounded by the number of parts and of hashes.

use std::collections::BTreeMap;

/// Number of tiers a set is kept for.
pub const TIERS: usize = 4;

/// Count and XOR of the sequence hashes of one tier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Digest {
    /// Number of blocks.
    pub blocks: u64,
    /// XOR of their sequence hashes.
    pub xor: u64,
}

impl Digest {
    /// Of these hashes.
    #[must_use]
    pub fn of(hashes: &[u64]) -> Self {
        Self {
            blocks: hashes.len() as u64,
            xor: hashes.iter().fold(0, |xor, hash| xor ^ hash),
        }
    }

    fn add(&mut self, other: Self) {
        self.blocks = self.blocks.wrapping_add(other.blocks);
        self.xor ^= other.xor;
    }
}

/// One part of the whole set of a worker, copied at one event.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SnapshotPart {
    /// The last event whose effect the set holds.
    pub as_of: u64,
    /// This part's place, below `parts`.
    pub part: u32,
    /// How many parts the set was cut into.
    pub parts: u32,
    /// Place of the tier, below [`TIERS`], that this part's hashes are of.
    pub tier: usize,
    /// The part of the set.
    pub hashes: Vec<u64>,
    /// Of the whole set, per tier.
    pub digests: [Digest; TIERS],
}

/// What a part did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// Parts are missing.
    Incomplete,
    /// All are there and are the set that their digests state.
    Complete,
    /// All are there and are not that set; further copies may still make it so.
    Mismatch,
    /// More parts or hashes than a snapshot may have: everything collected was let go.
    TooLarge,
}

/// The parts of one `as_of` that have been seen.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Assembly {
    pub as_of: u64,
    parts: u32,
    digests: [Digest; TIERS],
    seen: BTreeMap<u32, (SnapshotPart, Digest)>,
    hashes: usize,
}

impl Assembly {
    pub fn new(first: &SnapshotPart) -> Self {
        Self {
            as_of: first.as_of,
            parts: first.parts,
            digests: first.digests,
            seen: BTreeMap::new(),
            hashes: 0,
        }
    }

    /// Whether `part` was cut from the same copy, as far as a part tells.
    pub fn continues(&self, part: &SnapshotPart) -> bool {
        self.as_of == part.as_of && self.parts == part.parts && self.digests == part.digests
    }

    pub fn add(&mut self, part: SnapshotPart, parts_max: u32, hashes_max: usize) -> Progress {
        let digest = Digest::of(&part.hashes);
        self.hashes += part.hashes.len();
        if let Some((old, _)) = self.seen.insert(part.part, (part, digest)) {
            self.hashes -= old.hashes.len();
        }
        if self.parts > parts_max || self.hashes > hashes_max {
            return Progress::TooLarge;
        }
        if self.seen.len() < self.parts as usize {
            return Progress::Incomplete;
        }
        let mut whole = [Digest::default(); TIERS];
        for (part, digest) in self.seen.values() {
            whole[part.tier].add(*digest);
        }
        if whole == self.digests {
            Progress::Complete
        } else {
            Progress::Mismatch
        }
    }

    pub fn into_parts(self) -> Vec<SnapshotPart> {
        self.seen.into_values().map(|(part, _)| part).collect()
    }
}
