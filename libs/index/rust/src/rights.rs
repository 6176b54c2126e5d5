//! Who may write to a shard: one at a time, at next to no cost while there is only one.
//!
//! A lock per block costs as much as the block, and its atomic operations keep the misses of neighbouring blocks
//! from overlapping. So whoever finds nobody else writing takes all shards at once, for a window of blocks; two who
//! meet share, with a lock per shard, and go on so for a while. Writers are the only ones concerned: readers
//! take no lock in either case.
//!
//! `unsafe` here: the tables behind either lock. Sound because `Sole` holds `all` exclusively, and `Shared`
//! holds `all` shared and the shard's own lock. Checked by `tests/stress.rs` (several writers and the sweep).

use crate::membership::Tables;
use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, UnsafeCell, sized};
use crate::table::prefetch;

/// Rights that are taken as shared after two writers have met, before all shards are asked for again.
const SHARED_AFTER_MEETING: u32 = sized(256, 1) as u32;

/// A shard: all its tables, and the lock of writers who share the index.
#[derive(Default)]
#[repr(C, align(64))]
struct Shard {
    tables: UnsafeCell<Tables>,
    lock: Mutex<()>,
}

pub(crate) struct Shards {
    all: RwLock<()>,
    meetings: AtomicU32,
    shards: Box<[Shard]>,
}

// SAFETY: tables are only reached through `Rights`, which see to it that one thread at a time has a shard's;
// they may move between threads (`Tables: Send`).
unsafe impl Sync for Shards where Tables: Send {}

/// The right to write: to any shard, one after another. Held for a window of blocks, never for long.
pub(crate) struct Rights<'a> {
    shards: &'a [Shard],
    held: Held<'a>,
}

enum Held<'a> {
    Sole(#[allow(dead_code, reason = "held for its drop")] RwLockWriteGuard<'a, ()>),
    Shared(#[allow(dead_code, reason = "held for its drop")] RwLockReadGuard<'a, ()>),
}

impl Shards {
    pub fn new(count: usize) -> Self {
        Self {
            all: RwLock::new(()),
            meetings: AtomicU32::new(0),
            shards: (0..count).map(|_| Shard::default()).collect(),
        }
    }

    pub fn len(&self) -> usize {
        self.shards.len()
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&*self.shards)
    }

    /// For a batch of blocks: sole rights if nobody else is writing.
    #[inline]
    pub fn enter(&self) -> Rights<'_> {
        let meetings = self.meetings.load(Relaxed);
        if meetings == 0
            && let Some(guard) = self.all.try_write()
        {
            return Rights {
                shards: &self.shards,
                held: Held::Sole(guard),
            };
        }
        self.meet(meetings)
    }

    /// For work in the background, which takes its time: never keeps others from other shards.
    pub fn enter_shared(&self) -> Rights<'_> {
        Rights {
            shards: &self.shards,
            held: Held::Shared(self.all.read()),
        }
    }

    #[cold]
    fn meet(&self, meetings: u32) -> Rights<'_> {
        // How many are left is a guess that several threads make at once; any guess will do.
        let left = meetings.checked_sub(1).unwrap_or(SHARED_AFTER_MEETING);
        self.meetings.store(left, Relaxed);
        self.enter_shared()
    }
}

impl Rights<'_> {
    /// Whether nobody else can write to any shard meanwhile.
    pub fn is_sole(&self) -> bool {
        matches!(self.held, Held::Sole(_))
    }

    /// Starts fetching what a change reads of a shard first.
    #[inline(always)]
    pub fn prefetch(&self, shard: usize) {
        prefetch(&self.shards[shard].tables);
    }

    #[inline(always)]
    pub fn with<R>(&mut self, shard: usize, write: impl FnOnce(&mut Tables) -> R) -> R {
        let shard = &self.shards[shard];
        let _guard = (!self.is_sole()).then(|| shard.lock.lock());
        // SAFETY: sole rights exclude every other `Rights`, or else this shard's lock is held; and
        // `&mut self` keeps `write` from entering the same shard again.
        shard
            .tables
            .with_mut(|tables| write(unsafe { &mut *tables }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_sole_until_writers_meet_and_again_some_time_after() {
        let shards = Shards::new(2);
        assert!(shards.enter().is_sole());
        let other = shards.enter_shared();
        assert!(!shards.enter().is_sole());
        drop(other);
        let shared_for = (0..).take_while(|_| !shards.enter().is_sole()).count();
        assert_eq!(shared_for, SHARED_AFTER_MEETING as usize);
    }
}
