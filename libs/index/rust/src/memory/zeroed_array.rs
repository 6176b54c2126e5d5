//! A fixed array of zeroed atomics on a cache line, readable through raw pointers while its owner moves about.
//!
//! Tables and bitmaps lie in such arrays. The owner of one moves it into the limbo ([`crate::memory::reclamation`]) while
//! look-ups still read it; a `Box<[T]>` that moves would assert unique access to memory that is shared.
//!
//! `unsafe` here: allocation by hand. Sound because the memory is allocated once, with a non-zero layout or from
//! [`kvatlas_pages`]; is only handed out as shared references to types of atomics (`Zeroable`), for which zero bytes are
//! valid; and is freed once, in `drop`. Checked by `zeroed_array::tests` and, through everything above it, by
//! `tests/stress.rs`.

use crate::sync::atomic::AtomicU64;
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

use kvatlas_pages::PageHeap;

const CACHE_LINE_BYTES: usize = 64;
/// Smaller arrays come from the general allocator: they gain little, and an index with few blocks should take no large page.
const LARGE_PAGES_FROM_BYTES: usize = 1 << 10;
/// A model checks every allocation by itself, and Miri knows no memory mappings.
const USES_LARGE_PAGES: bool = cfg!(not(any(loom, miri)));

/// Types made of atomics alone.
///
/// # Safety
/// All-zero bytes are a valid value, the type needs no drop, is not zero-sized_for_models, and is `Sync`.
pub(crate) unsafe trait Zeroable: Sync {
    /// Makes a zero value: a model's atomics are not made of zero bytes.
    #[cfg(loom)]
    fn zero() -> Self;
    /// Tells the model that the memory is freed.
    #[cfg(loom)]
    fn mark_freed(&mut self);
}

// SAFETY: an integer behind an atomic; zero is a value like any other.
unsafe impl Zeroable for AtomicU64 {
    #[cfg(loom)]
    fn zero() -> Self {
        Self::new(0)
    }
    #[cfg(loom)]
    fn mark_freed(&mut self) {
        Self::mark_freed(self);
    }
}

pub(crate) struct ZeroedArray<T: Zeroable> {
    first: NonNull<T>,
    len: usize,
    /// The heap it came from; none if that is the general allocator.
    #[cfg_attr(loom, allow(dead_code, reason = "models use the general allocator"))]
    pages: Option<Arc<PageHeap>>,
}

// SAFETY: the array owns its memory, and all access to it is through `&T` with `T: Sync`.
unsafe impl<T: Zeroable> Send for ZeroedArray<T> {}
// SAFETY: as above.
unsafe impl<T: Zeroable> Sync for ZeroedArray<T> {}

impl<T: Zeroable> ZeroedArray<T> {
    /// An array of `len` zeroed elements; `len` must not be 0.
    pub fn new(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: `layout` is not zero-sized_for_models, since neither `T` nor `len` is.
        let memory = unsafe { alloc_zeroed(layout) };
        Self::over(memory.cast(), len, None)
    }

    /// As [`Self::new`], on large pages of `pages` unless the array is small.
    pub fn new_in(pages: &Arc<PageHeap>, len: usize) -> Self {
        let layout = Self::layout(len);
        if !USES_LARGE_PAGES || layout.size() < LARGE_PAGES_FROM_BYTES {
            return Self::new(len);
        }
        let memory = pages.allocate(layout.size());
        let first = memory.map_or(std::ptr::null_mut(), |first| first.as_ptr().cast());
        Self::over(first, len, Some(Arc::clone(pages)))
    }

    fn over(first: *mut T, len: usize, pages: Option<Arc<PageHeap>>) -> Self {
        let Some(first) = NonNull::new(first) else {
            handle_alloc_error(Self::layout(len))
        };
        #[cfg(loom)]
        for at in 0..len {
            // SAFETY: within the memory just allocated, which nobody else knows.
            unsafe { first.add(at).write(T::zero()) };
        }
        Self { first, len, pages }
    }

    /// The first element. Valid until the array is dropped, wherever the array itself moves.
    pub fn first(&self) -> NonNull<T> {
        self.first
    }

    pub fn as_slice(&self) -> &[T] {
        // SAFETY: `first` points to `len` initialised elements that live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    fn layout(len: usize) -> Layout {
        assert!(len > 0, "an array of atomics needs a length");
        Layout::array::<T>(len)
            .and_then(|layout| layout.align_to(CACHE_LINE_BYTES))
            .unwrap_or_else(|_| panic!("an array of {len} elements exceeds the address space"))
    }
}

#[cfg(not(loom))]
impl<T: Zeroable> Drop for ZeroedArray<T> {
    fn drop(&mut self) {
        let layout = Self::layout(self.len);
        // SAFETY: taken from there with this very layout, and dropped once.
        unsafe {
            match &self.pages {
                Some(pages) => pages.free(self.first.cast(), layout.size()),
                None => std::alloc::dealloc(self.first.as_ptr().cast(), layout),
            }
        }
    }
}

#[cfg(loom)]
impl<T: Zeroable> Drop for ZeroedArray<T> {
    fn drop(&mut self) {
        for at in 0..self.len {
            // SAFETY: within the array. The owner is its last user, as the model checks.
            unsafe { (*self.first.as_ptr().add(at)).mark_freed() };
        }
        let memory = self.first.as_ptr().cast();
        crate::sync::quarantine(crate::sync::FreedMemory::new(
            memory,
            Self::layout(self.len),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn starts_as_zeros_on_a_cache_line_and_keeps_its_place_when_moved() {
        let array = ZeroedArray::<AtomicU64>::new(37);
        let first = array.first();
        assert_eq!(first.as_ptr() as usize % CACHE_LINE_BYTES, 0);
        assert!(array.as_slice().iter().all(|word| word.load(Relaxed) == 0));
        array.as_slice()[36].store(9, Relaxed);
        let moved = Box::new(array);
        assert_eq!(moved.first(), first);
        assert_eq!(
            (
                moved.len(),
                moved.bytes(),
                moved.as_slice()[36].load(Relaxed)
            ),
            (37, 296, 9)
        );
    }
}
