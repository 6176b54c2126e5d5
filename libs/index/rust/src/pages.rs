//! Memory for tables: large pages, cut into pieces of any size, and given back when it lies idle.
//!
//! A table of a few hundred megabytes is read at random places. With pages of 4 KiB nearly every read then misses the
//! TLB, and walking the page tables costs more than the read itself; with pages of 2 MiB it does not. The system gives
//! those only to whoever asks for large, aligned regions, so tables are not taken from the general allocator.
//!
//! Shards that grow leave their pieces in about the order in which they took them, each for a larger one. So pieces are
//! taken one behind another from fresh addresses, and not from holes: then whole pages come free behind, and are handed
//! back to the system. Filling holes mixes the generations, and what small ones are left between them adds up to twice
//! as much. In a fleet that no longer grows, pieces come free here and there, and whole pages do not; so holes are
//! filled once too much lies idle. A page counts as taken from when a piece on it is first handed out.
//!
//! `unsafe` here: mapping, handing back and zeroing memory. Sound because a piece is handed out to one owner, who gives
//! it back once ([`crate::zeroed::Zeroed`]), and only what is free is handed back or zeroed.
//! Checked by `pages::tests` and, through everything above it, by `tests/stress.rs` and `tests/accounting.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;

use parking_lot::Mutex;

/// A large page.
const PAGE: usize = 2 << 20;
/// Pieces are multiples of this, and so aligned.
const UNIT: usize = 256;
const LARGEST_REGION: usize = 64 << 20;
/// Of what is in use: more than that does not stay idle if whole pages of it can be handed back.
const HAND_BACK_SHARE: usize = 32;
/// Of what is in use: from then on holes are filled.
const FILL_SHARE: usize = 6;
/// Idle pages that are not worth a thought.
const FREE_PAGES: usize = 4;

/// Where tables come from. Share it by `Arc`.
#[derive(Default)]
pub(crate) struct Pages {
    heap: Mutex<Heap>,
}

struct Region {
    first: NonNull<u8>,
    bytes: usize,
    used_bytes: usize,
    /// Offset from which on no piece was ever handed out.
    fresh: usize,
    /// Per page, whether it may be other than zero, and takes memory.
    taken: Box<[bool]>,
}

// SAFETY: a region is memory of its own, which whoever holds the heap's lock may cut up.
unsafe impl Send for Region {}

#[derive(Default)]
struct Heap {
    /// By the address of their first byte.
    regions: BTreeMap<usize, Region>,
    /// The region that fresh pieces come from.
    newest: usize,
    /// Holes: address to size, and the same the other way round.
    free: BTreeMap<usize, usize>,
    by_size: BTreeSet<(usize, usize)>,
    mapped_bytes: usize,
    used_bytes: usize,
    taken_pages: usize,
}

/// A piece and which parts of it may be other than zero.
struct Piece {
    first: NonNull<u8>,
    dirty: Vec<(usize, usize)>,
}

impl Pages {
    /// A zeroed piece of at least `bytes`, aligned to a cache line and more; none if the system has no more memory.
    pub fn take(&self, bytes: usize) -> Option<NonNull<u8>> {
        let piece = self.heap.lock().take(bytes.next_multiple_of(UNIT))?;
        for (from, bytes) in piece.dirty {
            // SAFETY: within the piece, which nobody else has.
            unsafe { piece.first.add(from).write_bytes(0, bytes) };
        }
        Some(piece.first)
    }

    /// Gives a piece back.
    ///
    /// # Safety
    /// It came from [`Self::take`] of this very heap for that number of bytes, and nobody uses it any more.
    pub unsafe fn give(&self, first: NonNull<u8>, bytes: usize) {
        self.heap
            .lock()
            .give(first.addr().get(), bytes.next_multiple_of(UNIT));
    }

    /// Bytes of memory taken from the system, in whole pages, that no piece in use accounts for.
    pub fn idle_bytes(&self) -> usize {
        self.heap.lock().idle_bytes()
    }
}

impl Heap {
    fn take(&mut self, bytes: usize) -> Option<Piece> {
        let address = self.take_hole(bytes).or_else(|| self.take_fresh(bytes))?;
        let (start, region) = self.regions.range_mut(..=address).next_back()?;
        region.used_bytes += bytes;
        self.used_bytes += bytes;
        let from = address - start;
        let mut dirty = Vec::new();
        for page in from / PAGE..=(from + bytes - 1) / PAGE {
            if region.taken[page] {
                let begin = (page * PAGE).max(from);
                let end = ((page + 1) * PAGE).min(from + bytes);
                dirty.push((begin - from, end - begin));
            } else {
                region.taken[page] = true;
                self.taken_pages += 1;
            }
        }
        // SAFETY: within the region.
        let first = unsafe { region.first.add(from) };
        Some(Piece { first, dirty })
    }

    fn take_hole(&mut self, bytes: usize) -> Option<usize> {
        if self.idle_bytes() <= self.used_bytes / FILL_SHARE + FREE_PAGES * PAGE {
            return None;
        }
        let &(size, address) = self.by_size.range((bytes, 0)..).next()?;
        self.remove_free(address, size);
        if size > bytes {
            self.add_free(address + bytes, size - bytes);
        }
        Some(address)
    }

    fn take_fresh(&mut self, bytes: usize) -> Option<usize> {
        let has_room = |region: &Region| region.bytes - region.fresh >= bytes;
        if !self.regions.get(&self.newest).is_some_and(has_room) {
            self.map(bytes)?;
        }
        let region = self.regions.get_mut(&self.newest)?;
        let address = self.newest + region.fresh;
        region.fresh += bytes;
        Some(address)
    }

    fn idle_bytes(&self) -> usize {
        self.taken_pages * PAGE - self.used_bytes
    }

    fn give(&mut self, mut address: usize, mut bytes: usize) {
        self.used_bytes -= bytes;
        let Some((&start, region)) = self.regions.range_mut(..=address).next_back() else {
            return;
        };
        region.used_bytes -= bytes;
        let (is_unused, end) = (region.used_bytes == 0, start + region.bytes);
        if let Some((&before, &size)) = self.free.range(start..address).next_back()
            && before + size == address
        {
            self.remove_free(before, size);
            (address, bytes) = (before, bytes + size);
        }
        let after = address + bytes;
        if after < end
            && let Some(&size) = self.free.get(&after)
        {
            self.remove_free(after, size);
            bytes += size;
        }
        self.add_free(address, bytes);
        if is_unused {
            self.unmap(start);
        }
        self.hand_back();
    }

    fn add_free(&mut self, address: usize, bytes: usize) {
        self.free.insert(address, bytes);
        self.by_size.insert((bytes, address));
    }

    fn remove_free(&mut self, address: usize, bytes: usize) {
        self.free.remove(&address);
        self.by_size.remove(&(bytes, address));
    }

    /// Maps a region with room for `bytes`, where fresh pieces come from henceforth.
    fn map(&mut self, bytes: usize) -> Option<()> {
        let usual = (self.mapped_bytes / 4).clamp(PAGE, LARGEST_REGION);
        let size = usual.max(bytes).next_multiple_of(PAGE);
        let first = system::map(size)?;
        self.newest = first.addr().get();
        let region = Region {
            first,
            bytes: size,
            used_bytes: 0,
            fresh: 0,
            taken: vec![false; size / PAGE].into(),
        };
        self.regions.insert(self.newest, region);
        self.mapped_bytes += size;
        Some(())
    }

    /// Gives up a region of which nothing is in use, so that what was handed out of it is one hole.
    fn unmap(&mut self, start: usize) {
        if let Some(region) = self.regions.remove(&start) {
            self.remove_free(start, region.fresh);
            self.mapped_bytes -= region.bytes;
            self.taken_pages -= region.taken.iter().filter(|&&taken| taken).count();
            // SAFETY: mapped with that size, and all of it is free.
            unsafe { system::unmap(region.first, region.bytes) };
        }
    }

    /// Hands whole pages inside free pieces back to the system, as long as too much lies idle.
    fn hand_back(&mut self) {
        let may_stay = self.used_bytes / HAND_BACK_SHARE + FREE_PAGES / 2 * PAGE;
        for &(size, address) in self.by_size.iter().rev() {
            if size < PAGE || self.taken_pages * PAGE <= self.used_bytes + may_stay {
                return;
            }
            let Some((start, region)) = self.regions.range_mut(..=address).next_back() else {
                return;
            };
            let from = (address - start).div_ceil(PAGE);
            let to = (address + size - start) / PAGE;
            for page in from..to {
                if region.taken[page] {
                    // SAFETY: within the region, and within a free piece.
                    let handed = unsafe { system::discard(region.first.add(page * PAGE), PAGE) };
                    region.taken[page] = !handed;
                    self.taken_pages -= usize::from(handed);
                }
            }
        }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        for region in self.regions.values() {
            // SAFETY: mapped with that size. Every piece's owner shares the `Pages`, so there is none left.
            unsafe { system::unmap(region.first, region.bytes) };
        }
    }
}

/// Elsewhere than on Linux: large aligned pieces of the general allocator, which are kept until all of a region is free.
#[cfg(not(target_os = "linux"))]
mod system {
    use super::PAGE;
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    fn layout(bytes: usize) -> Option<Layout> {
        Layout::from_size_align(bytes, PAGE).ok()
    }

    pub fn map(bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: not zero-sized.
        NonNull::new(unsafe { alloc_zeroed(layout(bytes)?) })
    }

    /// # Safety
    /// Mapped by [`map`] with that size; not used any more.
    pub unsafe fn unmap(first: NonNull<u8>, bytes: usize) {
        if let Some(layout) = layout(bytes) {
            // SAFETY: the caller vouches for it.
            unsafe { dealloc(first.as_ptr(), layout) };
        }
    }

    /// # Safety
    /// None needed; as unsafe as where it does something.
    pub unsafe fn discard(_first: NonNull<u8>, _bytes: usize) -> bool {
        false
    }
}

/// What is asked of the system, for sizes that are whole large pages.
#[cfg(target_os = "linux")]
mod system {
    use super::PAGE;
    use std::ptr::NonNull;

    /// Zeroed memory, aligned to a large page, and to be made of such if there are any.
    pub fn map(bytes: usize) -> Option<NonNull<u8>> {
        let room = bytes.checked_add(PAGE)?;
        // SAFETY: a mapping of its own, anywhere.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                room,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return None;
        }
        let mapped = mapped.cast::<u8>();
        let before = mapped.align_offset(PAGE);
        // SAFETY: the mapping has a page more than asked for, so what is cut off at either end is within it, and the
        // rest begins within it.
        unsafe {
            let first = mapped.add(before);
            if before > 0 {
                libc::munmap(mapped.cast(), before);
            }
            if before < PAGE {
                libc::munmap(first.add(bytes).cast(), PAGE - before);
            }
            // A wish: without large pages it is only slower.
            libc::madvise(first.cast(), bytes, libc::MADV_HUGEPAGE);
            NonNull::new(first)
        }
    }

    /// # Safety
    /// Mapped by [`map`] with that size; not used any more.
    pub unsafe fn unmap(first: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller vouches for it.
        unsafe { libc::munmap(first.as_ptr().cast(), bytes) };
    }

    /// Gives the memory back and keeps the addresses, which read as zero afterwards; whether it did.
    ///
    /// # Safety
    /// Whole pages within a mapping, which nobody uses.
    pub unsafe fn discard(first: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the caller vouches for it.
        unsafe { libc::madvise(first.as_ptr().cast(), bytes, libc::MADV_DONTNEED) == 0 }
    }
}

#[cfg(test)]
mod tests {
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
            steps in prop::collection::vec((1usize..3_000_000, any::<u8>(), any::<prop::sample::Index>()), 1..60)
        ) {
            let pages = Pages::default();
            let mut owned: Vec<Owned> = Vec::new();
            for (bytes, fill, which) in steps {
                if fill % 3 == 0 && !owned.is_empty() {
                    let piece = owned.swap_remove(which.index(owned.len()));
                    prop_assert!(bytes_of(&piece).iter().all(|&byte| byte == piece.2));
                    // SAFETY: taken for that size, and used no more.
                    unsafe { pages.give(piece.0, piece.1) };
                } else {
                    let first = pages.take(bytes).unwrap();
                    let piece = (first, bytes, fill);
                    prop_assert_eq!(first.as_ptr() as usize % 64, 0);
                    prop_assert!(bytes_of(&piece).iter().all(|&byte| byte == 0));
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
}
