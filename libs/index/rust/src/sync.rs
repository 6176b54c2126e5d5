//! Everything by which threads meet: atomics, locks, cells, and which thread this is. One place for all modules.
//!
//! So that a model checker can take the place of the machine: with `--cfg loom` the names below are those of
//! `sync/modelled.rs`, on which `model/` runs the modules of this crate as they are, in every order that threads and
//! memory allow. In any other build they are those of `std` and `parking_lot`, and the few additions are nothing:
//! re-exports, an empty type, a constant.
//!
//! What is not modelled comes from [`tally`]: counts that order nothing, on whose being fresh nobody relies.

#[cfg(loom)]
mod modelled;
#[cfg(not(loom))]
mod native;

#[cfg(all(loom, test))]
pub(crate) use modelled::fresh_graveyard;
#[cfg(loom)]
pub(crate) use modelled::{
    Grave, Guarded, HasGuard, Mutex, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard,
    UnsafeCell, atomic, bury, leaving, thread_number,
};
#[cfg(not(loom))]
pub(crate) use native::{Guarded, UnsafeCell, atomic, leaving, thread_number};
#[cfg(not(loom))]
pub(crate) use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::OnceLock;

/// Atomics for counts alone: real ones also where the others are modelled.
pub(crate) mod tally {
    pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
}

/// A size that may be any number: `shipped`, or `model` where every access is explored in every order. Every size
/// through here only says how much there is of something, so what holds for the small one holds for the large one.
pub(crate) const fn sized(shipped: usize, model: usize) -> usize {
    if cfg!(loom) { model } else { shipped }
}
