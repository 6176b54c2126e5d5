//! The first round of a search: the places to look at while only the first block is known.
//!
//! Places are numbers of blocks, 0 being the first. Most prompts match nothing, or a prefix that many prompts share. If the
//! end of such a prefix is cached ([`crate::lookup::prefix_end_cache`]), the search looks there first.

/// Distance from the first place to the end of the first gallop: most prompts match little.
pub(crate) const FIRST_REACH: usize = 7;

/// The first places where no end is cached, after `base` and up to `last`: a little deeper, and the end if no hash must be
/// chained for it. Few, since most prompts match nothing, and enough to tell a short match from a long and a whole one.
pub(crate) fn first_places(base: usize, last: usize, chained: bool) -> impl Iterator<Item = usize> {
    let near = last.min(base + FIRST_REACH);
    let end = (!chained && last > near).then_some(last);
    (near > base).then_some(near).into_iter().chain(end)
}

/// The first places where a shared prefix of `blocks` blocks is cached: its last block, the block after it, and a little
/// deeper.
pub(crate) fn places_around_end(
    base: usize,
    last: usize,
    blocks: usize,
) -> impl Iterator<Item = usize> {
    let mut before = base;
    let places = [blocks - 1, blocks, blocks + FIRST_REACH];
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
            base in 0usize..100, span in 0usize..3000, chained: bool,
        ) {
            let last = base + span;
            let places: Vec<_> = first_places(base, last, chained).collect();
            prop_assert!(places.len() <= 2);
            prop_assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(places.iter().all(|&place| place > base && place <= last));
            if span > 0 && (!chained || span <= 7) {
                prop_assert_eq!(places.last(), Some(&last));
            }
        }

        #[test]
        fn places_around_the_end_of_a_prefix_ascend_within_the_prompt(
            base in 0usize..100, span in 0usize..100, blocks in 1usize..200,
        ) {
            let last = base + span;
            let places: Vec<_> = places_around_end(base, last, blocks).collect();
            prop_assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(places.iter().all(|&place| place > base && place <= last));
            for place in [blocks - 1, blocks] {
                prop_assert_eq!(places.contains(&place), place > base && place <= last);
            }
        }
    }
}
