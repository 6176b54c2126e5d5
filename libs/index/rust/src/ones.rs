//! From bits to numbers: the places of a word's ones, eight bits at a time and without a branch on any.

/// Of every byte, the places of its ones, ascending; the rest is filler.
static PLACES: [[u8; 8]; 256] = places();

const fn places() -> [[u8; 8]; 256] {
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

/// Appends the numbers of all ones, bit `b` of the word at `place` being `64 * place + b`. `size` says how many
/// there are in all.
pub(crate) fn append(words: impl Iterator<Item = (u16, u64)>, size: usize, out: &mut Vec<u16>) {
    let mut at = out.len();
    let end = at + size;
    // Room for the filler behind the last byte's ones.
    out.resize(end + 8, 0);
    for (place, word) in words {
        for (byte, first) in word
            .to_le_bytes()
            .into_iter()
            .zip((place * 64..).step_by(8))
        {
            let places = &PLACES[usize::from(byte)];
            for (out, &place) in out[at..at + 8].iter_mut().zip(places) {
                *out = first + u16::from(place);
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
        fn numbers_are_those_of_the_ones_in_order(
            words in prop::collection::vec(prop_oneof![any::<u64>(), Just(0), Just(u64::MAX)], 0..12),
            before in prop::collection::vec(any::<u16>(), 0..3),
        ) {
            let size = words.iter().map(|word| word.count_ones() as usize).sum();
            let mut out = before.clone();
            append((500..).zip(words.iter().copied()), size, &mut out);
            let expected = (500 * 64..).zip(words.iter().flat_map(|word| (0..64).map(move |bit| word >> bit & 1)));
            let expected = expected.filter(|&(_, one)| one == 1).map(|(number, _)| number);
            prop_assert_eq!(out, before.into_iter().chain(expected).collect::<Vec<u16>>());
        }
    }
}
