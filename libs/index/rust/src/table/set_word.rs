//! A set word: the holders of one block, in 64 bits. An entry keeps it in 32, see [`crate::table::compact_set`].
//!
//! ```text
//!  63   60 59                                                         0
//! ┌───────┬───────────────────────────────────────────────────────────┐
//! │ tag   │                                                           │
//! ├───────┼──────────────┬──────────────┬──────────────┬──────────────┤
//! │ 0     │ vacant: no key was ever written to this entry (all zero)  │
//! │ 1     │ empty: the key is there, nobody holds the block           │
//! │ 2..5  │ slot 3 (15 b)│ slot 2       │ slot 1       │ slot 0       │  1 to 4 worker slots, ascending
//! │ 6     │ width in words (12 bit)     │ address of a bitmap (48 bit)│  5 worker slots and more
//! └───────┴──────────────┴──────────────┴──────────────┴──────────────┘
//! ```
//!
//! Slots ascend, so equal inline sets are equal words. 15 bits a slot allow 32,768 of them. The word alone says how long
//! the bitmap is, so a reader needs nothing else to read it.
//!
//! `unsafe` here: a [`StoredSet`] vouches that the bitmap of its word may be read for as long as it lives. Sound because
//! only an entry borrowed from a protected table makes one ([`StoredSet::from_word`] has the terms).
//! Checked by `tests/differential.rs` and `tests/stress.rs`.

use std::marker::PhantomData;

use crate::sync::atomic::AtomicU64;
use crate::table::bitmap;
use crate::types::WorkerSlot;

/// Worker slots that fit into the word itself.
pub(crate) const MAX_INLINE: usize = 4;

const SLOT_BITS: u32 = WorkerSlot::BITS;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
const TAG_SHIFT: u32 = 60;
const TAG_EMPTY: u64 = 1;
const TAG_BITMAP: u64 = 6;
/// The smallest word that names a holder.
const FIRST_HELD: u64 = (TAG_EMPTY + 1) << TAG_SHIFT;
const WIDTH_SHIFT: u32 = 48;
const ADDRESS_MASK: u64 = (1 << WIDTH_SHIFT) - 1;

/// A set of holders as a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct SetWord(u64);

impl SetWord {
    /// The word of an entry that has never had a key.
    pub const VACANT: Self = Self(0);
    /// The word of an entry whose block nobody holds.
    pub const EMPTY: Self = Self(TAG_EMPTY << TAG_SHIFT);

    /// The word for a bitmap of `width` words at `address`.
    pub fn of_bitmap(address: usize, width: u16) -> Self {
        let address = address as u64;
        assert!(
            address <= ADDRESS_MASK,
            "an address of more than 48 bits does not fit a set word"
        );
        Self(TAG_BITMAP << TAG_SHIFT | u64::from(width) << WIDTH_SHIFT | address)
    }

    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether somebody holds the block.
    #[inline]
    pub fn is_held(self) -> bool {
        self.0 >= FIRST_HELD
    }

    #[inline]
    pub fn is_bitmap(self) -> bool {
        self.0 >> TAG_SHIFT == TAG_BITMAP
    }

    /// Address and width in words of the bitmap that the word, which must be such, names.
    pub fn bitmap_parts(self) -> (usize, u16) {
        let width = (self.0 >> WIDTH_SHIFT) as u16 & 0xfff;
        ((self.0 & ADDRESS_MASK) as usize, width)
    }

    /// The set, if it is inline and has holders.
    pub fn inline(self) -> Option<InlineSet> {
        (self.is_held() && !self.is_bitmap()).then_some(InlineSet(self))
    }
}

/// The holders of a block, decoded.
#[derive(Clone, Copy)]
pub(crate) enum Holders<'p> {
    Inline(InlineSet),
    Bitmap(&'p [AtomicU64]),
}

/// The set of an entry, readable for as long as `'p`: a pin, or the writer's lock.
#[derive(Clone, Copy)]
pub(crate) struct StoredSet<'p> {
    word: SetWord,
    _held: PhantomData<&'p AtomicU64>,
}

impl<'p> StoredSet<'p> {
    /// # Safety
    /// `word` is [`crate::table::spilled_sets::SpilledSets::word_of`] an entry of a table that is protected for `'p`, or
    /// [`SetWord::VACANT`], or [`InlineSet::word`].
    pub unsafe fn from_word(word: SetWord) -> Self {
        Self {
            word,
            _held: PhantomData,
        }
    }

    pub fn word(self) -> SetWord {
        self.word
    }

    /// Whether nobody holds the block, be there a key or not.
    pub fn is_empty(self) -> bool {
        !self.word.is_held()
    }

    pub fn holders(self) -> Holders<'p> {
        if self.word.is_bitmap() {
            let (address, width) = self.word.bitmap_parts();
            // SAFETY: by the contract of `from_word`, the word was in an entry that is protected for
            // `'p`; what it points to is not reused before `'p` ends.
            Holders::Bitmap(unsafe { bitmap_at(address, width) })
        } else {
            Holders::Inline(self.word.inline().unwrap_or(InlineSet::EMPTY))
        }
    }

    pub fn contains(self, slot: WorkerSlot) -> bool {
        match self.holders() {
            Holders::Inline(inline) => inline.contains(slot),
            Holders::Bitmap(bitmap) => bitmap::contains(bitmap, slot),
        }
    }
}

/// # Safety
/// `address` and `width` come from a set word whose bitmap stays protected for `'p`.
pub(crate) unsafe fn bitmap_at<'p>(address: usize, width: u16) -> &'p [AtomicU64] {
    let first = std::ptr::with_exposed_provenance::<AtomicU64>(address);
    // SAFETY: the caller vouches that the bitmap, `width` words of atomics, lives through `'p`.
    unsafe { std::slice::from_raw_parts(first, usize::from(width)) }
}

/// Up to four worker slots in a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct InlineSet(SetWord);

impl InlineSet {
    pub const EMPTY: Self = Self(SetWord::EMPTY);

    /// The word to store.
    pub fn word(self) -> SetWord {
        self.0
    }

    pub fn len(self) -> usize {
        (self.0.0 >> TAG_SHIFT).saturating_sub(TAG_EMPTY) as usize
    }

    /// The set of one.
    #[inline]
    pub fn one(slot: WorkerSlot) -> Self {
        Self::from_parts(1, u64::from(slot.number()))
    }

    /// The set of these slots, which must ascend.
    #[inline(always)]
    pub fn ascending<const N: usize>(slots: [WorkerSlot; N]) -> Self {
        const { assert!(N <= MAX_INLINE) };
        let mut packed = 0;
        for (place, slot) in (0..).zip(slots) {
            packed |= u64::from(slot.number()) << (SLOT_BITS * place);
        }
        Self::from_parts(N as u64, packed)
    }

    #[inline(always)]
    fn from_parts(len: u64, packed: u64) -> Self {
        Self(SetWord((len + TAG_EMPTY) << TAG_SHIFT | packed))
    }

    fn slot(self, place: usize) -> WorkerSlot {
        WorkerSlot::new((self.0.0 >> (SLOT_BITS * place as u32) & SLOT_MASK) as u16)
    }

    pub fn slots(self) -> impl Iterator<Item = WorkerSlot> + Clone {
        (0..self.len()).map(move |place| self.slot(place))
    }

    pub fn contains(self, slot: WorkerSlot) -> bool {
        self.slots().any(|held| held == slot)
    }

    /// The set with `slot`, which it does not hold yet; none if there is no room.
    pub fn with(self, slot: WorkerSlot) -> Option<Self> {
        let len = self.len();
        if len == MAX_INLINE {
            return None;
        }
        let place = self.slots().filter(|&held| held < slot).count() as u32 * SLOT_BITS;
        let below = self.0.0 & ((1 << place) - 1);
        let packed = self.0.0 & ((1 << TAG_SHIFT) - 1);
        let above = (packed >> place << place) << SLOT_BITS;
        let packed = above | u64::from(slot.number()) << place | below;
        Some(Self::from_parts(len as u64 + 1, packed))
    }

    /// The set of those slots for which `keep` is true.
    pub fn filtered(self, keep: impl Fn(WorkerSlot) -> bool) -> Self {
        Self::collected(self.slots().filter(|&slot| keep(slot)))
    }

    /// The set of these slots, at most four.
    pub fn collected(slots: impl Iterator<Item = WorkerSlot>) -> Self {
        slots.fold(Self::EMPTY, |set, slot| set.with(slot).unwrap_or(set))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn vacant_and_empty_words_hold_nobody_and_differ() {
        assert_eq!(InlineSet(SetWord::VACANT).len(), 0);
        assert_eq!(InlineSet(SetWord::EMPTY).len(), 0);
        assert_ne!(SetWord::VACANT, SetWord::EMPTY);
    }

    #[test]
    fn words_of_bitmaps_keep_width_and_address() {
        let word = SetWord::of_bitmap(0x7fff_dead_bee0, 512);
        assert_eq!(word.bitmap_parts(), (0x7fff_dead_bee0, 512));
    }

    proptest! {
        #[test]
        fn inline_sets_behave_as_sets(numbers in prop::collection::btree_set(0u16..1 << 15, 0..=4), probe in 0u16..1 << 15) {
            let slots: Vec<_> = numbers.iter().copied().map(WorkerSlot::new).collect();
            let probe = WorkerSlot::new(probe);
            let set = InlineSet::collected(slots.iter().copied().rev());
            prop_assert_eq!(set, InlineSet::collected(slots.iter().copied()));
            prop_assert_eq!(set.slots().collect::<Vec<_>>(), slots.clone());
            prop_assert_eq!(set.contains(probe), slots.contains(&probe));
            let is_odd = |slot: WorkerSlot| slot.number() % 2 == 1;
            let odd: BTreeSet<_> = slots.iter().copied().filter(|&slot| is_odd(slot)).collect();
            prop_assert_eq!(set.filtered(is_odd).slots().collect::<BTreeSet<_>>(), odd);
            prop_assert_eq!(set.with(probe).is_none(), slots.len() == 4);
        }
    }
}
