//! A fixed array that starts as zero bytes, lies on a cache line, and may be read through raw
//! pointers while its owner moves about.
//!
//! `unsafe` here: allocation by hand, because a `Box<[T]>` that moves (into the limbo, while
//! look-ups still read it) would assert unique access to memory that is shared. Sound because the
//! memory is allocated once, with a non-zero layout or from [`kvatlas_pages`], only handed out as shared references to types of
//! atomics (`Zeroable`), for which zero bytes are valid, and freed once, in `drop`.
//! Checked by `zeroed::tests` and, through everything above it, by `tests/stress.rs`.

use crate::sync::atomic::AtomicU64;
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

use kvatlas_pages::Pages;

const LINE_BYTES: usize = 64;
/// Below it there is little to gain, and an index with few blocks should not take whole pages.
const SMALLEST_IN_PAGES: usize = 1 << 10;
/// A model counts every allocation by itself, and Miri knows no mappings.
const IN_PAGES: bool = cfg!(not(any(loom, miri)));

/// Types made of atomics alone.
///
/// # Safety
/// All-zero bytes are a valid value, the type needs no drop, is not zero-sized, and is `Sync`.
pub(crate) unsafe trait Zeroable: Sync {
    /// A model's atomics are not made of zero bytes, but one by one.
    #[cfg(loom)]
    fn zero() -> Self;
    /// Their memory is freed.
    #[cfg(loom)]
    fn end(&mut self);
}

// SAFETY: an integer behind an atomic; zero is a value like any other.
unsafe impl Zeroable for AtomicU64 {
    #[cfg(loom)]
    fn zero() -> Self {
        Self::new(0)
    }
    #[cfg(loom)]
    fn end(&mut self) {
        Self::end(self);
    }
}

pub(crate) struct Zeroed<T: Zeroable> {
    first: NonNull<T>,
    len: usize,
    /// Where it came from, if not from the general allocator.
    #[cfg_attr(loom, allow(dead_code, reason = "in models all come from there"))]
    pages: Option<Arc<Pages>>,
}

// SAFETY: the array owns its memory, and all access to it is through `&T` with `T: Sync`.
unsafe impl<T: Zeroable> Send for Zeroed<T> {}
// SAFETY: as above.
unsafe impl<T: Zeroable> Sync for Zeroed<T> {}

impl<T: Zeroable> Zeroed<T> {
    /// An array of `len` zeroed elements; `len` must not be 0.
    pub fn new(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: `layout` is not zero-sized, since neither `T` nor `len` is.
        let memory = unsafe { alloc_zeroed(layout) };
        Self::over(memory.cast(), len, None)
    }

    /// The same out of `pages`; a small one from the general allocator.
    pub fn new_in(pages: &Arc<Pages>, len: usize) -> Self {
        let layout = Self::layout(len);
        if !IN_PAGES || layout.size() < SMALLEST_IN_PAGES {
            return Self::new(len);
        }
        let memory = pages.take(layout.size());
        let first = memory.map_or(std::ptr::null_mut(), |first| first.as_ptr().cast());
        Self::over(first, len, Some(Arc::clone(pages)))
    }

    fn over(first: *mut T, len: usize, pages: Option<Arc<Pages>>) -> Self {
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
            .and_then(|layout| layout.align_to(LINE_BYTES))
            .unwrap_or_else(|_| panic!("an array of {len} elements exceeds the address space"))
    }
}

#[cfg(not(loom))]
impl<T: Zeroable> Drop for Zeroed<T> {
    fn drop(&mut self) {
        let layout = Self::layout(self.len);
        // SAFETY: taken from there with this very layout, and dropped once.
        unsafe {
            match &self.pages {
                Some(pages) => pages.give(self.first.cast(), layout.size()),
                None => std::alloc::dealloc(self.first.as_ptr().cast(), layout),
            }
        }
    }
}

#[cfg(loom)]
impl<T: Zeroable> Drop for Zeroed<T> {
    fn drop(&mut self) {
        for at in 0..self.len {
            // SAFETY: within the array, of which the owner is the last user; the model checks that it is.
            unsafe { (*self.first.as_ptr().add(at)).end() };
        }
        let memory = self.first.as_ptr().cast();
        crate::sync::bury(crate::sync::Grave::new(memory, Self::layout(self.len)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn starts_as_zeros_on_a_cache_line_and_keeps_its_place_when_moved() {
        let array = Zeroed::<AtomicU64>::new(37);
        let first = array.first();
        assert_eq!(first.as_ptr() as usize % LINE_BYTES, 0);
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
