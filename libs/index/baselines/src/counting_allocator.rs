//! An allocator that counts the bytes in use, so that all designs' memory is measured alike.
//!
//! The system allocator's own headers and rounding, 8 to 16 bytes per allocation, are not in the count.
//!
//! `unsafe` here: the allocator. Sound because every call goes to the system's allocator unchanged, with its layout, and the
//! count is an atomic beside it. Checked by the test below.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// An allocator to be declared as the `#[global_allocator]` of a benchmark.
#[derive(Default)]
pub struct CountingAllocator {
    bytes: AtomicUsize,
}

impl CountingAllocator {
    /// Nothing allocated yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            bytes: AtomicUsize::new(0),
        }
    }

    /// Bytes allocated and not freed.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

// SAFETY: all four calls are the system allocator's own.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.bytes.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.bytes.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        self.bytes.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises, passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.bytes.fetch_add(size, Ordering::Relaxed);
        self.bytes.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises, passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::CountingAllocator;
    use std::alloc::{GlobalAlloc, Layout};

    #[test]
    fn the_count_follows_allocations_growth_and_frees() {
        let counting = CountingAllocator::new();
        let small = Layout::from_size_align(100, 8).unwrap();
        let large = Layout::from_size_align(300, 8).unwrap();
        // SAFETY: each block is used with the layout it has, and freed once.
        unsafe {
            let first = counting.alloc(small);
            let second = counting.alloc_zeroed(small);
            assert_eq!(counting.bytes(), 200);
            let first = counting.realloc(first, small, 300);
            assert_eq!(counting.bytes(), 400);
            counting.dealloc(first, large);
            counting.dealloc(second, small);
        }
        assert_eq!(counting.bytes(), 0);
    }
}
