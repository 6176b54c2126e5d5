//! Pieces are zero and apart, and idle memory goes back, whatever the order of allocating and freeing.
//!
//! `unsafe` here: pieces as slices, and freeing them. Sound because each is the test's own, with the size that it was
//! allocated for, until the test frees it once; the tests themselves check that.

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
    fn pieces_are_zero_and_apart_and_all_memory_goes_back(
        fills in any::<bool>(),
        steps in prop::collection::vec((1usize..3_000_000, any::<u8>(), any::<prop::sample::Index>()), 1..60)
    ) {
        let pages = if fills { PageHeap::hole_filling() } else { PageHeap::default() };
        let mut owned: Vec<Owned> = Vec::new();
        for (bytes, fill, which) in steps {
            if fill % 3 == 0 && !owned.is_empty() {
                let piece = owned.swap_remove(which.index(owned.len()));
                prop_assert!(bytes_of(&piece).iter().all(|&byte| byte == piece.2));
                // SAFETY: allocated for that size, and used no more.
                unsafe { pages.free(piece.0, piece.1) };
            } else {
                let as_is = fill % 3 == 1;
                let first = if as_is { pages.allocate_uninitialized(bytes) } else { pages.allocate(bytes) }.unwrap();
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
            // SAFETY: allocated for that size, and used no more.
            unsafe { pages.free(piece.0, piece.1) };
        }
        let heap = pages.heap.lock();
        prop_assert!(heap.regions.is_empty() && heap.holes.is_empty() && heap.holes_by_size.is_empty());
        prop_assert_eq!((heap.mapped_bytes, heap.used_bytes, heap.resident_pages), (0, 0, 0));
    }
}

#[test]
fn kept_pages_stay_and_serve_pieces_before_the_system_is_asked() {
    let pages = PageHeap::default();
    assert!(pages.keep(20 * PAGE));
    assert_eq!(pages.idle_bytes(), 20 * PAGE);
    let pieces: Vec<_> = (0..40).map(|_| pages.allocate(PAGE / 2).unwrap()).collect();
    assert_eq!(pages.idle_bytes(), 0);
    let more = pages.allocate(PAGE).unwrap();
    for first in pieces {
        // SAFETY: allocated for that size, and used no more.
        unsafe { pages.free(first, PAGE / 2) };
    }
    // SAFETY: as above.
    unsafe { pages.free(more, PAGE) };
    let idle = pages.idle_bytes();
    assert!((20 * PAGE..=22 * PAGE).contains(&idle), "{idle} idle");
    let again = pages.allocate(PAGE).unwrap();
    assert_eq!(pages.idle_bytes(), idle - PAGE);
    // SAFETY: the piece is the test's, and has that size.
    let zeroed = unsafe { std::slice::from_raw_parts(again.as_ptr(), PAGE) };
    assert!(zeroed.iter().all(|&byte| byte == 0));
    // SAFETY: as above.
    unsafe { pages.free(again, PAGE) };
}

#[test]
fn idle_pages_go_back_while_others_of_their_region_stay() {
    let pages = PageHeap::default();
    let all: Vec<_> = (0..64).map(|_| pages.allocate(PAGE).unwrap()).collect();
    let stays = pages.allocate(PAGE).unwrap();
    for first in all {
        // SAFETY: allocated for that size, and used no more.
        unsafe { pages.free(first, PAGE) };
    }
    assert!(
        pages.idle_bytes() <= 3 * PAGE,
        "{} idle",
        pages.idle_bytes()
    );
    // SAFETY: as above.
    unsafe { pages.free(stays, PAGE) };
    assert_eq!(pages.idle_bytes(), 0);
}

#[test]
fn holes_are_filled_at_once_where_that_is_asked_for() {
    for fills in [true, false] {
        let pages = if fills {
            PageHeap::hole_filling()
        } else {
            PageHeap::default()
        };
        let [first, hole, last] = [(); 3].map(|()| pages.allocate(PAGE / 8).unwrap());
        // SAFETY: allocated for that size, and used no more.
        unsafe { pages.free(hole, PAGE / 8) };
        let next = pages.allocate_uninitialized(PAGE / 8).unwrap();
        assert_eq!(next == hole, fills);
        for piece in [first, next, last] {
            // SAFETY: as above.
            unsafe { pages.free(piece, PAGE / 8) };
        }
        assert_eq!(pages.idle_bytes(), 0);
    }
}

#[test]
fn more_than_there_is_is_refused_and_changes_nothing() {
    let pages = PageHeap::default();
    let piece = pages.allocate(PAGE / 4).unwrap();
    for bytes in [1 << 50, 1 << 62, usize::MAX - PAGE, usize::MAX] {
        assert_eq!(pages.allocate(bytes), None);
        assert!(!pages.keep(bytes));
    }
    assert_eq!(pages.used_bytes(), PAGE / 4);
    // SAFETY: allocated for that size, and used no more.
    unsafe { pages.free(piece, PAGE / 4) };
    assert_eq!(pages.idle_bytes(), 0);
}

#[test]
fn a_piece_that_no_memory_holds_is_refused_whatever_hole_there_is() {
    let pages = PageHeap::default();
    assert!(pages.keep(20 * PAGE)); // one long hole
    // Four times as much is zero in a machine word, or nearly.
    for bytes in [
        1 << 62,
        (1 << 62) + PAGE,
        (1 << 63) + PAGE,
        isize::MAX as usize,
    ] {
        assert_eq!(
            pages.allocate_uninitialized(bytes),
            None,
            "{bytes:#x} bytes"
        );
    }
    assert_eq!((pages.used_bytes(), pages.idle_bytes()), (0, 20 * PAGE));
}
