//! What any engine says of its cache, in words that no engine owns, as columns.
//!
//! A batch's hashes and tokens lie in two arrays that its events point into, so that a message of
//! thousands of blocks is read without an allocation, and the arrays are used again for the next.

use std::ops::Range;

use kvatlas_hashing::Items;
use xxhash_rust::xxh3::xxh3_128;

/// Where a block lies, from near to far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Tier {
    /// The engine's own memory.
    Device,
    /// The host's memory.
    Host,
    /// A local disk.
    Disk,
    /// A store that engines share.
    Remote,
}

/// All tiers, from near to far.
pub const TIERS: [Tier; 4] = [Tier::Device, Tier::Host, Tier::Disk, Tier::Remote];

/// Number and XOR of the published sequence hashes of a tier.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct TierDigest {
    /// How many.
    pub blocks: u64,
    /// Their XOR.
    pub digest: u64,
}

/// Why blocks that an engine announced cannot be indexed; closed, for it labels a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs)] // `kvatlas_engines.Reason` says what each means; the names are equal.
pub enum Reason {
    BadTokens,
    BrokenBigrams,
    ConflictingPrefix,
    Embeds,
    LengthMismatch,
    LoraIdWithoutName,
    MalformedEvent,
    MirrorFull,
    OtherGroup,
    UnknownEvent,
    UnknownExtraKeys,
    UnknownHash,
    UnknownParent,
    UnknownTier,
    WrongBlockSize,
}

impl Reason {
    /// All reasons, in the order of their numbers, with their names in Python.
    pub const ALL: [(Self, &'static str); 15] = [
        (Self::BadTokens, "bad_tokens"),
        (Self::BrokenBigrams, "broken_bigrams"),
        (Self::ConflictingPrefix, "conflicting_prefix"),
        (Self::Embeds, "embeds"),
        (Self::LengthMismatch, "length_mismatch"),
        (Self::LoraIdWithoutName, "lora_id_without_name"),
        (Self::MalformedEvent, "malformed_event"),
        (Self::MirrorFull, "mirror_full"),
        (Self::OtherGroup, "other_group"),
        (Self::UnknownEvent, "unknown_event"),
        (Self::UnknownExtraKeys, "unknown_extra_keys"),
        (Self::UnknownHash, "unknown_hash"),
        (Self::UnknownParent, "unknown_parent"),
        (Self::UnknownTier, "unknown_tier"),
        (Self::WrongBlockSize, "wrong_block_size"),
    ];

    /// The label of this reason.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// The reason of this label.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(_, known)| *known == name);
        found.map(|(reason, _)| *reason)
    }
}

/// An engine's own name of a block: opaque, of use only to find parents and removals.
///
/// Engines send integers of 64 bits or raw digests of up to 32 bytes and more. A number below 2^64
/// is kept as it is, whichever way it came; a longer one is kept as 127 bits of its XXH3-128, with a
/// top bit that no short one has. So short names never collide. Two long ones of one engine's cache
/// do with a chance of n²/2^128: 3·10^-25 at ten million blocks, far below the 2^-64 a pair that
/// sequence hashes themselves accept, and what an attacker could forge would be his own engine's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineKey {
    pub(crate) high: u64,
    pub(crate) low: u64,
}

const LONG_NAME: u64 = 1 << 63;

impl EngineKey {
    /// The key of an integer; a negative one is taken modulo 2^64 by the caller.
    #[must_use]
    pub const fn from_int(hash: u64) -> Self {
        Self { high: 0, low: hash }
    }

    /// The key of a digest, a big-endian number of any width.
    #[must_use]
    pub fn from_bytes(digest: &[u8]) -> Self {
        let zeros = digest.iter().take_while(|byte| **byte == 0).count();
        let digits = &digest[zeros..];
        if digits.len() <= 8 {
            let low = digits.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
            return Self { high: 0, low };
        }
        let name = xxh3_128(digits);
        let high = (name >> 64) as u64 | LONG_NAME;
        Self {
            high,
            low: name as u64,
        }
    }

    /// Spread over the bits that a table takes: short names can be small numbers.
    pub(crate) fn table_hash(self) -> u64 {
        let mixed = u128::from(self.low ^ self.high ^ 0x9E37_79B9_7F4A_7C15)
            * u128::from(0xD6E8_FEB8_6659_FD93_u64);
        mixed as u64 ^ (mixed >> 64) as u64
    }
}

/// A chain of blocks is now on a tier: each block's parent is the one before it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Where in the batch's hashes.
    pub hashes: Range<usize>,
    /// Of the first block; None: it begins a prompt.
    pub parent: Option<EngineKey>,
    /// Where in the batch's tokens: as many for each hash.
    pub tokens: Range<usize>,
    /// Where the blocks are.
    pub tier: Tier,
    /// None below a parent: as the parent has it.
    pub lora_name: Option<Box<str>>,
    /// None below a parent: as the parent has it.
    pub cache_salt: Option<Box<str>>,
    /// The multimodal items of those blocks that hold some.
    pub items: Vec<Items>,
}

/// One thing that an engine said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// See [`Stored`].
    Stored(Stored),
    /// Blocks, named by hash alone, are now on a tier: an offload of what was announced before.
    StoredByHash(Range<usize>, Tier),
    /// Blocks have left a tier.
    Removed(Range<usize>, Tier),
    /// All blocks have left a tier; None: every tier.
    Cleared(Option<Tier>),
    /// Something was announced that cannot be indexed. The cache may hold more than we say.
    Unindexable {
        /// Why.
        reason: Reason,
        /// How many blocks the event spoke of.
        blocks: usize,
        /// What could not be read may have been a removal: what was said before is not sure.
        may_hide_removal: bool,
    },
}

/// Why an event was refused, for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The label of a counter.
    pub reason: Reason,
    /// For the log; never a label.
    pub detail: String,
    /// With `WrongBlockSize`: the engine's.
    pub block_size: Option<u64>,
}

/// What one message said, in order.
#[derive(Default, Debug)]
pub struct Batch {
    /// The events; their ranges lie in the columns below.
    pub events: Vec<Event>,
    /// Engine hashes.
    pub hashes: Vec<EngineKey>,
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Of the events that a reader refused.
    pub refusals: Vec<Refusal>,
}

impl Batch {
    /// Empties the batch; its memory stays, up to what ordinary messages need.
    pub fn clear(&mut self) {
        empty(&mut self.events);
        empty(&mut self.hashes);
        empty(&mut self.tokens);
        empty(&mut self.refusals);
    }
}

/// Of a column, kept from one message to the next: that of one huge message is not kept for ever.
const COLUMN_BYTES_KEPT: usize = 4 << 20;

fn empty<T>(column: &mut Vec<T>) {
    column.clear();
    column.shrink_to(COLUMN_BYTES_KEPT / size_of::<T>());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_numbered_as_they_are_listed() {
        for (number, (reason, name)) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
            assert_eq!(Reason::from_name(name), Some(reason));
        }
    }

    #[test]
    fn the_memory_of_one_huge_message_is_not_kept() {
        let mut batch = Batch::default();
        batch.tokens.resize(COLUMN_BYTES_KEPT, 0);
        batch.clear();
        let kept = batch.tokens.capacity() * size_of::<u32>();
        assert_eq!(kept, COLUMN_BYTES_KEPT);
    }

    #[test]
    fn a_digest_that_fits_an_integer_is_that_integer() {
        assert_eq!(
            EngineKey::from_bytes(&[0, 0, 1, 2]),
            EngineKey::from_int(258)
        );
        let eight = EngineKey::from_bytes(&[0xff; 8]);
        assert_eq!(eight, EngineKey::from_int(u64::MAX));
    }

    #[test]
    fn leading_zeros_change_nothing_and_every_other_byte_does() {
        let digest: Vec<u8> = (1..=32).collect();
        let padded = [vec![0; 5], digest.clone()].concat();
        assert_eq!(
            EngineKey::from_bytes(&digest),
            EngineKey::from_bytes(&padded)
        );
        for at in 0..digest.len() {
            let mut other = digest.clone();
            other[at] ^= 0x80;
            assert_ne!(
                EngineKey::from_bytes(&digest),
                EngineKey::from_bytes(&other)
            );
        }
        assert_eq!(EngineKey::from_bytes(&digest).high >> 63, 1);
    }
}
