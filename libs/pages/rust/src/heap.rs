//! A heap on large pages, cut into pieces of any size; idle pages go back to the system.
//!
//! A table of a few hundred megabytes is read at random places. With pages of 4 KiB nearly every read then misses the TLB,
//! and the walk through the page tables costs more than the read itself; with pages of 2 MiB it does not. The system gives
//! large pages only for large, aligned regions, so tables do not come from the general allocator.
//!
//! Tables that grow leave their pieces in about the order in which they got them, each for a larger one. So pieces are
//! allocated by bumping a pointer through an *extent*. Long holes come free behind it, and the longest hole is the next
//! extent: growth asks the system for little more than it adds. Filling every hole would mix generations of tables, and the
//! small holes left between them would add up to twice as much memory. Tables that no longer grow leave
//! only short holes, so holes are filled once too much memory lies idle. Where most pieces are small and stay, there are
//! no generations to keep apart, and holes are filled at once ([`PageHeap::hole_filling`]).
//!
//! Bounds: idle memory beyond a share of the memory in use goes back in whole pages, except for pages kept by request. A page
//! becomes resident when a piece on it is first handed out, or when it is prefaulted or kept.
//!
//! `unsafe` here: mapping, releasing and zeroing memory. Sound because a piece has one owner, who frees it once
//! ([`crate::Memory`]; in the index, `ZeroedArray`), and only free memory is released or zeroed. Checked by `heap::tests`,
//! `allocator::tests` and, through everything above it, by the index's `tests/stress.rs` and `tests/accounting.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::ptr::NonNull;

use parking_lot::{Condvar, Mutex};

use crate::system::{self, PAGE, SMALL_PAGE};

/// Sizes of pieces are multiples of this, and pieces are aligned to it, in bytes.
const UNIT: usize = 256;
const LARGEST_REGION: usize = 64 << 20;
/// Idle memory is released beyond this share of the memory in use, as far as whole pages of it are free.
const RELEASE_SHARE: usize = 32;
/// Holes are filled once more than this share of the memory in use lies idle.
const FILL_SHARE: usize = 6;
/// Smallest hole that becomes the next extent, in bytes; it must also be longer than four pieces. A shorter extent would
/// mix pieces of several generations.
const MIN_EXTENT: usize = 6 * PAGE;
/// Number of idle pages that is always accepted.
const MIN_IDLE_PAGES: usize = 4;
/// Number of pages prefaulted. A slow system clears a page in half the time in which a writer at full speed fills one.
pub(crate) const PREFAULTED_PAGES: usize = 2;

/// A heap of large pages. Share it by `Arc`.
#[derive(Default)]
pub struct PageHeap {
    pub(crate) heap: Mutex<Heap>,
    /// Notified when pages should be prefaulted.
    pub(crate) prefault_wanted: Condvar,
}

pub(crate) struct Region {
    first: NonNull<u8>,
    bytes: usize,
    used_bytes: usize,
    /// Per page, whether the system has given memory for it.
    resident: Box<[bool]>,
    /// Per page, the byte from which on it is still zero.
    zero_from: Box<[usize]>,
}

// SAFETY: a region is memory of its own, which the holder of the heap's lock may cut up.
unsafe impl Send for Region {}

#[derive(Default)]
pub(crate) struct Heap {
    /// By the address of their first byte.
    pub(crate) regions: BTreeMap<usize, Region>,
    /// Free memory from which the next pieces are cut, one behind another. It is not in `holes`.
    extent: Range<usize>,
    /// The extent after it, if it is mapped already.
    upcoming: Range<usize>,
    /// Holes by address, with their sizes; below, the same holes by size.
    holes: BTreeMap<usize, usize>,
    holes_by_size: BTreeSet<(usize, usize)>,
    mapped_bytes: usize,
    pub(crate) used_bytes: usize,
    resident_pages: usize,
    /// Bytes in pages that are never released.
    kept_bytes: usize,
    /// The page that is being prefaulted.
    pub(crate) prefaulting: Option<usize>,
    pub(crate) closed: bool,
    /// Whether holes are filled at once.
    fills_holes: bool,
}

/// A piece, and the parts of it that may not be zero.
struct Piece {
    first: NonNull<u8>,
    dirty: Vec<(usize, usize)>,
}

impl PageHeap {
    /// A heap that fills holes as soon as pieces fit into them.
    pub fn hole_filling() -> Self {
        let mut pages = Self::default();
        pages.heap.get_mut().fills_holes = true;
        pages
    }

    /// A zeroed piece of at least `bytes`, aligned to a cache line and more; none if the system has no more memory.
    pub fn allocate(&self, bytes: usize) -> Option<NonNull<u8>> {
        let piece = self.cut(bytes)?;
        for (from, bytes) in piece.dirty {
            // SAFETY: within the piece, which has no other owner.
            unsafe { piece.first.add(from).write_bytes(0, bytes) };
        }
        Some(piece.first)
    }

    /// As [`Self::allocate`], but not zeroed: the piece may hold what was there before.
    pub fn allocate_uninitialized(&self, bytes: usize) -> Option<NonNull<u8>> {
        Some(self.cut(bytes)?.first)
    }

    fn cut(&self, bytes: usize) -> Option<Piece> {
        let mut heap = self.heap.lock();
        let piece = heap.allocate(bytes.checked_next_multiple_of(UNIT)?)?;
        let wants_prefault = heap.wants_prefault();
        drop(heap);
        if wants_prefault {
            self.prefault_wanted.notify_one();
        }
        Some(piece)
    }

    /// Frees a piece.
    ///
    /// # Safety
    /// It came from [`Self::allocate`] or [`Self::allocate_uninitialized`] of this very heap for that number of bytes, and
    /// it is no longer used.
    pub unsafe fn free(&self, first: NonNull<u8>, bytes: usize) {
        self.heap
            .lock()
            .free(first.addr().get(), bytes.next_multiple_of(UNIT));
    }

    /// Makes pages for `bytes` resident and keeps them from now on, so that pieces allocated later do not wait for the system
    /// to find and clear memory. False if the system has no more.
    pub fn keep(&self, bytes: usize) -> bool {
        let mut heap = self.heap.lock();
        // In one piece, so that the system can refuse at once.
        let missing = bytes.saturating_sub(heap.resident_pages * PAGE);
        let has_it = missing == 0 || heap.map_resident(missing);
        if has_it {
            heap.kept_bytes = heap.kept_bytes.max(bytes);
        }
        has_it
    }

    /// Bytes of resident pages that no piece in use accounts for.
    pub fn idle_bytes(&self) -> usize {
        self.heap.lock().idle_bytes()
    }

    /// Bytes of all pieces in use, each rounded up to a few cache lines.
    pub fn used_bytes(&self) -> usize {
        self.heap.lock().used_bytes
    }
}

impl Heap {
    fn allocate(&mut self, bytes: usize) -> Option<Piece> {
        let address = self.allocate_in_hole(bytes).or_else(|| self.bump(bytes))?;
        let (start, region) = self.regions.range_mut(..=address).next_back()?;
        region.used_bytes += bytes;
        self.used_bytes += bytes;
        let from = address - start;
        let mut dirty = Vec::new();
        for page in from / PAGE..=(from + bytes - 1) / PAGE {
            let start = page * PAGE;
            let begin = start.max(from) - start;
            let end = (from + bytes - start).min(PAGE);
            let zero_from = region.zero_from[page];
            if begin < zero_from {
                dirty.push((start + begin - from, end.min(zero_from) - begin));
            }
            region.zero_from[page] = end.max(zero_from);
            self.resident_pages += usize::from(!region.resident[page]);
            region.resident[page] = true;
        }
        // SAFETY: within the region.
        let first = unsafe { region.first.add(from) };
        Some(Piece { first, dirty })
    }

    fn allocate_in_hole(&mut self, bytes: usize) -> Option<usize> {
        let may_idle =
            self.used_bytes / FILL_SHARE + MIN_IDLE_PAGES * PAGE + self.prefaulted_bytes();
        if !self.fills_holes && self.idle_bytes() <= may_idle {
            return None;
        }
        let &(size, address) = self.holes_by_size.range((bytes, 0)..).next()?;
        self.remove_hole(address, size);
        if size > bytes {
            self.add_hole(address + bytes, size - bytes);
        }
        Some(address)
    }

    /// The next piece of the extent, or of a new one.
    fn bump(&mut self, bytes: usize) -> Option<usize> {
        if self.extent.len() < bytes {
            let rest = std::mem::take(&mut self.extent);
            if !rest.is_empty() {
                self.add_hole(rest.start, rest.len());
            }
            self.extent = self
                .longest_hole(bytes)
                .or_else(|| self.take_upcoming(bytes))
                .or_else(|| self.map(bytes))?;
        }
        let address = self.extent.start;
        self.extent.start += bytes;
        Some(address)
    }

    /// The extent that was mapped in advance, if it is long enough.
    fn take_upcoming(&mut self, bytes: usize) -> Option<Range<usize>> {
        (self.upcoming.len() >= bytes).then(|| std::mem::take(&mut self.upcoming))
    }

    /// The hole with the most resident pages, if it is long enough for an extent.
    fn longest_hole(&mut self, bytes: usize) -> Option<Range<usize>> {
        let least = MIN_EXTENT.max(bytes.saturating_mul(4));
        let holes = self.holes_by_size.range((least, 0)..);
        let &(size, address) =
            holes.max_by_key(|&&(size, address)| self.resident_in(address, size))?;
        self.remove_hole(address, size);
        Some(address..address + size)
    }

    /// Number of resident pages that lie within a hole as a whole.
    fn resident_in(&self, address: usize, size: usize) -> usize {
        let Some((start, region)) = self.regions.range(..=address).next_back() else {
            return 0;
        };
        count(&region.resident[whole_pages(address - start, size)])
    }

    fn idle_bytes(&self) -> usize {
        self.resident_pages * PAGE - self.used_bytes
    }

    fn free(&mut self, mut address: usize, mut bytes: usize) {
        self.used_bytes -= bytes;
        let Some((&start, region)) = self.regions.range_mut(..=address).next_back() else {
            return;
        };
        region.used_bytes -= bytes;
        let end = start + region.bytes;
        if let Some((&before, &size)) = self.holes.range(start..address).next_back()
            && before + size == address
        {
            self.remove_hole(before, size);
            (address, bytes) = (before, bytes + size);
        }
        let after = address + bytes;
        if after < end
            && let Some(&size) = self.holes.get(&after)
        {
            self.remove_hole(after, size);
            bytes += size;
        }
        self.add_hole(address, bytes);
        self.release_idle();
    }

    fn add_hole(&mut self, address: usize, bytes: usize) {
        self.holes.insert(address, bytes);
        self.holes_by_size.insert((bytes, address));
    }

    fn remove_hole(&mut self, address: usize, bytes: usize) {
        self.holes.remove(&address);
        self.holes_by_size.remove(&(bytes, address));
    }

    /// Maps a region of `bytes` as a hole, and makes all of it resident.
    fn map_resident(&mut self, bytes: usize) -> bool {
        let Some(hole) = self.map(bytes) else {
            return false;
        };
        if let Some(region) = self.regions.get_mut(&hole.start) {
            // A small page at a time, for systems without large ones.
            for at in (0..region.bytes).step_by(SMALL_PAGE) {
                // SAFETY: within the region, which has no pieces yet.
                unsafe { region.first.add(at).write_volatile(0) };
            }
            region.resident.fill(true);
            self.resident_pages += region.resident.len();
        }
        self.add_hole(hole.start, hole.len());
        true
    }

    /// Maps a region with room for `bytes`.
    fn map(&mut self, bytes: usize) -> Option<Range<usize>> {
        let usual = (self.mapped_bytes / 4).clamp(PAGE, LARGEST_REGION);
        let size = usual.max(bytes).checked_next_multiple_of(PAGE)?;
        let first = system::map(size)?;
        let start = first.addr().get();
        let region = Region {
            first,
            bytes: size,
            used_bytes: 0,
            resident: vec![false; size / PAGE].into(),
            zero_from: vec![0; size / PAGE].into(),
        };
        self.regions.insert(start, region);
        self.mapped_bytes += size;
        Some(start..start + size)
    }

    /// Unmaps a region without pieces.
    fn unmap(&mut self, start: usize) {
        let Some(region) = self.regions.remove(&start) else {
            return;
        };
        let range = start..start + region.bytes;
        for extent in [&mut self.extent, &mut self.upcoming] {
            if range.contains(&extent.start) {
                *extent = 0..0;
            }
        }
        // One hole, or two, if the extent was in it.
        let holes: Vec<_> = self
            .holes
            .range(range)
            .map(|(&at, &size)| (at, size))
            .collect();
        for (at, size) in holes {
            self.remove_hole(at, size);
        }
        self.mapped_bytes -= region.bytes;
        self.resident_pages -= count(&region.resident);
        // SAFETY: mapped with that size, and all of it is free.
        unsafe { system::unmap(region.first, region.bytes) };
    }

    /// Number of idle pages that should be released.
    fn excess_pages(&self) -> usize {
        let share = self.used_bytes / RELEASE_SHARE + MIN_IDLE_PAGES / 2 * PAGE;
        let may_stay = share + self.prefaulted_bytes();
        let stays = if self.used_bytes == 0 {
            0
        } else {
            self.used_bytes + may_stay
        };
        self.resident_pages
            .saturating_sub(stays.max(self.kept_bytes).div_ceil(PAGE))
    }

    /// Whether a region is without pieces, and neither kept nor being prefaulted.
    fn is_releasable(&self, start: usize, region: &Region) -> bool {
        let is_prefaulting = self
            .prefaulting
            .is_some_and(|at| (start..start + region.bytes).contains(&at));
        let left = self.resident_pages - count(&region.resident);
        region.used_bytes == 0 && left * PAGE >= self.kept_bytes && !is_prefaulting
    }

    /// Releases regions without pieces, then whole pages inside holes, as long as too much lies idle.
    pub(crate) fn release_idle(&mut self) {
        while (self.excess_pages() > 0 || self.used_bytes == 0)
            && let Some((&start, _)) = self
                .regions
                .iter()
                .find(|&(&start, region)| self.is_releasable(start, region))
        {
            self.unmap(start);
        }
        let mut excess = self.excess_pages();
        for &(size, address) in self.holes_by_size.iter().rev() {
            if size < PAGE || excess == 0 {
                return;
            }
            let Some((start, region)) = self.regions.range_mut(..=address).next_back() else {
                return;
            };
            for page in whole_pages(address - start, size) {
                if region.resident[page] && excess > 0 {
                    // SAFETY: within the region, and within a hole.
                    let released = unsafe { system::discard(region.first.add(page * PAGE), PAGE) };
                    region.resident[page] = !released;
                    region.zero_from[page] *= usize::from(!released);
                    self.resident_pages -= usize::from(released);
                    excess -= 1;
                }
            }
        }
    }

    /// Whether the prefaulter has something to do.
    pub(crate) fn wants_prefault(&self) -> bool {
        let lacks = || self.next_pages().any(|(_, resident)| !resident);
        self.prefaulting.is_none() && (self.is_extent_short() || lacks())
    }

    /// Whether the extent ends soon, and the next one is not mapped.
    fn is_extent_short(&self) -> bool {
        self.used_bytes > 0
            && self.upcoming.is_empty()
            && self.next_pages().count() < PREFAULTED_PAGES
    }

    /// The next page that should be prefaulted. Where the extent is too short for it, the next one is mapped.
    pub(crate) fn next_to_prefault(&mut self) -> Option<(NonNull<u8>, usize)> {
        if self.is_extent_short() {
            self.upcoming = self.map(PREFAULTED_PAGES * PAGE)?;
        }
        let (address, _) = self.next_pages().find(|&(_, resident)| !resident)?;
        let (start, region) = self.regions.range(..=address).next_back()?;
        // SAFETY: within the region.
        Some((unsafe { region.first.add(address - start) }, address))
    }

    /// Bytes in prefaulted pages, which do not count when idle memory is judged.
    fn prefaulted_bytes(&self) -> usize {
        self.next_pages().filter(|&(_, resident)| resident).count() * PAGE
    }

    /// The pages that the allocator reaches next, by address, and whether they are resident.
    fn next_pages(&self) -> impl Iterator<Item = (usize, bool)> {
        [&self.extent, &self.upcoming]
            .into_iter()
            .flat_map(|extent| self.pages_of_extent(extent))
            .take(PREFAULTED_PAGES)
    }

    fn pages_of_extent(&self, extent: &Range<usize>) -> impl Iterator<Item = (usize, bool)> {
        let within = self.regions.range(..=extent.start).next_back();
        let within = within.filter(|_| !extent.is_empty());
        within.into_iter().flat_map(|(&start, region)| {
            let pages = whole_pages(extent.start - start, extent.len());
            pages.map(move |page| (start + page * PAGE, region.resident[page]))
        })
    }

    /// Records that the page at this address is resident now.
    pub(crate) fn mark_resident(&mut self, address: usize) {
        let Some((start, region)) = self.regions.range_mut(..=address).next_back() else {
            return;
        };
        let page = (address - start) / PAGE;
        self.resident_pages += usize::from(!region.resident[page]);
        region.resident[page] = true;
    }
}

/// The pages that lie within a hole as a whole, by its place in its region.
fn whole_pages(offset: usize, size: usize) -> Range<usize> {
    let first = offset.div_ceil(PAGE);
    first..((offset + size) / PAGE).max(first)
}

/// Number of pages that are resident.
fn count(resident: &[bool]) -> usize {
    resident.iter().filter(|&&resident| resident).count()
}

impl Drop for Heap {
    fn drop(&mut self) {
        for region in self.regions.values() {
            // SAFETY: mapped with that size. Every piece's owner shares the `PageHeap`, so there is none left.
            unsafe { system::unmap(region.first, region.bytes) };
        }
    }
}

#[cfg(test)]
mod tests;
