//! Engine events: the changes of an engine's cache, in terms that no engine owns.
//!
//! A batch keeps its hashes and tokens in two columns that its events point into. So a message of
//! thousands of blocks is read without an allocation, and the columns are used again for the next.

use std::ops::Range;

use kvatlas_hashing::Items;
pub use kvatlas_types::Tier;
use xxhash_rust::xxh3::xxh3_128;

/// The reason why announced blocks are not indexed. The set is closed, since it labels a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RefusalReason {
    /// Token ids that are not unsigned 32-bit integers.
    BadTokens,
    /// Bigram tokens that do not follow one another.
    BrokenBigrams,
    /// Adapter or salt of a block differ from its parent's, or a hash came back as other tokens.
    ConflictingPrefix,
    /// The prompt is embeddings: no tokens identify it.
    Embeds,
    /// Fewer or more hashes than blocks of tokens: positions cannot be recovered.
    LengthMismatch,
    /// An adapter's number means nothing outside the engine.
    LoraIdWithoutName,
    /// A field is missing or of the wrong type.
    MalformedEvent,
    /// The mirror holds as many blocks as it may.
    MirrorFull,
    /// A cache group that is not the full-attention one.
    OtherGroup,
    /// A type of event that this build does not know.
    UnknownEvent,
    /// The identity of these blocks includes an extra key that this build does not know.
    UnknownExtraKeys,
    /// An announcement without tokens of a block that was never announced with tokens.
    UnknownHash,
    /// The parent was never indexed, so the prefix is unknown.
    UnknownParent,
    /// A medium that this build does not know.
    UnknownTier,
    /// The engine's blocks are not of the configured size.
    WrongBlockSize,
}

impl RefusalReason {
    /// Every reason, in the order of the numbers, with its label.
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
}

/// An engine's own hash of a block. It is opaque, and serves to find parents and removals alone.
///
/// Engines send integers of 64 bits or raw digests of up to 32 bytes and more. A number below 2^64
/// is kept as it is, whichever way it came. A longer one is kept as 127 bits of its XXH3-128, with a
/// top bit that no short one has. So short hashes never collide. Two long ones in one engine's cache
/// collide with a chance of n²/2^128: 3·10^-25 at ten million blocks, far below the 2^-64 a pair that
/// sequence hashes themselves accept. An attacker could only forge hashes of their own engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineHash {
    /// 0 in a short hash; the top bit is set in a long one.
    pub high: u64,
    /// The number of a short hash.
    pub low: u64,
}

const LONG_HASH: u64 = 1 << 63;

impl EngineHash {
    /// The hash of an integer; a negative one is taken modulo 2^64 by the caller.
    #[must_use]
    pub const fn from_int(hash: u64) -> Self {
        Self { high: 0, low: hash }
    }

    /// The hash of a digest, which is a big-endian number of any width.
    #[must_use]
    pub fn from_bytes(digest: &[u8]) -> Self {
        let zeros = digest.iter().take_while(|byte| **byte == 0).count();
        let digits = &digest[zeros..];
        if digits.len() <= 8 {
            let low = digits.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
            return Self { high: 0, low };
        }
        let hash = xxh3_128(digits);
        Self {
            high: (hash >> 64) as u64 | LONG_HASH,
            low: hash as u64,
        }
    }
}

/// A chain of blocks is now on a tier. The parent of each block is the one before it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Range in the batch's hashes.
    pub hashes: Range<usize>,
    /// The first block's parent; `None`: the chain begins a prompt.
    pub parent: Option<EngineHash>,
    /// Range in the batch's tokens; every block has the same number.
    pub tokens: Range<usize>,
    /// The tier of all blocks.
    pub tier: Tier,
    /// The adapter; below a parent, `None` means the parent's.
    pub lora_name: Option<Box<str>>,
    /// The salt; below a parent, `None` means the parent's.
    pub cache_salt: Option<Box<str>>,
    /// The multimodal items of the blocks that hold some.
    pub items: Vec<Items>,
}

/// One change of an engine's cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// See [`Stored`].
    Stored(Stored),
    /// Blocks, named by hash alone, are now on a tier: an offload of blocks announced before.
    StoredByHash(Range<usize>, Tier),
    /// Blocks have left a tier.
    Removed(Range<usize>, Tier),
    /// All blocks have left a tier; `None`: every tier.
    Cleared(Option<Tier>),
    /// Something was announced that cannot be indexed. The cache may hold more than is published.
    Unindexable {
        /// The reason.
        reason: RefusalReason,
        /// The number of blocks in the event.
        blocks: usize,
        /// The event may have been a removal, so blocks announced before may be gone.
        may_hide_removal: bool,
    },
}

/// An event that was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The label of a counter.
    pub reason: RefusalReason,
    /// For the log; never a label.
    pub detail: String,
    /// The engine's block size, with `WrongBlockSize`.
    pub block_size: Option<u64>,
}

impl Refusal {
    pub(crate) fn new(reason: RefusalReason, detail: impl Into<String>) -> Self {
        Self {
            reason,
            detail: detail.into(),
            block_size: None,
        }
    }

    /// A field is missing or of the wrong type.
    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(RefusalReason::MalformedEvent, detail)
    }

    /// The engine's block size differs from the configured one. `blocks`: the engine's word for them.
    pub(crate) fn block_size(blocks: &str, size: u64, configured: usize) -> Self {
        let detail = format!("{blocks} of {size} tokens; {configured} are configured");
        Self {
            block_size: Some(size),
            ..Self::new(RefusalReason::WrongBlockSize, detail)
        }
    }
}

/// The events of one message, in order.
#[derive(Default, Debug)]
pub struct EventBatch {
    /// The events; their ranges lie in the columns below.
    pub events: Vec<Event>,
    /// Engine hashes.
    pub hashes: Vec<EngineHash>,
    /// Token ids.
    pub tokens: Vec<u32>,
    /// One for each [`Event::Unindexable`], in order.
    pub refusals: Vec<Refusal>,
}

impl EventBatch {
    /// Empties the batch. Its memory stays, up to what ordinary messages need.
    pub fn clear(&mut self) {
        empty(&mut self.events);
        empty(&mut self.hashes);
        empty(&mut self.tokens);
        empty(&mut self.refusals);
    }

    /// Adds an event that cannot be indexed.
    pub(crate) fn refuse(&mut self, refusal: Refusal, blocks: usize, may_hide_removal: bool) {
        self.events.push(Event::Unindexable {
            reason: refusal.reason,
            blocks,
            may_hide_removal,
        });
        self.refusals.push(refusal);
    }

    /// Adds a store without tokens of the hashes from `first` on; one of no blocks means nothing.
    pub(crate) fn push_stored_by_hash(&mut self, first: usize, tier: Tier) {
        let hashes = first..self.hashes.len();
        if !hashes.is_empty() {
            self.events.push(Event::StoredByHash(hashes, tier));
        }
    }
}

/// Bytes of a column that are kept for the next message. The memory of a huge message is given back.
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
        for (number, (reason, _)) in RefusalReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
        }
    }

    #[test]
    fn the_memory_of_one_huge_message_is_not_kept() {
        let mut batch = EventBatch::default();
        batch.tokens.resize(COLUMN_BYTES_KEPT, 0);
        batch.clear();
        let kept = batch.tokens.capacity() * size_of::<u32>();
        assert_eq!(kept, COLUMN_BYTES_KEPT);
    }

    #[test]
    fn a_digest_that_fits_an_integer_is_that_integer() {
        assert_eq!(
            EngineHash::from_bytes(&[0, 0, 1, 2]),
            EngineHash::from_int(258)
        );
        let eight = EngineHash::from_bytes(&[0xff; 8]);
        assert_eq!(eight, EngineHash::from_int(u64::MAX));
    }

    #[test]
    fn leading_zeros_change_nothing_and_every_other_byte_does() {
        let digest: Vec<u8> = (1..=32).collect();
        let padded = [vec![0; 5], digest.clone()].concat();
        assert_eq!(
            EngineHash::from_bytes(&digest),
            EngineHash::from_bytes(&padded)
        );
        for at in 0..digest.len() {
            let mut other = digest.clone();
            other[at] ^= 0x80;
            assert_ne!(
                EngineHash::from_bytes(&digest),
                EngineHash::from_bytes(&other)
            );
        }
        assert_eq!(EngineHash::from_bytes(&digest).high >> 63, 1);
    }
}
