//! Pieces are zero and apart, and idle memory goes back, whatever the order of taking and giving.
//!
//! `unsafe` here: pieces as slices, and giving them back. Sound because each is the test's own, with the size that it was
//! taken for, until it gives it back once; the tests themselves check that.

use super::*;
use proptest::prelude::*;

/// A piece, and the byte it is filled with.
type Owned = (NonNull<u8>, usize, u8);

fn bytes_of(piece: &Owned) -> &[u8] {
    // SAFETY: the piece is owned by the test and has that size.
    unsafe { std::slice::from_raw_parts(piece.0.as_ptr(), piece.1) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn pieces_are_zero_and_apart_and_all_is_given_back(
        fills in any::<bool>(),
        steps in prop::collection::vec((1usize..3_000_000, any::<u8>(), any::<prop::sample::Index>()), 1..60)
    ) {
        let pages = if fills { Pages::filling() } else { Pages::default() };
        let mut owned: Vec<Owned> = Vec::new();
        for (bytes, fill, which) in steps {
            if fill % 3 == 0 && !owned.is_empty() {
                let piece = owned.swap_remove(which.index(owned.len()));
                prop_assert!(bytes_of(&piece).iter().all(|&byte| byte == piece.2));
                // SAFETY: taken for that size, and used no more.
                unsafe { pages.give(piece.0, piece.1) };
            } else {
                let as_is = fill % 3 == 1;
                let first = if as_is { pages.take_as_is(bytes) } else { pages.take(bytes) }.unwrap();
                let piece = (first, bytes, fill);
                prop_assert_eq!(first.as_ptr() as usize % 64, 0);
                prop_assert!(as_is || bytes_of(&piece).iter().all(|&byte| byte == 0));
                // SAFETY: within the piece, which the test owns.
                unsafe { first.write_bytes(fill, bytes) };
                owned.push(piece);
            }
        }
        for piece in owned {
            prop_assert!(bytes_of(&piece).iter().all(|&byte| byte == piece.2));
            // SAFETY: taken for that size, and used no more.
            unsafe { pages.give(piece.0, piece.1) };
        }
        let heap = pages.heap.lock();
        prop_assert!(heap.regions.is_empty() && heap.free.is_empty() && heap.by_size.is_empty());
        prop_assert_eq!((heap.mapped_bytes, heap.used_bytes, heap.taken_pages), (0, 0, 0));
    }
}

#[test]
fn kept_pages_stay_and_serve_pieces_before_the_system_is_asked() {
    let pages = Pages::default();
    assert!(pages.keep(20 * PAGE));
    assert_eq!(pages.idle_bytes(), 20 * PAGE);
    let pieces: Vec<_> = (0..40).map(|_| pages.take(PAGE / 2).unwrap()).collect();
    assert_eq!(pages.idle_bytes(), 0);
    let more = pages.take(PAGE).unwrap();
    for first in pieces {
        // SAFETY: taken for that size, and used no more.
        unsafe { pages.give(first, PAGE / 2) };
    }
    // SAFETY: as above.
    unsafe { pages.give(more, PAGE) };
    let idle = pages.idle_bytes();
    assert!((20 * PAGE..=22 * PAGE).contains(&idle), "{idle} idle");
    let again = pages.take(PAGE).unwrap();
    assert_eq!(pages.idle_bytes(), idle - PAGE);
    // SAFETY: the piece is the test's, and has that size.
    let zeroed = unsafe { std::slice::from_raw_parts(again.as_ptr(), PAGE) };
    assert!(zeroed.iter().all(|&byte| byte == 0));
    // SAFETY: as above.
    unsafe { pages.give(again, PAGE) };
}

#[test]
fn idle_pages_go_back_while_others_of_their_region_stay() {
    let pages = Pages::default();
    let all: Vec<_> = (0..64).map(|_| pages.take(PAGE).unwrap()).collect();
    let stays = pages.take(PAGE).unwrap();
    for first in all {
        // SAFETY: taken for that size, and used no more.
        unsafe { pages.give(first, PAGE) };
    }
    assert!(
        pages.idle_bytes() <= 3 * PAGE,
        "{} idle",
        pages.idle_bytes()
    );
    // SAFETY: as above.
    unsafe { pages.give(stays, PAGE) };
    assert_eq!(pages.idle_bytes(), 0);
}

#[test]
fn holes_are_filled_at_once_where_that_is_asked_for() {
    for fills in [true, false] {
        let pages = if fills {
            Pages::filling()
        } else {
            Pages::default()
        };
        let [first, hole, last] = [(); 3].map(|()| pages.take(PAGE / 8).unwrap());
        // SAFETY: taken for that size, and used no more.
        unsafe { pages.give(hole, PAGE / 8) };
        let next = pages.take_as_is(PAGE / 8).unwrap();
        assert_eq!(next == hole, fills);
        for piece in [first, next, last] {
            // SAFETY: as above.
            unsafe { pages.give(piece, PAGE / 8) };
        }
        assert_eq!(pages.idle_bytes(), 0);
    }
}

#[test]
fn more_than_there_is_is_refused_and_changes_nothing() {
    let pages = Pages::default();
    let piece = pages.take(PAGE / 4).unwrap();
    for bytes in [1 << 50, 1 << 62, usize::MAX - PAGE, usize::MAX] {
        assert_eq!(pages.take(bytes), None);
        assert!(!pages.keep(bytes));
    }
    assert_eq!(pages.used_bytes(), PAGE / 4);
    // SAFETY: taken for that size, and used no more.
    unsafe { pages.give(piece, PAGE / 4) };
    assert_eq!(pages.idle_bytes(), 0);
}

#[test]
fn a_piece_that_no_memory_holds_is_refused_whatever_hole_there_is() {
    let pages = Pages::default();
    assert!(pages.keep(20 * PAGE)); // one long hole
    // Four times as much is zero in a machine word, or nearly.
    for bytes in [
        1 << 62,
        (1 << 62) + PAGE,
        (1 << 63) + PAGE,
        isize::MAX as usize,
    ] {
        assert_eq!(pages.take_as_is(bytes), None, "{bytes:#x} bytes");
    }
    assert_eq!((pages.used_bytes(), pages.idle_bytes()), (0, 20 * PAGE));
}
