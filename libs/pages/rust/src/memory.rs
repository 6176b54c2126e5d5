//! Large pages as an allocator for collections, shared by all that grow in one process.
//!
//! What is large comes from one [`Pages`], so that a [`Preparer`] can take its memory ahead of whoever fills it; what is
//! small from the general allocator, as everything does for who asks for no more. Which of the two a piece came from
//! follows from its layout alone.
//!
//! `unsafe` here: the trait's promise, that what it hands out stays valid until it is given back or the last clone of its
//! allocator is gone, wherever that moves; and passing calls on. Sound because pieces are the heap's, which every clone
//! owns a share of; because a layout leads to the same heap when it is given back as when it was asked for; and because
//! the callers' conditions are passed on as they are. Checked by `memory::tests`, which hold it to a model.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;

use allocator_api2::alloc::{AllocError, Allocator, Global};

use crate::pages::{Pages, Preparer};

/// From so many bytes on a piece is taken from large pages. A table or a slab of fewer is small beside the page that it
/// would begin, and in pieces of this size the heap's lock and lists cost nothing that is noticed.
const LARGE_BYTES: usize = 16 << 10;
/// Of a heap's pieces. Nobody asks for more.
const ALIGNED: usize = 256;

/// Where collections lie. A clone is the same memory; the default is the general allocator alone.
#[derive(Clone, Default)]
pub struct Memory {
    shared: Option<Arc<Shared>>,
}

struct Shared {
    pages: Arc<Pages>,
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

    /// Large pages of its own, and who takes them ahead, if it is run: it ends with the last clone.
    #[must_use]
    pub fn on_large_pages() -> (Self, Preparer) {
        let pages = Arc::new(Pages::filling());
        let preparer = pages.preparer();
        let shared = Some(Arc::new(Shared { pages }));
        (Self { shared }, preparer)
    }

    /// Bytes of large pages in use, each piece rounded up to a few cache lines.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.shared.as_ref().map_or(0, |all| all.pages.used_bytes())
    }

    /// Bytes of large pages that are taken from the system, and not in use.
    #[must_use]
    pub fn idle_bytes(&self) -> usize {
        self.shared.as_ref().map_or(0, |all| all.pages.idle_bytes())
    }

    /// The heap that a piece of this layout comes from, if it is not the general allocator's.
    fn heap_of(&self, layout: Layout) -> Option<&Pages> {
        let shared = self.shared.as_ref()?;
        let is_large = layout.size() >= LARGE_BYTES && layout.align() <= ALIGNED;
        is_large.then_some(&*shared.pages)
    }

    /// Moves what a piece holds into one of another layout.
    ///
    /// # Safety
    /// As of [`Allocator::grow_zeroed`] or [`Allocator::shrink`], whichever way the size goes.
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
        // SAFETY: both are of so many bytes at least, and the new one is nobody else's; the old one is given back as the
        // caller vouches that it may be.
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
            Some(pages) => whole(pages.take_as_is(layout.size()), layout),
        }
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        match self.heap_of(layout) {
            None => Global.allocate_zeroed(layout),
            Some(pages) => whole(pages.take(layout.size()), layout),
        }
    }

    unsafe fn deallocate(&self, piece: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller vouches that it came from here with that layout, so it came from where this goes.
        unsafe {
            match self.heap_of(layout) {
                None => Global.deallocate(piece, layout),
                Some(pages) => pages.give(piece, layout.size()),
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
