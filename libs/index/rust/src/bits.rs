//! Bits of words: the numbers of those that are set.
//!
//! Sets of worker slots, and of ranks in the order of answers, are bitmaps: number `n` is bit `n % 64` of word `n / 64`.

use crate::types::WorkerSlot;

/// Whether a slot's bit is set; false if there is no such bit.
#[inline]
pub(crate) fn contains(words: &[u64], slot: WorkerSlot) -> bool {
    words
        .get(slot.word())
        .is_some_and(|word| word & slot.bit() != 0)
}

/// Sets a slot's bit; the words grow if they are too few.
pub(crate) fn insert(words: &mut Vec<u64>, slot: WorkerSlot) {
    if words.len() <= slot.word() {
        words.resize(slot.word() + 1, 0);
    }
    words[slot.word()] |= slot.bit();
}

/// The slots whose bits are set in `word`, which is word number `place` of its bitmap; ascending.
#[inline]
pub(crate) fn slots_of_word(place: u16, word: u64) -> impl Iterator<Item = WorkerSlot> + Clone {
    SetBits(word).map(move |bit| WorkerSlot::new(place * 64 + bit))
}

/// The numbers of the set bits of a word, ascending.
#[derive(Clone)]
pub(crate) struct SetBits(pub u64);

impl Iterator for SetBits {
    type Item = u16;

    #[inline]
    fn next(&mut self) -> Option<u16> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as u16;
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

/// The numbers of the set bits of every byte, ascending; the rest is filler.
static BITS_OF_BYTE: [[u8; 8]; 256] = bits_of_byte();

const fn bits_of_byte() -> [[u8; 8]; 256] {
    let mut all = [[0; 8]; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut bit, mut count) = (0, 0);
        while bit < 8 {
            if byte >> bit & 1 == 1 {
                all[byte][count] = bit as u8;
                count += 1;
            }
            bit += 1;
        }
        byte += 1;
    }
    all
}

/// Appends the slots of many words, each with its place in the bitmap. `size` is the number of set bits in all. Eight bits
/// are unpacked at a time, without a branch on any of them.
pub(crate) fn append_slots(
    words: impl Iterator<Item = (u16, u64)>,
    size: usize,
    out: &mut Vec<WorkerSlot>,
) {
    let mut at = out.len();
    let end = at + size;
    // Room for the filler behind the last byte's bits.
    out.resize(end + 8, WorkerSlot::default());
    for (place, word) in words {
        for (byte, first) in word
            .to_le_bytes()
            .into_iter()
            .zip((place * 64..).step_by(8))
        {
            let bits = &BITS_OF_BYTE[usize::from(byte)];
            for (out, &bit) in out[at..at + 8].iter_mut().zip(bits) {
                *out = WorkerSlot::new(first + u16::from(bit));
            }
            at += byte.count_ones() as usize;
        }
    }
    debug_assert_eq!(at, end);
    out.truncate(end);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slots_are_those_of_the_set_bits_in_order(
            words in prop::collection::vec(prop_oneof![any::<u64>(), Just(0), Just(u64::MAX)], 0..12),
            before in prop::collection::vec(any::<u16>().prop_map(WorkerSlot::new), 0..3),
        ) {
            let size = words.iter().map(|word| word.count_ones() as usize).sum();
            let mut out = before.clone();
            append_slots((500..).zip(words.iter().copied()), size, &mut out);
            let expected = (500 * 64..).zip(words.iter().flat_map(|word| (0..64).map(move |bit| word >> bit & 1)));
            let expected = expected.filter(|&(_, bit)| bit == 1).map(|(number, _)| WorkerSlot::new(number));
            prop_assert_eq!(out, before.into_iter().chain(expected).collect::<Vec<_>>());
        }
    }
}
