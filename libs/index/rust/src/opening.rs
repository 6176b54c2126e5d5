//! The first round of a look-up: where to look while nothing is known but the first block's hash.
//!
//! Most prompts match nothing, or no more than a head that many prompts share. Heads end where they ended for the prompt
//! before: at the end of a system prompt. So the end is remembered by the head's first block, and looked at first; if the
//! sets there are what they are at the beginning, the head needs no other look. What is remembered may be wrong
//! by now, or of another head with the same beginning: it says only where to look.

/// So far after the first place the first gallop ends: most prompts match little.
pub(crate) const FIRST_REACH: usize = 7;
/// Heads remembered.
const HEADS: usize = 64;

/// Where heads ended that many held: as a number of blocks, with the hash of the first.
pub(crate) struct Heads([(u64, u32); HEADS]);

impl Default for Heads {
    fn default() -> Self {
        Self([(0, 0); HEADS])
    }
}

impl Heads {
    /// How many blocks the head had that begins with this one.
    pub fn end(&self, first: u64) -> Option<usize> {
        let (hash, end) = self.0[first as usize % HEADS];
        (hash == first && end > 0).then_some(end as usize)
    }

    /// Remembers it, in place of another one.
    pub fn remember(&mut self, first: u64, end: u32) {
        self.0[first as usize % HEADS] = (first, end);
    }
}

/// The first places where nothing is remembered, after `base` and up to `last`: a little deeper, and the end if no hash
/// must be chained for it. Few, since most prompts match nothing, and enough to tell whether the match is short, long or whole.
pub(crate) fn first_places(base: usize, last: usize, lazy: bool) -> impl Iterator<Item = usize> {
    let near = last.min(base + FIRST_REACH);
    let end = (!lazy && last > near).then_some(last);
    (near > base).then_some(near).into_iter().chain(end)
}

/// The first places where a head is remembered that has `end` blocks: its last block, the one after it, and a little deeper.
pub(crate) fn places_around(base: usize, last: usize, end: usize) -> impl Iterator<Item = usize> {
    let mut before = base;
    let places = [end - 1, end, end + FIRST_REACH];
    places.into_iter().filter_map(move |place| {
        let place = place.min(last);
        let is_new = place > before;
        before = before.max(place);
        is_new.then_some(place)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_places_ascend_from_the_base_and_reach_the_end_if_nothing_is_chained(
            base in 0usize..100, span in 0usize..3000, lazy: bool,
        ) {
            let last = base + span;
            let places: Vec<_> = first_places(base, last, lazy).collect();
            prop_assert!(places.len() <= 2);
            prop_assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(places.iter().all(|&place| place > base && place <= last));
            if span > 0 && (!lazy || span <= 7) {
                prop_assert_eq!(places.last(), Some(&last));
            }
        }

        #[test]
        fn places_around_a_head_s_end_ascend_within_the_prompt(
            base in 0usize..100, span in 0usize..100, end in 1usize..200,
        ) {
            let last = base + span;
            let places: Vec<_> = places_around(base, last, end).collect();
            prop_assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(places.iter().all(|&place| place > base && place <= last));
            for place in [end - 1, end] {
                prop_assert_eq!(places.contains(&place), place > base && place <= last);
            }
        }
    }

    #[test]
    fn a_head_is_remembered_until_another_takes_its_place() {
        let mut heads = Heads::default();
        assert_eq!((heads.end(0), heads.end(5)), (None, None));
        heads.remember(5, 32);
        assert_eq!(
            (heads.end(5), heads.end(5 + HEADS as u64)),
            (Some(32), None)
        );
        heads.remember(5 + HEADS as u64, 4);
        assert_eq!((heads.end(5), heads.end(5 + HEADS as u64)), (None, Some(4)));
    }
}
