//! Primitives for real machines, where `std` and `parking_lot` have none in a form that can also be modelled.

use std::cell::Cell;
use std::sync::Arc;

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
}

/// A cell whose contents are only reached through a closure, so that a model can see when.
#[derive(Default)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    #[inline(always)]
    pub fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        access(self.0.get())
    }
}

/// Part of an object that is published by a pointer and retired later: it tells a model when the object is read and when it
/// is freed. Here it is empty.
#[derive(Default)]
pub(crate) struct Tracker(());

impl Tracker {
    #[inline(always)]
    pub fn read(&self) {}
}

/// Wraps an object to be retired; a model keeps its memory, to see who still reads it.
#[inline(always)]
pub(crate) fn track_retired<T>(item: Arc<T>) -> Arc<T> {
    item
}

/// The number of this thread. Threads are numbered by the process in the order in which they first ask.
#[inline]
pub(crate) fn thread_number() -> usize {
    static NEXT: atomic::AtomicUsize = atomic::AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<Option<usize>> = const { Cell::new(None) };
    }
    MINE.with(|mine| {
        mine.get().unwrap_or_else(|| {
            let number = NEXT.fetch_add(1, atomic::Ordering::Relaxed);
            mine.set(Some(number));
            number
        })
    })
}
