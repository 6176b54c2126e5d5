//! Large pages as an allocator for collections, shared by all that grow in one process.
//!
//! Large pieces come from one [`PageHeap`], so that a [`Prefaulter`] can take its memory before a collection reaches it.
//! Small pieces come from the general allocator, and so does everything of the default [`Memory`]. The layout of a piece
//! alone says which of the two it came from.
//!
//! `unsafe` here: the trait `Allocator`, and calls passed on to the heap and to the general allocator. Sound because every
//! clone shares the heap, so a piece stays valid until it is freed or the last clone is dropped; because the layout alone
//! decides which of the two a piece belongs to, when it is allocated and when it is freed; and because the callers'
//! conditions are passed on unchanged. Checked by `allocator::tests`, which compare it with a model.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;

use allocator_api2::alloc::{AllocError, Allocator, Global};

use crate::heap::PageHeap;
use crate::prefault::Prefaulter;

/// Smallest piece that comes from large pages, in bytes. A smaller one would waste most of a page that it begins, and the
/// cost of the heap's lock and lists would matter.
const LARGE_BYTES: usize = 16 << 10;
/// Alignment of a heap's pieces, in bytes; collections ask for less.
const ALIGNED: usize = 256;

/// The allocator of a collection. A clone is the same memory; the default is the general allocator alone.
#[derive(Clone, Default)]
pub struct Memory {
    shared: Option<Arc<Shared>>,
}

struct Shared {
    pages: Arc<PageHeap>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.pages.close();
    }
}

impl Memory {
    /// The general allocator.
    #[must_use]
    pub fn general() -> Self {
        Self::default()
    }

    /// Large pages of its own, and their prefaulter, which ends with the last clone.
    #[must_use]
    pub fn on_large_pages() -> (Self, Prefaulter) {
        let pages = Arc::new(PageHeap::hole_filling());
        let prefaulter = pages.prefaulter();
        let shared = Some(Arc::new(Shared { pages }));
        (Self { shared }, prefaulter)
    }

    /// Bytes of large pages in use, each piece rounded up to a few cache lines.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.shared.as_ref().map_or(0, |all| all.pages.used_bytes())
    }

    /// Bytes of large pages that are resident and not in use.
    #[must_use]
    pub fn idle_bytes(&self) -> usize {
        self.shared.as_ref().map_or(0, |all| all.pages.idle_bytes())
    }

    /// The heap that a piece of this layout comes from; none if that is the general allocator.
    fn heap_of(&self, layout: Layout) -> Option<&PageHeap> {
        let shared = self.shared.as_ref()?;
        let is_large = layout.size() >= LARGE_BYTES && layout.align() <= ALIGNED;
        is_large.then_some(&*shared.pages)
    }

    /// Moves the contents of a piece into one of another layout.
    ///
    /// # Safety
    /// The conditions of [`Allocator::grow_zeroed`] if the piece grows, of [`Allocator::shrink`] if it shrinks.
    unsafe fn moved(
        &self,
        piece: NonNull<u8>,
        old: Layout,
        new: Layout,
        zeroed: bool,
    ) -> Result<NonNull<[u8]>, AllocError> {
        let moved = if zeroed {
            self.allocate_zeroed(new)?
        } else {
            self.allocate(new)?
        };
        let kept = old.size().min(new.size());
        // SAFETY: both pieces have at least `kept` bytes, and the new one was just allocated, so they do not overlap. The
        // caller guarantees that the old one may be freed.
        unsafe {
            moved.cast::<u8>().copy_from_nonoverlapping(piece, kept);
            self.deallocate(piece, old);
        }
        Ok(moved)
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self.shared {
            None => "Memory(general)",
            Some(_) => "Memory(large pages)",
        })
    }
}

fn whole(piece: Option<NonNull<u8>>, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
    let first = piece.ok_or(AllocError)?;
    Ok(NonNull::slice_from_raw_parts(first, layout.size()))
}

// SAFETY: as the module says.
unsafe impl Allocator for Memory {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        match self.heap_of(layout) {
            None => Global.allocate(layout),
            Some(pages) => whole(pages.allocate_uninitialized(layout.size()), layout),
        }
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        match self.heap_of(layout) {
            None => Global.allocate_zeroed(layout),
            Some(pages) => whole(pages.allocate(layout.size()), layout),
        }
    }

    unsafe fn deallocate(&self, piece: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller guarantees that the piece was allocated here with this layout, which decides its origin.
        unsafe {
            match self.heap_of(layout) {
                None => Global.deallocate(piece, layout),
                Some(pages) => pages.free(piece, layout.size()),
            }
        }
    }

    unsafe fn grow(
        &self,
        piece: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's conditions.
        unsafe {
            match (self.heap_of(old), self.heap_of(new)) {
                (None, None) => Global.grow(piece, old, new),
                _ => self.moved(piece, old, new, false),
            }
        }
    }

    unsafe fn grow_zeroed(
        &self,
        piece: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's conditions.
        unsafe {
            match (self.heap_of(old), self.heap_of(new)) {
                (None, None) => Global.grow_zeroed(piece, old, new),
                _ => self.moved(piece, old, new, true),
            }
        }
    }

    unsafe fn shrink(
        &self,
        piece: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's conditions.
        unsafe {
            match (self.heap_of(old), self.heap_of(new)) {
                (None, None) => Global.shrink(piece, old, new),
                _ => self.moved(piece, old, new, false),
            }
        }
    }
}

#[cfg(test)]
mod tests;
