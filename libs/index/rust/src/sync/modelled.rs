//! The replacement under `loom`, which runs a test in every order of its threads' accesses, and lets every load return
//! every value that the memory model allows.
//!
//! `loom` and not a scheduler of threads alone (such as `shuttle`), because the question is as much which orderings are
//! needed as which interleavings are right: only `loom` lets a relaxed load be late. Three things are added to it:
//!
//! - `loom` takes a `SeqCst` load for an acquiring one, which is too weak for the epoch and its counters. Here such a load
//!   always has the newest value and acquires it, without publishing anything of its own. This is its meaning where, as
//!   there, the stores that it must not miss are `SeqCst` read-modify-writes: in one interleaving the accesses have one
//!   order.
//! - `loom` does not know that memory is freed. Here an object dropped after a grace period must have been read last
//!   *before* that (in the sense of happens-before). It goes into a quarantine, and may not be touched again.
//! - A `try_write` sees locks that are held, and there is a `OnceLock`, which `loom` lacks.
//!
//! `unsafe` here: cells shared between threads, and memory kept past its end. Sound because all threads of a model are one
//! thread of the machine, and memory is put into quarantine by its one owner, who does not use it again.

use std::alloc::{Layout, dealloc};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

thread_local! {
    /// Objects dropped in this run of the model. All its threads are one thread of the machine.
    static QUARANTINE: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Keeps memory that the run may still touch by mistake.
pub(crate) fn quarantine(item: impl Any) {
    QUARANTINE.with_borrow_mut(|graves| graves.push(Box::new(item)));
}

/// Memory to be freed when the run is over.
pub(crate) struct FreedMemory {
    memory: *mut u8,
    layout: Layout,
}

impl FreedMemory {
    pub fn new(memory: *mut u8, layout: Layout) -> Self {
        Self { memory, layout }
    }
}

impl Drop for FreedMemory {
    fn drop(&mut self) {
        // SAFETY: made by the one owner of memory of that layout, when it ended.
        unsafe { dealloc(self.memory, self.layout) };
    }
}

/// Frees the quarantine; to be called first in every run.
#[cfg(test)]
pub(crate) fn empty_quarantine() {
    QUARANTINE.with_borrow_mut(Vec::clear);
}

pub(crate) mod atomic {
    use super::Liveness;
    use loom::sync::atomic as modelled;
    pub(crate) use loom::sync::atomic::AtomicPtr;
    pub(crate) use std::sync::atomic::Ordering;

    macro_rules! integer {
        ($name:ident, $int:ty) => {
            #[derive(Default)]
            pub(crate) struct $name {
                value: modelled::$name,
                alive: Liveness,
            }

            #[allow(dead_code, reason = "the same surface for every width")]
            impl $name {
                #[track_caller]
                pub fn new(value: $int) -> Self {
                    Self {
                        value: modelled::$name::new(value),
                        alive: Liveness::default(),
                    }
                }

                #[track_caller]
                pub fn load(&self, order: Ordering) -> $int {
                    self.alive.check();
                    if order == Ordering::SeqCst {
                        // An exchange that cannot succeed has the newest value and stores nothing.
                        let newest = self.value.compare_exchange(
                            <$int>::MAX,
                            <$int>::MAX,
                            Ordering::Acquire,
                            Ordering::Acquire,
                        );
                        newest.unwrap_or_else(|value| value)
                    } else {
                        self.value.load(order)
                    }
                }

                #[track_caller]
                pub fn store(&self, value: $int, order: Ordering) {
                    self.alive.check();
                    self.value.store(value, order);
                }

                #[track_caller]
                pub fn fetch_add(&self, by: $int, order: Ordering) -> $int {
                    self.alive.check();
                    self.value.fetch_add(by, order)
                }

                #[track_caller]
                pub fn fetch_sub(&self, by: $int, order: Ordering) -> $int {
                    self.alive.check();
                    self.value.fetch_sub(by, order)
                }

                #[track_caller]
                pub fn fetch_or(&self, bits: $int, order: Ordering) -> $int {
                    self.alive.check();
                    self.value.fetch_or(bits, order)
                }

                #[track_caller]
                pub fn fetch_and(&self, bits: $int, order: Ordering) -> $int {
                    self.alive.check();
                    self.value.fetch_and(bits, order)
                }

                #[track_caller]
                pub fn fetch_xor(&self, bits: $int, order: Ordering) -> $int {
                    self.alive.check();
                    self.value.fetch_xor(bits, order)
                }

                #[track_caller]
                pub fn compare_exchange(
                    &self,
                    current: $int,
                    new: $int,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$int, $int> {
                    self.alive.check();
                    self.value.compare_exchange(current, new, success, failure)
                }

                /// Its memory is freed: every access must have happened before.
                #[track_caller]
                pub fn mark_freed(&mut self) {
                    self.value.with_mut(|_| ());
                    self.alive.mark_freed();
                }
            }
        };
    }

    integer!(AtomicU32, u32);
    integer!(AtomicU64, u64);
    integer!(AtomicUsize, usize);
}

/// Whether the memory that it lies in may still be read.
#[derive(Default)]
struct Liveness {
    freed: Cell<bool>,
}

impl Liveness {
    #[track_caller]
    fn check(&self) {
        assert!(!self.freed.get(), "memory was used after it was freed");
    }

    fn mark_freed(&self) {
        self.freed.set(true);
    }
}

// SAFETY: all threads of a model are one thread of the machine, and nothing switches between them in `Liveness`.
unsafe impl Sync for Liveness {}

#[derive(Default)]
pub(crate) struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    #[track_caller]
    pub fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        self.0.with_mut(access)
    }
}

/// Part of an object that is published by a pointer and retired later.
#[derive(Default)]
pub(crate) struct Tracker {
    reads: loom::cell::UnsafeCell<()>,
    alive: Liveness,
}

impl Tracker {
    #[track_caller]
    pub fn read(&self) {
        self.alive.check();
        self.reads.with(|_| ());
    }

    /// Its owner is freed, or changed as if nobody could read it: every read must have happened before.
    #[track_caller]
    pub fn mark_freed(&self) {
        self.reads.with_mut(|_| ());
        self.alive.mark_freed();
    }
}

// SAFETY: as for `Liveness`; the cell holds nothing.
unsafe impl Sync for Tracker {}

/// An object that contains a [`Tracker`].
pub(crate) trait HasTracker {
    fn tracker(&self) -> &Tracker;
}

/// Wraps an object to be retired: when the wrapper is dropped, nobody may read the object any more.
pub(crate) fn track_retired<T: HasTracker + 'static>(item: Arc<T>) -> RetiredArc<T> {
    RetiredArc(Some(item))
}

pub(crate) struct RetiredArc<T: HasTracker + 'static>(Option<Arc<T>>);

impl<T: HasTracker + 'static> Drop for RetiredArc<T> {
    fn drop(&mut self) {
        if let Some(item) = self.0.take() {
            if !std::thread::panicking() {
                item.tracker().mark_freed();
            }
            quarantine(item);
        }
    }
}

#[derive(Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    #[track_caller]
    pub fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        // A model ends with its first panic, so no lock outlives one.
        self.0.lock().unwrap()
    }
}

/// `loom`'s own lock, with one addition. `loom` does not take the release of a lock for an event, which is right for threads
/// that wait for it; but a `try_write` that comes before the release fails. Both touch `seen`, so that each order is among
/// those that are explored.
pub(crate) struct RwLock<T> {
    lock: loom::sync::RwLock<T>,
    seen: Seen,
}

#[derive(Default)]
struct Seen(loom::sync::atomic::AtomicU32);

impl Seen {
    fn touch(&self) {
        if !std::thread::panicking() {
            self.0.fetch_add(1, atomic::Ordering::Relaxed);
        }
    }
}

/// Held until dropped; `seen` is touched before the lock is released.
pub(crate) struct Held<'a, G> {
    seen: &'a Seen,
    _guard: G,
}

pub(crate) type RwLockReadGuard<'a, T> = Held<'a, loom::sync::RwLockReadGuard<'a, T>>;
pub(crate) type RwLockWriteGuard<'a, T> = Held<'a, loom::sync::RwLockWriteGuard<'a, T>>;

impl<G> Drop for Held<'_, G> {
    fn drop(&mut self) {
        self.seen.touch();
    }
}

impl<T> RwLock<T> {
    pub fn new(value: T) -> Self {
        Self {
            lock: loom::sync::RwLock::new(value),
            seen: Seen::default(),
        }
    }

    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        Held {
            seen: &self.seen,
            _guard: self.lock.read().unwrap(),
        }
    }

    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.seen.touch();
        let guard = self.lock.try_write().ok()?;
        Some(Held {
            seen: &self.seen,
            _guard: guard,
        })
    }
}

/// A value written once, under a lock. A thread that sees that it is written sees the value.
pub(crate) struct OnceLock<T> {
    written: atomic::AtomicU32,
    lock: Mutex<()>,
    value: std::sync::OnceLock<T>,
}

impl<T> OnceLock<T> {
    pub fn new() -> Self {
        Self {
            written: atomic::AtomicU32::new(0),
            lock: Mutex::new(()),
            value: std::sync::OnceLock::new(),
        }
    }

    pub fn get(&self) -> Option<&T> {
        if self.written.load(atomic::Ordering::Acquire) == 0 {
            return None;
        }
        self.value.get()
    }

    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let _one_at_a_time = self.lock.lock();
        let value = self.value.get_or_init(make);
        self.written.store(1, atomic::Ordering::Release);
        value
    }
}

/// The number that `loom` gave the thread: the test's own is 0, then in the order of spawning.
pub(crate) fn thread_number() -> usize {
    let mut number = Number(0);
    loom::thread::current().id().hash(&mut number);
    number.0
}

/// A hasher that keeps the last number it is given: of a thread's id, that is the thread's number.
struct Number(usize);

impl Hasher for Number {
    fn write(&mut self, _: &[u8]) {}

    fn write_usize(&mut self, number: usize) {
        self.0 = number;
    }

    fn finish(&self) -> u64 {
        self.0 as u64
    }
}
