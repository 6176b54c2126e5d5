//! The allocator against a model: a piece keeps its contents, pieces are apart, and nothing is left in the end.
//!
//! `unsafe` here: pieces as slices, and the allocator's calls. Sound because each piece is the test's own, with the layout
//! that it last had, until the test frees it once; the tests themselves check that.

use std::thread;

use allocator_api2::vec::Vec as VecIn;
use proptest::prelude::*;

use super::*;
use crate::{PAGE, SMALL_PAGE};

/// A piece, and the byte that it is filled with.
struct Owned {
    first: NonNull<u8>,
    layout: Layout,
    fill: u8,
}

impl Owned {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the piece is owned by the test and has that size.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.layout.size()) }
    }

    fn is_intact(&self) -> bool {
        self.bytes().iter().all(|&byte| byte == self.fill)
    }

    /// A piece just given: it must be aligned, of the whole size, and hold `kept` bytes of `fill`, then zeros if it was
    /// asked to.
    fn given(whole: NonNull<[u8]>, layout: Layout, kept: usize, zeroed: bool, fill: u8) -> Self {
        let first = whole.cast::<u8>();
        let owned = Self {
            first,
            layout,
            fill,
        };
        assert_eq!(first.as_ptr() as usize % layout.align(), 0);
        assert_eq!(whole.len(), layout.size());
        assert!(owned.bytes()[..kept].iter().all(|&byte| byte == fill));
        assert!(!zeroed || owned.bytes()[kept..].iter().all(|&byte| byte == 0));
        // SAFETY: within the piece, which the test owns.
        unsafe { first.write_bytes(fill, layout.size()) };
        owned
    }
}

/// Layouts small and large, up to some pages of the system's; most on either side of where large begins.
fn layouts() -> impl Strategy<Value = Layout> {
    let bytes = prop_oneof![
        0..300_usize,
        LARGE_BYTES - 300..LARGE_BYTES + 300,
        LARGE_BYTES..30 * LARGE_BYTES,
        PAGE - 300..2 * PAGE,
    ];
    (bytes, 0..13_u32)
        .prop_map(|(bytes, align)| Layout::from_size_align(bytes, 1 << align).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn pieces_keep_what_they_hold_through_growing_and_shrinking_and_nothing_is_left(
        general in prop::bool::weighted(0.1),
        steps in prop::collection::vec(
            (0..5_u8, layouts(), any::<bool>(), any::<prop::sample::Index>()), 1..80
        )
    ) {
        let memory = if general { Memory::general() } else { Memory::on_large_pages().0 };
        let mut owned: Vec<Owned> = Vec::new();
        for (fill, (what, layout, zeroed, which)) in (1..).zip(steps) {
            if what < 2 || owned.is_empty() {
                let whole = if zeroed { memory.allocate_zeroed(layout) } else { memory.allocate(layout) };
                owned.push(Owned::given(whole.unwrap(), layout, 0, zeroed, fill));
                continue;
            }
            let old = owned.swap_remove(which.index(owned.len()));
            prop_assert!(old.is_intact());
            if what == 2 {
                // SAFETY: given with that layout, and used no more.
                unsafe { memory.deallocate(old.first, old.layout) };
                continue;
            }
            let kept = old.layout.size().min(layout.size());
            let grows = layout.size() >= old.layout.size();
            // SAFETY: as above, and the new size is on the side that the call asks for.
            let whole = unsafe {
                match (grows, zeroed) {
                    (true, false) => memory.clone().grow(old.first, old.layout, layout),
                    (true, true) => memory.clone().grow_zeroed(old.first, old.layout, layout),
                    (false, _) => memory.clone().shrink(old.first, old.layout, layout),
                }
            };
            owned.push(Owned::given(whole.unwrap(), layout, kept, zeroed && grows, old.fill));
        }
        let rounded = |piece: &Owned| piece.layout.size().next_multiple_of(ALIGNED);
        let large = owned.iter().filter(|piece| memory.heap_of(piece.layout).is_some());
        prop_assert_eq!(memory.used_bytes(), large.map(rounded).sum::<usize>());
        for piece in owned {
            prop_assert!(piece.is_intact());
            // SAFETY: given with that layout, and used no more.
            unsafe { memory.deallocate(piece.first, piece.layout) };
        }
        prop_assert_eq!((memory.used_bytes(), memory.idle_bytes()), (0, 0));
    }
}

#[test]
fn a_small_piece_takes_no_large_page() {
    let (memory, _) = Memory::on_large_pages();
    let mut small: VecIn<u8, Memory> = VecIn::with_capacity_in(LARGE_BYTES - 1, memory.clone());
    small.push(1);
    assert_eq!((memory.used_bytes(), memory.idle_bytes()), (0, 0));
    let large: VecIn<u8, Memory> = VecIn::with_capacity_in(LARGE_BYTES, memory.clone());
    assert_eq!(
        (memory.used_bytes(), memory.idle_bytes()),
        (LARGE_BYTES, PAGE - LARGE_BYTES)
    );
    drop(large);
    assert_eq!((memory.used_bytes(), memory.idle_bytes()), (0, 0));
    assert_eq!(Memory::general().used_bytes(), 0);
}

#[test]
fn the_prefaulter_ends_with_the_last_collection() {
    let (memory, prefaulter) = Memory::on_large_pages();
    let prefaulting = thread::spawn(|| prefaulter.run());
    let mut last: VecIn<u64, Memory> = VecIn::new_in(memory.clone());
    last.extend(0..(SMALL_PAGE as u64) * 100);
    drop(memory);
    assert!(!prefaulting.is_finished());
    assert!(last.iter().copied().eq(0..(SMALL_PAGE as u64) * 100));
    drop(last);
    prefaulting.join().unwrap();
}
