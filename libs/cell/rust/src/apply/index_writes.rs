//! Gathers the changes of many records and writes them to the index together.
//!
//! One call of the index overlaps the cache misses of all its blocks, and takes the write lock once. A call
//! per event would pay both each time. So consecutive events that do the same to the same slot become one run.
//!
//! Code that reads the index as of the last record (a digest, the end of a slot) flushes first. So does every holder of
//! the worker table's lock before it gives up the lock, so a worker's position is never ahead of its set.

use kvatlas_index::{Hashes, Index, SlotId, Tier};

use super::decode::EventList;
use crate::counters::{Count, Counters};

/// Number of hashes after which a write is due: they still fit the first-level cache.
const HASHES_BEFORE_WRITE: usize = 4_096;
/// Emptied event lists that are kept for reuse.
const SPARE_LISTS_MAX: usize = 64;

/// Blocks that one slot gains or loses on one tier.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PendingRun {
    slot: SlotId,
    tier: Tier,
    stores: bool,
    /// End of its hashes; they begin at the end of the run before it.
    end: usize,
}

/// Changes on their way to the index. Dropping it writes them.
pub(crate) struct IndexWrites<'a> {
    index: &'a Index,
    counters: &'a Counters,
    runs: Vec<PendingRun>,
    hashes: Vec<u64>,
    events: u64,
    spare_lists: Vec<EventList>,
}

impl<'a> IndexWrites<'a> {
    pub fn new(index: &'a Index, counters: &'a Counters) -> Self {
        Self {
            index,
            counters,
            runs: Vec::new(),
            hashes: Vec::new(),
            events: 0,
            spare_lists: Vec::new(),
        }
    }

    /// Adds a change: `slot` gains these blocks on `tier`, or loses them if not `stores`.
    #[inline]
    pub fn push(&mut self, slot: SlotId, tier: Tier, stores: bool, hashes: &[u64]) {
        self.hashes.extend_from_slice(hashes);
        let run = PendingRun {
            slot,
            tier,
            stores,
            end: self.hashes.len(),
        };
        match self.runs.last_mut() {
            Some(last) if (last.slot, last.tier, last.stores) == (slot, tier, stores) => {
                *last = run;
            }
            _ => self.runs.push(run),
        }
    }

    /// Counts applied events, and writes once enough hashes are gathered.
    pub fn count_events(&mut self, events: usize) {
        self.events += events as u64;
        if self.hashes.len() >= HASHES_BEFORE_WRITE {
            self.flush();
        }
    }

    /// Writes all gathered changes.
    pub fn flush(&mut self) {
        let mut begin = 0;
        let hashes = &self.hashes;
        let applied = self.index.apply(self.runs.drain(..).map(|run| {
            let hashes = &hashes[begin..run.end];
            begin = run.end;
            kvatlas_index::Change {
                slot: run.slot,
                tier: run.tier,
                stores: run.stores,
                hashes: Hashes::Sequences(hashes),
            }
        }));
        self.hashes.clear();
        let counts = [
            (Count::HashesStored, applied.stored as u64),
            (Count::HashesRemoved, applied.removed as u64),
            (Count::EventsApplied, std::mem::take(&mut self.events)),
        ];
        for (count, by) in counts {
            if by > 0 {
                self.counters.add_many(count, by);
            }
        }
    }

    /// An empty event list, if possible one with memory.
    pub fn take_list(&mut self) -> EventList {
        self.spare_lists.pop().unwrap_or_default()
    }

    /// Takes back an event list for reuse.
    pub fn return_list(&mut self, mut list: EventList) {
        if self.spare_lists.len() < SPARE_LISTS_MAX {
            list.events.clear();
            list.hashes.clear();
            self.spare_lists.push(list);
        }
    }
}

impl Drop for IndexWrites<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}
