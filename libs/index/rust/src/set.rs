//! A set word: who holds the block of a table slot. The slot itself keeps it in short, see [`crate::brief`].
//!
//! ```text
//!  63   60 59                                                         0
//! ┌───────┬───────────────────────────────────────────────────────────┐
//! │ tag   │                                                           │
//! ├───────┼──────────────┬──────────────┬──────────────┬──────────────┤
//! │ 0     │ vacant: no key was ever written to this slot (all zero)   │
//! │ 1     │ empty: the key is there, nobody holds it                  │
//! │ 2..5  │ id 3 (15 bit)│ id 2         │ id 1         │ id 0         │  1 to 4 workers, ascending
//! │ 6     │ width in words (12 bit)     │ address of a bitmap (48 bit)│  5 workers and more
//! └───────┴──────────────┴──────────────┴──────────────┴──────────────┘
//! ```
//!
//! Ids are kept ascending, so equal inline sets are equal words. 15 bits make 32,768 worker slots.
//! The word alone says how long the bitmap is, so a reader needs nothing else to read it.
//!
//! `unsafe` here: a [`Set`] vouches that its word's bitmap may be read for as long as it lives. Sound
//! because only a slot borrowed from a protected table makes one ([`Set::from_word`] has the terms).
//! Checked by `tests/differential.rs` and `tests/stress.rs`.

use crate::sync::atomic::AtomicU64;

use crate::bitmap;

/// Worker slots there can be.
pub(crate) const MAX_SLOTS: usize = crate::sync::sized(1 << ID_BITS, 128);
/// Workers that fit into the word itself.
pub(crate) const MAX_INLINE: usize = 4;

const ID_BITS: u32 = 15;
const ID_MASK: u64 = (1 << ID_BITS) - 1;
const TAG_SHIFT: u32 = 60;
const TAG_EMPTY: u64 = 1;
const TAG_SPILLED: u64 = 6;
/// The smallest word that names a holder.
const FIRST_HELD: u64 = (TAG_EMPTY + 1) << TAG_SHIFT;
const WIDTH_SHIFT: u32 = 48;
const ADDRESS_MASK: u64 = (1 << WIDTH_SHIFT) - 1;

/// The word of a slot that has never had a key.
pub(crate) const VACANT: u64 = 0;
/// The word of a slot whose key nobody holds.
pub(crate) const EMPTY: u64 = TAG_EMPTY << TAG_SHIFT;

/// Whether somebody holds the block of a slot with this word.
#[inline]
pub(crate) fn is_held(word: u64) -> bool {
    word >= FIRST_HELD
}

/// A set word, decoded.
#[derive(Clone, Copy)]
pub(crate) enum Holders<'p> {
    Few(Few),
    Many(&'p [AtomicU64]),
}

/// What a word says about its slot, read for as long as `'p`: a pin, or the writer's lock.
#[derive(Clone, Copy)]
pub(crate) struct Set<'p> {
    word: u64,
    _held: std::marker::PhantomData<&'p AtomicU64>,
}

impl<'p> Set<'p> {
    /// # Safety
    /// `word` is [`crate::cells::Cells::word`] of a slot of a table that is protected for `'p`, or [`VACANT`], or
    /// [`Few::word`].
    pub unsafe fn from_word(word: u64) -> Self {
        Self {
            word,
            _held: std::marker::PhantomData,
        }
    }

    pub fn word(self) -> u64 {
        self.word
    }

    /// Nobody holds the block, be there a key or not.
    pub fn is_empty(self) -> bool {
        !is_held(self.word)
    }

    pub fn is_spilled(self) -> bool {
        self.word >> TAG_SHIFT == TAG_SPILLED
    }

    pub fn holders(self) -> Holders<'p> {
        if self.is_spilled() {
            let (address, width) = spilled_parts(self.word);
            // SAFETY: by the contract of `from_word`, the word was in a slot that is protected for
            // `'p`; what it points to is not used again before `'p` ends.
            Holders::Many(unsafe { bitmap::bits(address, width) })
        } else {
            Holders::Few(if is_held(self.word) {
                Few(self.word)
            } else {
                Few::EMPTY
            })
        }
    }

    pub fn contains(self, slot: u16) -> bool {
        match self.holders() {
            Holders::Few(few) => few.contains(slot),
            Holders::Many(bits) => bitmap::contains(bits, slot),
        }
    }
}

/// The word for a bitmap of `width` words at `address`.
pub(crate) fn spilled_word(address: usize, width: u16) -> u64 {
    let address = address as u64;
    assert!(
        address <= ADDRESS_MASK,
        "an address of more than 48 bits does not fit a set word"
    );
    TAG_SPILLED << TAG_SHIFT | u64::from(width) << WIDTH_SHIFT | address
}

/// Address and width in words of the bitmap that `word`, a spilled one, names.
pub(crate) fn spilled_parts(word: u64) -> (usize, u16) {
    let width = (word >> WIDTH_SHIFT) as u16 & 0xfff;
    ((word & ADDRESS_MASK) as usize, width)
}

/// Up to four worker slots in a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Few(u64);

impl Few {
    pub const EMPTY: Self = Self(EMPTY);

    /// The word to publish.
    pub fn word(self) -> u64 {
        self.0
    }

    pub fn len(self) -> usize {
        (self.0 >> TAG_SHIFT).saturating_sub(TAG_EMPTY) as usize
    }

    /// The set of one.
    #[inline]
    pub fn one(slot: u16) -> Self {
        Self((1 + TAG_EMPTY) << TAG_SHIFT | u64::from(slot))
    }

    /// The set of so many ids, at most four, which ascend.
    #[inline(always)]
    pub fn ascending<const N: usize>(ids: [u16; N]) -> Self {
        const { assert!(N <= MAX_INLINE) };
        let mut word = (N as u64 + TAG_EMPTY) << TAG_SHIFT;
        for (place, id) in (0..).zip(ids) {
            word |= u64::from(id) << (ID_BITS * place);
        }
        Self(word)
    }

    fn id(self, place: usize) -> u16 {
        (self.0 >> (ID_BITS * place as u32) & ID_MASK) as u16
    }

    pub fn ids(self) -> impl Iterator<Item = u16> {
        (0..self.len()).map(move |place| self.id(place))
    }

    pub fn contains(self, slot: u16) -> bool {
        self.ids().any(|id| id == slot)
    }

    /// The few that a word says.
    pub fn of_word(word: u64) -> Option<Self> {
        (is_held(word) && word >> TAG_SHIFT != TAG_SPILLED).then_some(Self(word))
    }

    /// The set with `slot`, which it does not hold yet; none if there is no room.
    pub fn with(self, slot: u16) -> Option<Self> {
        let len = self.len();
        if len == MAX_INLINE {
            return None;
        }
        let place = self.ids().filter(|&id| id < slot).count() as u32 * ID_BITS;
        let below = self.0 & ((1 << place) - 1);
        let ids = self.0 & ((1 << TAG_SHIFT) - 1);
        let above = (ids >> place << place) << ID_BITS;
        Some(Self(
            (len as u64 + 1 + TAG_EMPTY) << TAG_SHIFT | above | u64::from(slot) << place | below,
        ))
    }

    /// The set of those ids for which `keep` is true.
    pub fn filtered(self, keep: impl Fn(u16) -> bool) -> Self {
        // There is room: never more ids than before.
        self.ids()
            .filter(|&id| keep(id))
            .fold(Self::EMPTY, |set, id| set.with(id).unwrap_or(set))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn vacant_and_empty_words_hold_nobody_and_differ() {
        assert_eq!(Few(VACANT).len(), 0);
        assert_eq!(Few(EMPTY).len(), 0);
        assert_ne!(VACANT, EMPTY);
    }

    #[test]
    fn spilled_words_keep_width_and_address() {
        let word = spilled_word(0x7fff_dead_bee0, 512);
        assert_eq!(spilled_parts(word), (0x7fff_dead_bee0, 512));
    }

    proptest! {
        #[test]
        fn inline_sets_behave_as_sets(ids in prop::collection::btree_set(0u16..1 << 15, 0..=4), probe: u16) {
            let mut order: Vec<u16> = ids.iter().copied().collect();
            order.reverse();
            let set = order.iter().fold(Few::EMPTY, |set, &id| set.with(id).unwrap());
            prop_assert_eq!(set.ids().collect::<Vec<_>>(), ids.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(set.contains(probe % (1 << 15)), ids.contains(&(probe % (1 << 15))));
            let forward = ids.iter().fold(Few::EMPTY, |set, &id| set.with(id).unwrap());
            prop_assert_eq!(set, forward);
            let odd: BTreeSet<u16> = ids.iter().copied().filter(|id| id % 2 == 1).collect();
            prop_assert_eq!(set.filtered(|id| id % 2 == 1).ids().collect::<BTreeSet<_>>(), odd);
            prop_assert_eq!(set.with(probe % (1 << 15)).is_none(), ids.len() == 4);
        }
    }
}
