//! The memory of a reader from one message to the next.

use crate::cache_groups::IndexedGroup;

/// The properties of prompts that an engine's release does not tell apart, a bit each.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct BlindSpots(u8);

impl BlindSpots {
    /// The adapter.
    pub const ADAPTERS: Self = Self(1);
    /// The cache salt.
    pub const CACHE_SALTS: Self = Self(2);
    /// Images and other multimodal items.
    pub const MULTIMODAL_ITEMS: Self = Self(4);

    const NAMES: [(Self, &'static str); 3] = [
        (Self::ADAPTERS, "adapters"),
        (Self::CACHE_SALTS, "cache salts"),
        (Self::MULTIMODAL_ITEMS, "multimodal items"),
    ];

    /// All of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Their names, in alphabetical order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let present = move |(spot, _): &(Self, _)| self.0 & spot.0 != 0;
        Self::NAMES
            .into_iter()
            .filter(present)
            .map(|(_, name)| name)
    }

    /// The bits, for [`BlindSpots::from_bits`].
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The set of these bits; `None` if one of them means nothing.
    #[must_use]
    pub fn from_bits(bits: u8) -> Option<Self> {
        let known = Self::NAMES.iter().fold(0, |all, (spot, _)| all | spot.0);
        (bits & !known == 0).then_some(Self(bits))
    }
}

/// The facts that a reader remembers. They are copied for each message, so that a malformed one leaves no trace.
#[derive(Clone, Copy, Debug)]
pub struct ReaderState {
    /// Tokens per block, as configured; stores of another size are refused.
    pub block_size: usize,
    /// The cache group of a hybrid model that is indexed.
    pub group: IndexedGroup,
    /// The blind spots seen so far.
    pub blind_spots: BlindSpots,
}
