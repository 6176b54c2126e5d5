//! What the machine offers, where `std` and `parking_lot` do not say it in the form that can also be modelled.

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

/// Part of what is published by a pointer and retired through the grace period: a model sees by it when its
/// owner is read and when it ends. Here it is nothing.
#[derive(Default)]
pub(crate) struct Guarded(());

impl Guarded {
    #[inline(always)]
    pub fn read(&self) {}
}

/// To be retired; a model keeps its memory, to see who still reads it.
#[inline(always)]
pub(crate) fn leaving<T>(item: Arc<T>) -> Arc<T> {
    item
}

/// Threads are numbered in the order of their first question, by the process.
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
