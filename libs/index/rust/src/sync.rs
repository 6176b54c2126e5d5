//! Everything by which threads meet: atomics, locks, shared cells, and the number of this thread.
//!
//! One place for all modules, so that a model checker can replace the machine. With `--cfg loom` the names below are those
//! of `sync/modelled.rs`, on which `model/` runs the modules of this crate as they are, in every order that threads and
//! memory allow. In any other build they are those of `std` and `parking_lot`, and the few additions cost nothing: an empty
//! type, a constant.
//!
//! [`relaxed`] is not modelled: counts that order nothing, and that nobody needs to be fresh.

#[cfg(loom)]
mod modelled;
#[cfg(not(loom))]
mod native;

#[cfg(all(loom, test))]
pub(crate) use modelled::empty_quarantine;
#[cfg(loom)]
pub(crate) use modelled::{
    FreedMemory, HasTracker, Mutex, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard, Tracker,
    UnsafeCell, atomic, quarantine, thread_number, track_retired,
};
#[cfg(not(loom))]
pub(crate) use native::{Tracker, UnsafeCell, atomic, thread_number, track_retired};
#[cfg(not(loom))]
pub(crate) use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::OnceLock;

/// Atomics for counts alone: real ones also where the others are modelled.
pub(crate) mod relaxed {
    pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
}

/// A size that may be any number: `shipped`, or `model` where every access is explored in every order. Such a size only says
/// how much there is of something, so what holds for the small one holds for the large one.
pub(crate) const fn sized_for_models(shipped: usize, model: usize) -> usize {
    if cfg!(loom) { model } else { shipped }
}
