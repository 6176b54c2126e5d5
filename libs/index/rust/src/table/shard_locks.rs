//! The shards and their locks: one writer at a time for each shard, at next to no cost while there is only one in all.
//!
//! A lock per block costs as much as the block, and its atomic operations keep the cache misses of neighbouring blocks from
//! overlapping. So a writer that is alone takes all shards at once, for a window of blocks. Writers that meet share the
//! index, with a lock per shard, and go on so for a while. Readers take no lock in either case.
//!
//! `unsafe` here: the tables behind either lock. Sound because an exclusive guard holds `all` exclusively, and a shared one
//! holds `all` shared and the shard's own lock. Checked by `tests/stress.rs` (several writers and the sweep).

use crate::memory::prefetch::prefetch;
use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, UnsafeCell, sized_for_models};
use crate::table::tier_tables::TierTables;

/// Guards that are taken shared after two writers have met, before the exclusive lock is tried again.
const SHARED_AFTER_MEETING: u32 = sized_for_models(256, 1) as u32;

/// A shard: all its tables, and the lock of writers who share the index.
#[derive(Default)]
#[repr(C, align(64))]
struct Shard {
    tables: UnsafeCell<TierTables>,
    lock: Mutex<()>,
}

pub(crate) struct Shards {
    all: RwLock<()>,
    /// Guards still to be taken shared.
    shared_left: AtomicU32,
    shards: Box<[Shard]>,
}

// SAFETY: tables are only reached through `WriteGuard`, which lets one thread at a time have a shard's; they may move
// between threads (`TierTables: Send`).
unsafe impl Sync for Shards where TierTables: Send {}

/// Permission to write to any shard, one after another. Held for a window of blocks, never for long.
pub(crate) struct WriteGuard<'a> {
    shards: &'a [Shard],
    lock: Lock<'a>,
}

enum Lock<'a> {
    Exclusive(#[allow(dead_code, reason = "held for its drop")] RwLockWriteGuard<'a, ()>),
    Shared(#[allow(dead_code, reason = "held for its drop")] RwLockReadGuard<'a, ()>),
}

impl Shards {
    pub fn new(count: usize) -> Self {
        Self {
            all: RwLock::new(()),
            shared_left: AtomicU32::new(0),
            shards: (0..count).map(|_| Shard::default()).collect(),
        }
    }

    pub fn len(&self) -> usize {
        self.shards.len()
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&*self.shards)
    }

    /// For a window of blocks: an exclusive guard if nobody else is writing.
    #[inline]
    pub fn lock(&self) -> WriteGuard<'_> {
        if cfg!(feature = "without-lone-writer-windows") {
            return self.lock_shared();
        }
        let shared_left = self.shared_left.load(Relaxed);
        if shared_left == 0
            && let Some(guard) = self.all.try_write()
        {
            return WriteGuard {
                shards: &self.shards,
                lock: Lock::Exclusive(guard),
            };
        }
        self.lock_after_meeting(shared_left)
    }

    /// For work in the background, which takes its time: never keeps others from other shards.
    pub fn lock_shared(&self) -> WriteGuard<'_> {
        WriteGuard {
            shards: &self.shards,
            lock: Lock::Shared(self.all.read()),
        }
    }

    #[cold]
    fn lock_after_meeting(&self, shared_left: u32) -> WriteGuard<'_> {
        // Several threads may count down at once; any number will do.
        let left = shared_left.checked_sub(1).unwrap_or(SHARED_AFTER_MEETING);
        self.shared_left.store(left, Relaxed);
        self.lock_shared()
    }
}

impl WriteGuard<'_> {
    /// Whether nobody else can write to any shard meanwhile.
    pub fn is_exclusive(&self) -> bool {
        matches!(self.lock, Lock::Exclusive(_))
    }

    /// Starts fetching what a change reads of a shard first.
    #[inline(always)]
    pub fn prefetch(&self, shard: usize) {
        prefetch(&self.shards[shard].tables);
    }

    #[inline(always)]
    pub fn with_shard<R>(&mut self, shard: usize, write: impl FnOnce(&mut TierTables) -> R) -> R {
        let shard = &self.shards[shard];
        let _guard = (!self.is_exclusive()).then(|| shard.lock.lock());
        // SAFETY: an exclusive guard excludes every other one, or else this shard's lock is held; and `&mut self` keeps
        // `write` from entering the same shard again.
        shard
            .tables
            .with_mut(|tables| write(unsafe { &mut *tables }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(
        feature = "without-lone-writer-windows",
        ignore = "no guard is exclusive"
    )]
    fn guards_are_exclusive_until_writers_meet_and_again_some_time_after() {
        let shards = Shards::new(2);
        assert!(shards.lock().is_exclusive());
        let other = shards.lock_shared();
        assert!(!shards.lock().is_exclusive());
        drop(other);
        let shared_for = (0..).take_while(|_| !shards.lock().is_exclusive()).count();
        assert_eq!(shared_for, SHARED_AFTER_MEETING as usize);
    }
}
