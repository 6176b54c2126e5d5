//! A compact set: what an entry keeps of its set word in half the bits, or else where the word is.
//!
//! ```text
//!  31 30 29                                                    0
//! ┌─────┬─────────────────────────────────────────────────────┐
//! │ 0   │ 0: vacant, no key was ever written to this entry    │
//! │ 0   │ epoch (30 bit, not 0): tombstone, nobody holds it   │
//! │ 1   │ slot 1 (15 bit)          │ slot 0 (15 bit)          │  one worker slot (twice the same) or two, ascending
//! │ 2   │ slot 2 (10 b)  │ slot 1 (10 b)  │ slot 0 (10 b)     │  three below 1,024, ascending
//! │ 3   │ number of a spilled set word (30 bit)               │  any other set, see `spilled_sets`
//! └─────┴─────────────────────────────────────────────────────┘
//! ```
//!
//! Nearly every block has one holder or two, so half a word is enough for it, and five entries of 12 bytes fit a cache line
//! where four of 16 did. Equal sets have equal compact sets unless they are spilled. The epoch of a tombstone is that from
//! which on no reader can still see the set that was emptied, so that the entry may take another key.

use crate::table::set_word::{InlineSet, SetWord};
use crate::types::WorkerSlot;

const KIND_SHIFT: u32 = 30;
const PAYLOAD: u32 = (1 << KIND_SHIFT) - 1;
const UP_TO_TWO: u32 = 1;
const THREE: u32 = 2;
const SPILLED: u32 = 3;
/// The smallest value that has a holder.
const FIRST_HELD: u32 = UP_TO_TWO << KIND_SHIFT;
/// Bits of a slot in a set of three.
const NARROW_SLOT: u32 = 10;

/// The set of an entry in 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct CompactSet(u32);

impl CompactSet {
    /// An entry that has never had a key.
    pub const VACANT: Self = Self(0);

    #[inline(always)]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    #[inline(always)]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The set of one.
    #[inline(always)]
    pub fn one(slot: WorkerSlot) -> Self {
        Self::two(slot, slot)
    }

    #[inline(always)]
    fn two(first: WorkerSlot, second: WorkerSlot) -> Self {
        let (first, second) = (u32::from(first.number()), u32::from(second.number()));
        Self(FIRST_HELD | second << WorkerSlot::BITS | first)
    }

    /// An entry whose block nobody holds any more, and whose key may be replaced from `epoch` on.
    #[inline(always)]
    pub fn tombstone(epoch: u64) -> Self {
        // Where that would be 0, which means vacant: an epoch later.
        Self((epoch as u32 & PAYLOAD).max(1))
    }

    /// A set whose word is spilled, and has this number.
    pub fn spilled(number: u32) -> Self {
        Self(SPILLED << KIND_SHIFT | number)
    }

    /// Whether the entry may take a new key in epoch `now`.
    ///
    /// Epochs of 30 bits come round. A tombstone that is older than half of their range looks as if it were new: it only
    /// has to wait.
    #[inline(always)]
    pub fn takes_key(self, now: u64) -> bool {
        let age = (now as u32).wrapping_sub(self.0) & PAYLOAD;
        (self.0 < FIRST_HELD) & ((self == Self::VACANT) | (age <= PAYLOAD / 2))
    }

    /// Whether somebody holds the block.
    #[inline(always)]
    pub fn is_held(self) -> bool {
        self.0 >= FIRST_HELD
    }

    /// The number of the spilled set word, if there is one.
    #[inline(always)]
    pub fn spilled_number(self) -> Option<u32> {
        (self.0 >> KIND_SHIFT == SPILLED).then_some(self.0 & PAYLOAD)
    }

    /// The compact form of a set that has holders; none if it must be spilled.
    pub fn of_word(word: SetWord) -> Option<Self> {
        let mut slots = word.inline()?.slots();
        match (slots.next(), slots.next(), slots.next(), slots.next()) {
            (Some(only), None, ..) => Some(Self::one(only)),
            (Some(first), Some(second), None, _) => Some(Self::two(first, second)),
            (Some(first), Some(second), Some(third), None) if third.number() < 1 << NARROW_SLOT => {
                let slots = [third, second, first].into_iter();
                Some(Self(slots.fold(THREE, |set, slot| {
                    set << NARROW_SLOT | u32::from(slot.number())
                })))
            }
            _ => None,
        }
    }

    /// The set word, of a set that is not spilled.
    #[inline(always)]
    pub fn word(self) -> SetWord {
        let slot = |place: u32, bits: u32| {
            WorkerSlot::new((self.0 >> (place * bits) & ((1 << bits) - 1)) as u16)
        };
        if self.0 >> KIND_SHIFT == THREE {
            let slots = [0, 1, 2].map(|place| slot(place, NARROW_SLOT));
            return InlineSet::ascending(slots).word();
        }
        if self.is_held() {
            let (first, second) = (slot(0, WorkerSlot::BITS), slot(1, WorkerSlot::BITS));
            return if first == second {
                InlineSet::one(first).word()
            } else {
                InlineSet::ascending([first, second]).word()
            };
        }
        if self == Self::VACANT {
            SetWord::VACANT
        } else {
            SetWord::EMPTY
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_tombstone_takes_another_key_once_its_epoch_has_come_also_where_epochs_come_round() {
        for start in [1, 5, u64::from(PAYLOAD) - 2, u64::from(PAYLOAD), 3 << 40] {
            let safe_from = start + 3;
            let tombstone = CompactSet::tombstone(safe_from);
            assert!(!tombstone.is_held() && tombstone != CompactSet::VACANT);
            for now in start..safe_from {
                assert!(!tombstone.takes_key(now), "{safe_from} in {now}");
            }
            // One epoch later where the number means vacant.
            for now in safe_from + 1..safe_from + 1000 {
                assert!(tombstone.takes_key(now), "{safe_from} in {now}");
            }
        }
        assert!((0..70).all(|shift| CompactSet::VACANT.takes_key(1u64.rotate_left(shift))));
        assert!(!CompactSet::one(WorkerSlot::new(0)).takes_key(u64::MAX));
        assert!(!CompactSet::spilled(0).takes_key(u64::MAX));
    }

    proptest! {
        #[test]
        fn a_compact_set_says_what_the_set_word_does(numbers in prop::collection::btree_set(prop_oneof![0u16..1100, 0u16..1 << 15], 1..=4)) {
            let word = InlineSet::collected(numbers.iter().copied().map(WorkerSlot::new)).word();
            let largest = numbers.last().copied().unwrap_or(0);
            let fits = numbers.len() < 3 || numbers.len() == 3 && largest < 1024;
            match CompactSet::of_word(word) {
                Some(set) => {
                    prop_assert!(fits && set.is_held() && set.spilled_number().is_none());
                    prop_assert_eq!(set.word(), word);
                }
                None => prop_assert!(!fits),
            }
        }

        #[test]
        fn a_spilled_set_keeps_its_number(number in 0u32..=PAYLOAD) {
            let set = CompactSet::spilled(number);
            prop_assert_eq!(set.spilled_number(), Some(number));
            prop_assert!(set.is_held());
        }
    }
}
