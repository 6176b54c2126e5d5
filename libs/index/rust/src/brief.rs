//! What a table slot keeps of its set word: the same in half a word, or else which cell keeps it.
//!
//! ```text
//!  31 30 29                                                    0
//! ┌─────┬─────────────────────────────────────────────────────┐
//! │ 0   │ 0: vacant, no key was ever written to this slot     │
//! │ 0   │ epoch (30 bit, not 0): empty, nobody holds the key  │
//! │ 1   │ id 1 (15 bit)            │ id 0 (15 bit)            │  one worker (twice the same id) or two, ascending
//! │ 2   │ id 2 (10 bit)  │ id 1 (10 bit)  │ id 0 (10 bit)     │  three whose ids are below 1,024, ascending
//! │ 3   │ number of a cell, see `cells`                       │  any other set
//! └─────┴─────────────────────────────────────────────────────┘
//! ```
//!
//! Nearly every block has one holder or two, so half a word a slot is enough, and five slots fit a cache line where four
//! did. Equal sets have equal briefs unless they are in cells. The epoch in an empty one is that from which on no reader can
//! still see the set that was emptied, so that the slot may be given another key.

use crate::set::{Few, VACANT as VACANT_WORD};

/// Of a slot that has never had a key.
pub(crate) const VACANT: u32 = 0;

const KIND_SHIFT: u32 = 30;
const REST: u32 = (1 << KIND_SHIFT) - 1;
const UP_TO_TWO: u32 = 1;
const THREE: u32 = 2;
const CELL: u32 = 3;
/// The smallest one that has a holder.
const FIRST_HELD: u32 = UP_TO_TWO << KIND_SHIFT;
/// Bits of an id in a set of up to two, and of three.
const WIDE_ID: u32 = 15;
const NARROW_ID: u32 = 10;

/// Of the set of one.
#[inline(always)]
pub(crate) fn one(slot: u16) -> u32 {
    two(slot, slot)
}

#[inline(always)]
fn two(first: u16, second: u16) -> u32 {
    FIRST_HELD | u32::from(second) << WIDE_ID | u32::from(first)
}

/// Of a slot that nobody holds any more, whose key may be replaced from `epoch` on.
#[inline(always)]
pub(crate) fn emptied(epoch: u64) -> u32 {
    // Where that would be 0, which is taken: an epoch later.
    (epoch as u32 & REST).max(1)
}

/// Whether a slot may be given a new key in epoch `now`.
///
/// Epochs of 30 bits come round. A slot that was emptied half of their number ago, or longer, is taken for one that was
/// emptied lately: it only has to wait.
#[inline(always)]
pub(crate) fn takes_key(brief: u32, now: u64) -> bool {
    let ago = (now as u32).wrapping_sub(brief) & REST;
    (brief < FIRST_HELD) & ((brief == VACANT) | (ago <= REST / 2))
}

/// Whether somebody holds the block of a slot.
#[inline(always)]
pub(crate) fn is_held(brief: u32) -> bool {
    brief >= FIRST_HELD
}

/// Of a set whose word is in a cell.
pub(crate) fn in_cell(cell: u32) -> u32 {
    CELL << KIND_SHIFT | cell
}

/// Which cell has the set word, if one does.
#[inline(always)]
pub(crate) fn cell(brief: u32) -> Option<u32> {
    (brief >> KIND_SHIFT == CELL).then_some(brief & REST)
}

/// What says the same as the word of a set with holders, if anything does.
pub(crate) fn of_word(word: u64) -> Option<u32> {
    let few = Few::of_word(word)?;
    let mut ids = few.ids();
    match (ids.next(), ids.next(), ids.next(), ids.next()) {
        (Some(only), None, ..) => Some(one(only)),
        (Some(first), Some(second), None, _) => Some(two(first, second)),
        (Some(first), Some(second), Some(third), None) if third < 1 << NARROW_ID => {
            let ids = [third, second, first].into_iter();
            Some(ids.fold(THREE, |brief, id| brief << NARROW_ID | u32::from(id)))
        }
        _ => None,
    }
}

/// The set word that a brief stands for; to be asked where no cell has it.
#[inline(always)]
pub(crate) fn word(brief: u32) -> u64 {
    let id = |place: u32, bits: u32| (brief >> (place * bits) & ((1 << bits) - 1)) as u16;
    if brief >> KIND_SHIFT == THREE {
        let ids = [0, 1, 2].map(|place| id(place, NARROW_ID));
        return Few::ascending(ids).word();
    }
    if is_held(brief) {
        let (first, second) = (id(0, WIDE_ID), id(1, WIDE_ID));
        return if first == second {
            Few::one(first).word()
        } else {
            Few::ascending([first, second]).word()
        };
    }
    if brief == VACANT {
        VACANT_WORD
    } else {
        Few::EMPTY.word()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_slot_takes_another_key_once_its_epoch_has_come_also_where_epochs_come_round() {
        for start in [1, 5, u64::from(REST) - 2, u64::from(REST), 3 << 40] {
            let passes = start + 3;
            let brief = emptied(passes);
            assert!(!is_held(brief) && brief != VACANT);
            for now in start..passes {
                assert!(!takes_key(brief, now), "{passes} in {now}");
            }
            // One epoch later where the number is taken.
            for now in passes + 1..passes + 1000 {
                assert!(takes_key(brief, now), "{passes} in {now}");
            }
        }
        assert!((0..70).all(|shift| takes_key(VACANT, 1u64.rotate_left(shift))));
        assert!(!takes_key(one(0), u64::MAX) && !takes_key(in_cell(0), u64::MAX));
    }

    proptest! {
        #[test]
        fn a_brief_says_what_the_set_word_does(ids in prop::collection::btree_set(prop_oneof![0u16..1100, 0u16..1 << 15], 1..=4)) {
            let few = ids.iter().fold(Few::EMPTY, |few, &id| few.with(id).unwrap());
            let largest = ids.last().copied().unwrap_or(0);
            let fits = ids.len() < 3 || ids.len() == 3 && largest < 1024;
            match of_word(few.word()) {
                Some(brief) => {
                    prop_assert!(fits && is_held(brief) && cell(brief).is_none());
                    prop_assert_eq!(word(brief), few.word());
                }
                None => prop_assert!(!fits),
            }
        }

        #[test]
        fn a_cell_keeps_its_number(number in 0u32..=REST) {
            prop_assert_eq!(cell(in_cell(number)), Some(number));
            prop_assert!(is_held(in_cell(number)));
        }
    }
}
