//! Counts of what the index did inside, and of the bytes it uses.
//!
//! Tests assert by them that a history reached growth, spill and reuse; services export them.
//! All are relaxed: they order nothing.

use crate::sync::tally::{AtomicU64, AtomicUsize, Ordering::Relaxed};

macro_rules! events {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// How often each inner event has happened since the index was made.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct Events { $($(#[doc = $doc])+ pub $name: u64,)+ }

        #[derive(Default)]
        pub(crate) struct EventCounters { $(pub $name: AtomicU64,)+ }

        impl EventCounters {
            pub fn read(&self) -> Events {
                Events { $($name: self.$name.load(Relaxed),)+ }
            }
        }
    };
}

events! {
    /// A shard's table was published anew with more slots.
    growths,
    /// A shard's table was published anew at the same size, without its emptied keys.
    cleanups,
    /// A shard's table was published anew with fewer slots, or given up when empty.
    shrinks,
    /// A block's set outgrew the table slot and moved to a bitmap.
    spills,
    /// A block's set became small enough to move back.
    unspills,
    /// A bitmap was replaced by a wider one.
    widenings,
    /// A bitmap was made from memory that an earlier one had used.
    bitmap_reuses,
    /// A worker slot began another life.
    slot_reuses,
    /// A pass of the sweep reached the end of the table.
    sweeps,
    /// Memberships of dead workers removed, by the sweep or when a table was published anew.
    swept_memberships,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub events: EventCounters,
    pub table_bytes: AtomicUsize,
    pub bitmap_bytes: AtomicUsize,
    /// Removals since the epoch was last asked to move on.
    pub emptied: AtomicUsize,
    /// Records of the tables aside, of the shards that have them.
    pub aside_bytes: AtomicUsize,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

pub(crate) fn count_many(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Relaxed);
}
