//! Assembles a snapshot from its parts.
//!
//! Parts arrive late, twice, or from two transports as two copies that are cut differently. A later
//! copy of a part replaces an earlier one. Whenever every part is there, the digests decide whether
//! the parts are one set. The limits on parts and hashes bound the memory.

use std::collections::BTreeMap;

use kvatlas_types::{Tier, TierDigest};

/// One part of a worker's whole set, copied at one event.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SnapshotPart {
    /// The set holds the effect of the events up to this id.
    pub as_of: u64,
    /// Number of this part, below `parts`.
    pub part: u32,
    /// Number of parts that the set was cut into.
    pub parts: u32,
    /// Number of the tier of this part's hashes, below [`Tier::COUNT`].
    pub tier: usize,
    /// Sequence hashes of this part.
    pub hashes: Vec<u64>,
    /// Digests of the whole set, by tier.
    pub digests: [TierDigest; Tier::COUNT],
}

/// The result of adding one part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// Parts are missing.
    Incomplete,
    /// All parts are there and match the digests.
    Complete,
    /// All parts are there and do not match the digests. Further copies may still correct it.
    Mismatch,
    /// A limit on parts or hashes is exceeded.
    TooLarge,
}

/// The collected parts of one snapshot.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct SnapshotAssembly {
    pub as_of: u64,
    parts: u32,
    digests: [TierDigest; Tier::COUNT],
    collected: BTreeMap<u32, (SnapshotPart, TierDigest)>,
    hashes: usize,
}

impl SnapshotAssembly {
    pub fn new(first: &SnapshotPart) -> Self {
        Self {
            as_of: first.as_of,
            parts: first.parts,
            digests: first.digests,
            collected: BTreeMap::new(),
            hashes: 0,
        }
    }

    /// Whether `part` seems to be cut from the same copy of the set.
    pub fn continues(&self, part: &SnapshotPart) -> bool {
        self.as_of == part.as_of && self.parts == part.parts && self.digests == part.digests
    }

    pub fn add(&mut self, part: SnapshotPart, parts_max: u32, hashes_max: usize) -> Progress {
        let digest = TierDigest::of(&part.hashes);
        self.hashes += part.hashes.len();
        if let Some((old, _)) = self.collected.insert(part.part, (part, digest)) {
            self.hashes -= old.hashes.len();
        }
        if self.parts > parts_max || self.hashes > hashes_max {
            return Progress::TooLarge;
        }
        if self.collected.len() < self.parts as usize {
            return Progress::Incomplete;
        }
        let mut sums = [TierDigest::default(); Tier::COUNT];
        for (part, digest) in self.collected.values() {
            let sum = &mut sums[part.tier];
            sum.blocks = sum.blocks.wrapping_add(digest.blocks);
            sum.digest ^= digest.digest;
        }
        if sums == self.digests {
            Progress::Complete
        } else {
            Progress::Mismatch
        }
    }

    pub fn into_parts(self) -> Vec<SnapshotPart> {
        self.collected.into_values().map(|(part, _)| part).collect()
    }
}
