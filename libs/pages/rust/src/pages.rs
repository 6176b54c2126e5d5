//! A heap for tables: large pages, cut into pieces of any size, and given back when they lie idle.
//!
//! A table of a few hundred megabytes is read at random places. With pages of 4 KiB nearly every read then misses the
//! TLB, and walking the page tables costs more than the read itself; with pages of 2 MiB it does not. The system gives
//! those only to whoever asks for large, aligned regions, so tables are not taken from the general allocator.
//!
//! Shards that grow leave their pieces in about the order in which they took them, each for a larger one. So pieces are
//! taken one behind another, in a *stretch*: then long holes come free behind, and the longest one is the next stretch, so
//! that growth asks the system for little more than it adds. What still lies idle beyond a share is handed back. Filling
//! every hole would mix the generations, and what small ones are left between them adds up to twice as much. In a fleet
//! that no longer grows, pieces come free here and there, and long holes do not; so holes are filled once too much lies
//! idle. Where most pieces are small and stay, and only a few large ones are left for larger ones, there are no
//! generations to keep apart, and holes are filled at once ([`Pages::filling`]). A page counts as taken from when a piece
//! on it is first handed out, or it is kept.
//!
//! `unsafe` here: mapping, handing back and zeroing memory. Sound because a piece is handed out to one owner, who gives
//! it back once ([`crate::Memory`]; in the index, `Zeroed`), and only what is free is handed back or zeroed.
//! Checked by `pages::tests`, `memory::tests` and, through everything above it, by the index's `tests/stress.rs` and
//! `tests/accounting.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::system::{self, PAGE, SMALL_PAGE};

mod ahead;

pub use ahead::Preparer;

/// Pieces are multiples of this, and so aligned.
const UNIT: usize = 256;
const LARGEST_REGION: usize = 64 << 20;
/// Of what is in use: more than that does not stay idle if whole pages of it can be handed back.
const HAND_BACK_SHARE: usize = 32;
/// Of what is in use: from then on holes are filled.
const FILL_SHARE: usize = 6;
/// A hole is a new stretch if it is so long, and longer than four pieces: in shorter ones, pieces of several generations
/// would come to lie beside each other.
const LEAST_IN_STRETCH: usize = 6 * PAGE;
/// Idle pages that are not worth a thought.
const FREE_PAGES: usize = 4;

/// Where tables come from. Share it by `Arc`.
#[derive(Default)]
pub struct Pages {
    heap: Mutex<Heap>,
    /// Told when pages should be taken ahead.
    wanted: Condvar,
}

struct Region {
    first: NonNull<u8>,
    bytes: usize,
    used_bytes: usize,
    /// Per page, whether it takes memory.
    taken: Box<[bool]>,
    /// Per page, the byte from which on it is zero still.
    zero_from: Box<[usize]>,
}

// SAFETY: a region is memory of its own, which whoever holds the heap's lock may cut up.
unsafe impl Send for Region {}

#[derive(Default)]
struct Heap {
    /// By the address of their first byte.
    regions: BTreeMap<usize, Region>,
    /// Where the next pieces come from, one behind another: free, but no hole.
    stretch: Range<usize>,
    /// The stretch after it, if it is mapped already.
    upcoming: Range<usize>,
    /// Holes: address to size, and the same the other way round.
    free: BTreeMap<usize, usize>,
    by_size: BTreeSet<(usize, usize)>,
    mapped_bytes: usize,
    used_bytes: usize,
    taken_pages: usize,
    /// So many bytes in pages are never handed back.
    kept_bytes: usize,
    /// The page that is being taken ahead.
    preparing: Option<usize>,
    closed: bool,
    /// Whether holes are filled at once.
    fills: bool,
}

/// A piece and which parts of it may be other than zero.
struct Piece {
    first: NonNull<u8>,
    dirty: Vec<(usize, usize)>,
}

impl Pages {
    /// A heap that fills holes as soon as pieces fit into them.
    pub fn filling() -> Self {
        let mut pages = Self::default();
        pages.heap.get_mut().fills = true;
        pages
    }

    /// A zeroed piece of at least `bytes`, aligned to a cache line and more; none if the system has no more memory.
    pub fn take(&self, bytes: usize) -> Option<NonNull<u8>> {
        let piece = self.cut(bytes)?;
        for (from, bytes) in piece.dirty {
            // SAFETY: within the piece, which nobody else has.
            unsafe { piece.first.add(from).write_bytes(0, bytes) };
        }
        Some(piece.first)
    }

    /// The same for whoever writes before reading: what was there before may still be.
    pub fn take_as_is(&self, bytes: usize) -> Option<NonNull<u8>> {
        Some(self.cut(bytes)?.first)
    }

    fn cut(&self, bytes: usize) -> Option<Piece> {
        let mut heap = self.heap.lock();
        let piece = heap.take(bytes.checked_next_multiple_of(UNIT)?)?;
        let wants_more = heap.wants_more();
        drop(heap);
        if wants_more {
            self.wanted.notify_one();
        }
        Some(piece)
    }

    /// Gives a piece back.
    ///
    /// # Safety
    /// It came from [`Self::take`] or [`Self::take_as_is`] of this very heap for that number of bytes, and nobody uses it
    /// any more.
    pub unsafe fn give(&self, first: NonNull<u8>, bytes: usize) {
        self.heap
            .lock()
            .give(first.addr().get(), bytes.next_multiple_of(UNIT));
    }

    /// Takes pages for so many bytes from the system, unless there are as many, and keeps them from now on: pieces that
    /// are taken later need not wait for the system to find and clear memory. False if the system has no more.
    pub fn keep(&self, bytes: usize) -> bool {
        let mut heap = self.heap.lock();
        // In one piece, so that the system can say at once that it has not so much.
        let missing = bytes.saturating_sub(heap.taken_pages * PAGE);
        let has_it = missing == 0 || heap.fill_region(missing);
        if has_it {
            heap.kept_bytes = heap.kept_bytes.max(bytes);
        }
        has_it
    }

    /// Bytes of memory taken from the system, in whole pages, that no piece in use accounts for.
    pub fn idle_bytes(&self) -> usize {
        self.heap.lock().idle_bytes()
    }

    /// Bytes of all pieces in use, each rounded up to a few cache lines.
    pub fn used_bytes(&self) -> usize {
        self.heap.lock().used_bytes
    }

    /// What takes pages ahead of those who take pieces, on whatever thread runs it, until [`Self::close`].
    pub fn preparer(self: &Arc<Self>) -> Preparer {
        Preparer(Arc::clone(self))
    }
}

impl Heap {
    fn take(&mut self, bytes: usize) -> Option<Piece> {
        let address = self.take_hole(bytes).or_else(|| self.take_next(bytes))?;
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
            self.taken_pages += usize::from(!region.taken[page]);
            region.taken[page] = true;
        }
        // SAFETY: within the region.
        let first = unsafe { region.first.add(from) };
        Some(Piece { first, dirty })
    }

    fn take_hole(&mut self, bytes: usize) -> Option<usize> {
        let may_idle = self.used_bytes / FILL_SHARE + FREE_PAGES * PAGE + self.bytes_ahead();
        if !self.fills && self.idle_bytes() <= may_idle {
            return None;
        }
        let &(size, address) = self.by_size.range((bytes, 0)..).next()?;
        self.remove_free(address, size);
        if size > bytes {
            self.add_free(address + bytes, size - bytes);
        }
        Some(address)
    }

    /// The next piece of the stretch, or of another one.
    fn take_next(&mut self, bytes: usize) -> Option<usize> {
        if self.stretch.len() < bytes {
            let rest = std::mem::take(&mut self.stretch);
            if !rest.is_empty() {
                self.add_free(rest.start, rest.len());
            }
            self.stretch = self
                .longest_stretch(bytes)
                .or_else(|| self.next_stretch(bytes))
                .or_else(|| self.map(bytes))?;
        }
        let address = self.stretch.start;
        self.stretch.start += bytes;
        Some(address)
    }

    /// The stretch that was mapped ahead, if it is long enough.
    fn next_stretch(&mut self, bytes: usize) -> Option<Range<usize>> {
        (self.upcoming.len() >= bytes).then(|| std::mem::take(&mut self.upcoming))
    }

    /// The hole with the most pages that take memory already, if it is worth going on in.
    fn longest_stretch(&mut self, bytes: usize) -> Option<Range<usize>> {
        let least = LEAST_IN_STRETCH.max(bytes.saturating_mul(4));
        let holes = self.by_size.range((least, 0)..);
        let &(size, address) =
            holes.max_by_key(|&&(size, address)| self.taken_in(address, size))?;
        self.remove_free(address, size);
        Some(address..address + size)
    }

    /// Whole pages of a hole that take memory.
    fn taken_in(&self, address: usize, size: usize) -> usize {
        let Some((start, region)) = self.regions.range(..=address).next_back() else {
            return 0;
        };
        let pages = whole_pages(address - start, size);
        region.taken[pages].iter().filter(|&&taken| taken).count()
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
        let end = start + region.bytes;
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

    /// Maps a region of so many bytes as a hole, and makes the system back all of it.
    fn fill_region(&mut self, bytes: usize) -> bool {
        let Some(hole) = self.map(bytes) else {
            return false;
        };
        if let Some(region) = self.regions.get_mut(&hole.start) {
            // A small page at a time, for where there are no large ones.
            for at in (0..region.bytes).step_by(SMALL_PAGE) {
                // SAFETY: within the region, of which nothing is handed out yet.
                unsafe { region.first.add(at).write_volatile(0) };
            }
            region.taken.fill(true);
            self.taken_pages += region.taken.len();
        }
        self.add_free(hole.start, hole.len());
        true
    }

    /// Maps a region with room for `bytes`, as the next stretch.
    fn map(&mut self, bytes: usize) -> Option<Range<usize>> {
        let usual = (self.mapped_bytes / 4).clamp(PAGE, LARGEST_REGION);
        let size = usual.max(bytes).checked_next_multiple_of(PAGE)?;
        let first = system::map(size)?;
        let start = first.addr().get();
        let region = Region {
            first,
            bytes: size,
            used_bytes: 0,
            taken: vec![false; size / PAGE].into(),
            zero_from: vec![0; size / PAGE].into(),
        };
        self.regions.insert(start, region);
        self.mapped_bytes += size;
        Some(start..start + size)
    }

    /// Gives up a region of which nothing is in use.
    fn unmap(&mut self, start: usize) {
        let Some(region) = self.regions.remove(&start) else {
            return;
        };
        let range = start..start + region.bytes;
        for stretch in [&mut self.stretch, &mut self.upcoming] {
            if range.contains(&stretch.start) {
                *stretch = 0..0;
            }
        }
        // One hole, or two, if the stretch was in it.
        let holes: Vec<_> = self
            .free
            .range(range)
            .map(|(&at, &size)| (at, size))
            .collect();
        for (at, size) in holes {
            self.remove_free(at, size);
        }
        self.mapped_bytes -= region.bytes;
        self.taken_pages -= region.taken.iter().filter(|&&taken| taken).count();
        // SAFETY: mapped with that size, and all of it is free.
        unsafe { system::unmap(region.first, region.bytes) };
    }

    /// Pages that lie idle beyond what may stay so.
    fn excess_pages(&self) -> usize {
        let share = self.used_bytes / HAND_BACK_SHARE + FREE_PAGES / 2 * PAGE;
        let may_stay = share + self.bytes_ahead();
        let stays = if self.used_bytes == 0 {
            0
        } else {
            self.used_bytes + may_stay
        };
        self.taken_pages
            .saturating_sub(stays.max(self.kept_bytes).div_ceil(PAGE))
    }

    /// Whether a region is without pieces, and neither kept nor being prepared.
    fn may_go(&self, start: usize, region: &Region) -> bool {
        let prepares = self
            .preparing
            .is_some_and(|at| (start..start + region.bytes).contains(&at));
        let left = self.taken_pages - region.taken.iter().filter(|&&taken| taken).count();
        region.used_bytes == 0 && left * PAGE >= self.kept_bytes && !prepares
    }

    /// Hands regions without pieces, then whole pages inside holes, back to the system, as long as too much lies idle.
    fn hand_back(&mut self) {
        while (self.excess_pages() > 0 || self.used_bytes == 0)
            && let Some((&start, _)) = self
                .regions
                .iter()
                .find(|&(&start, region)| self.may_go(start, region))
        {
            self.unmap(start);
        }
        let mut excess = self.excess_pages();
        for &(size, address) in self.by_size.iter().rev() {
            if size < PAGE || excess == 0 {
                return;
            }
            let Some((start, region)) = self.regions.range_mut(..=address).next_back() else {
                return;
            };
            for page in whole_pages(address - start, size) {
                if region.taken[page] && excess > 0 {
                    // SAFETY: within the region, and within a free piece.
                    let handed = unsafe { system::discard(region.first.add(page * PAGE), PAGE) };
                    region.taken[page] = !handed;
                    region.zero_from[page] *= usize::from(!handed);
                    self.taken_pages -= usize::from(handed);
                    excess -= 1;
                }
            }
        }
    }
}

/// The pages that lie within a hole as a whole, by its place in its region.
fn whole_pages(offset: usize, size: usize) -> Range<usize> {
    let first = offset.div_ceil(PAGE);
    first..((offset + size) / PAGE).max(first)
}

impl Drop for Heap {
    fn drop(&mut self) {
        for region in self.regions.values() {
            // SAFETY: mapped with that size. Every piece's owner shares the `Pages`, so there is none left.
            unsafe { system::unmap(region.first, region.bytes) };
        }
    }
}

#[cfg(test)]
mod tests;
