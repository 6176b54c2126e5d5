//! Calls to the system: large pages from it and back to it, and the priority of a thread.
//!
//! `unsafe` here: mapping and releasing memory, and a system call that takes numbers alone. Sound because a mapping is made
//! for one caller, who vouches that what it releases is its own and no longer used ([`crate::PageHeap`]).
//! Checked by `heap::tests`.

pub(crate) use os::{discard, lower_priority, map, populate, unmap};

/// Bytes of a large page.
pub const PAGE: usize = 2 << 20;
/// Bytes of the smallest page.
pub const SMALL_PAGE: usize = 4096;

/// Other systems than Linux: large aligned pieces of the general allocator, kept until all of a region is free.
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
    /// Nothing is required; unsafe only because it is so on Linux.
    pub unsafe fn discard(_first: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    /// # Safety
    /// Nothing is required; unsafe only because it is so on Linux.
    pub unsafe fn populate(_first: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    pub fn lower_priority() {}
}

/// Linux. Sizes are whole large pages.
#[cfg(target_os = "linux")]
mod os {
    use super::PAGE;
    use std::ptr::NonNull;

    /// Leaves nine tenths of the time to threads that compete for a core.
    const NICENESS: libc::c_int = 10;

    /// Zeroed memory, aligned to a large page, and made of large pages if there are any.
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
            // A hint: without large pages it is only slower.
            let advice = if cfg!(feature = "without-large-pages") {
                libc::MADV_NOHUGEPAGE
            } else {
                libc::MADV_HUGEPAGE
            };
            libc::madvise(first.cast(), bytes, advice);
            NonNull::new(first)
        }
    }

    /// # Safety
    /// Mapped by [`map`] with that size; not used any more.
    pub unsafe fn unmap(first: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller vouches for it.
        unsafe { libc::munmap(first.as_ptr().cast(), bytes) };
    }

    /// Releases the memory and keeps the addresses, which read as zero afterwards; returns whether it did.
    ///
    /// # Safety
    /// Whole pages within a mapping, which nobody uses.
    pub unsafe fn discard(first: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the caller vouches for it.
        unsafe { libc::madvise(first.as_ptr().cast(), bytes, libc::MADV_DONTNEED) == 0 }
    }

    /// Makes the pages resident, as writing to them would, and keeps their contents; returns whether it did. Needs Linux 5.14.
    ///
    /// # Safety
    /// Whole pages within a mapping, which stays.
    pub unsafe fn populate(first: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the caller vouches for it.
        unsafe { libc::madvise(first.as_ptr().cast(), bytes, libc::MADV_POPULATE_WRITE) == 0 }
    }

    /// Lowers the priority of the calling thread. A hint.
    pub fn lower_priority() {
        // SAFETY: numbers alone; 0 is the calling thread.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) };
    }
}
