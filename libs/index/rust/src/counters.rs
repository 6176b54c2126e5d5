//! Counts of what happened inside the index, and of the bytes it uses.
//!
//! Tests assert by them that a history reached growth, bitmaps and reuse. All are relaxed: they order nothing.

use crate::sync::relaxed::{AtomicU64, AtomicUsize, Ordering::Relaxed};

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
    /// A shard's table was copied to a larger array.
    growths,
    /// A shard's table was copied to an array of the same size, without its tombstones.
    cleanups,
    /// A shard's table was copied to a smaller array, or given up when empty.
    shrinks,
    /// A block's set outgrew its set word and moved to a bitmap.
    bitmaps_made,
    /// A block's set became small enough to move back to a set word.
    bitmaps_inlined,
    /// A bitmap was replaced by a wider one.
    bitmaps_widened,
    /// A bitmap was made in memory that an earlier one had used.
    bitmap_reuses,
    /// A worker slot was allocated again.
    slot_reuses,
    /// A pass of the sweep reached the end of the table.
    sweeps,
    /// Memberships of retired slots removed, by the sweep or when a table was resized.
    swept_memberships,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub events: EventCounters,
    pub table_bytes: AtomicUsize,
    pub bitmap_bytes: AtomicUsize,
    /// Removals since the epoch was last advanced for them.
    pub removals: AtomicUsize,
    /// Records of the side tables, of the shards that have them.
    pub side_table_bytes: AtomicUsize,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

pub(crate) fn count_many(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Relaxed);
}
