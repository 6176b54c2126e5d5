//! What is asked of the system for tables, in whole large pages.
//!
//! `unsafe` here: mapping, unmapping, moving and handing back memory. Sound where the callers keep what each function
//! asks of them, which [`super`] does. Checked by `pages::tests`.

#[cfg(target_os = "linux")]
pub(super) use linux::{discard, map, move_page, unmap};
#[cfg(not(target_os = "linux"))]
pub(super) use other::{discard, map, move_page, unmap};

/// Elsewhere than on Linux: large aligned pieces of the general allocator, which are kept until all of a region is free.
#[cfg(not(target_os = "linux"))]
mod other {
    use super::super::PAGE;
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

    /// # Safety
    /// None needed; as unsafe as where it does something.
    pub unsafe fn move_page(_from: NonNull<u8>, _to: NonNull<u8>) -> bool {
        false
    }
}

/// What is asked of the system, for sizes that are whole large pages.
#[cfg(target_os = "linux")]
mod linux {
    use super::super::PAGE;
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

    /// Moves a page with what is on it, so that its old address reads as zero again; whether it did. The new one had
    /// nothing but zeros.
    ///
    /// # Safety
    /// Whole pages within mappings, which nobody uses.
    pub unsafe fn move_page(from: NonNull<u8>, to: NonNull<u8>) -> bool {
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let to = to.as_ptr().cast::<libc::c_void>();
        // SAFETY: the caller vouches for both; what was mapped at the new address is replaced in the same step.
        unsafe { libc::mremap(from.as_ptr().cast(), PAGE, PAGE, how, to) == to }
    }
}
