//! Large pages from the system, and back to it; and the priority of a thread that waits for them.
//!
//! `unsafe` here: mapping and handing back memory, and a call of the system that takes numbers alone. Sound because a
//! mapping is made for one caller, who vouches that what it hands back is its own and no longer used ([`crate::Pages`]).
//! Checked by `pages::tests`.

pub(crate) use os::{discard, lower_priority, map, populate, unmap};

/// A large page.
pub const PAGE: usize = 2 << 20;
/// Bytes that any page has at least.
pub const SMALL_PAGE: usize = 4096;

/// Elsewhere than on Linux: large aligned pieces of the general allocator, which are kept until all of a region is free.
#[cfg(not(target_os = "linux"))]
mod os {
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

    /// # Safety
    /// None needed; as unsafe as where it does something.
    pub unsafe fn populate(_first: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    pub fn lower_priority() {}
}

/// What is asked of the system, for sizes that are whole large pages.
#[cfg(target_os = "linux")]
mod os {
    use super::PAGE;
    use std::ptr::NonNull;

    /// A tenth of the time of whoever competes for a core.
    const NICENESS: libc::c_int = 10;

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

    /// Backs the pages with memory, as writing to them would, and changes nothing of what they hold; whether it did. From
    /// Linux 5.14.
    ///
    /// # Safety
    /// Whole pages within a mapping, which stays.
    pub unsafe fn populate(first: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the caller vouches for it.
        unsafe { libc::madvise(first.as_ptr().cast(), bytes, libc::MADV_POPULATE_WRITE) == 0 }
    }

    /// Lets all other threads go before this one. A wish.
    pub fn lower_priority() {
        // SAFETY: numbers alone; 0 is the calling thread.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) };
    }
}
