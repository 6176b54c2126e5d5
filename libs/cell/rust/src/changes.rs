//! What records do to the index, gathered over many of them and then written together.
//!
//! The index overlaps the cache misses of all blocks that one call gives it, and takes the right to
//! write once for them; a call per event would pay both again and again. So events that follow one
//! another and do the same to the same slot become one run. What must see the index as the records
//! before it left it (a digest, the end of a slot) flushes first, and so does whoever gives up the
//! lock around the worker table: nobody sees a worker's position ahead of its set.

use kvatlas_index::{Hashes, Index, SlotId, Tier};

use crate::counters::{Count, Counters};
use crate::decode::EventList;

/// Hashes gathered before they are written, at least; they stay in the near cache until then.
const HASHES_ENOUGH: usize = 4_096;
/// Emptied event lists kept for the next records.
const SPARE_MAX: usize = 64;

/// Blocks that one slot gains or loses on one tier.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Run {
    slot: SlotId,
    tier: Tier,
    stores: bool,
    /// Where its hashes end; they begin where those of the run before it end.
    end: usize,
}

/// Changes on their way to the index.
pub(crate) struct Changes<'a> {
    index: &'a Index,
    counters: &'a Counters,
    runs: Vec<Run>,
    hashes: Vec<u64>,
    events: u64,
    spare: Vec<EventList>,
}

impl<'a> Changes<'a> {
    pub fn new(index: &'a Index, counters: &'a Counters) -> Self {
        Self {
            index,
            counters,
            runs: Vec::new(),
            hashes: Vec::new(),
            events: 0,
            spare: Vec::new(),
        }
    }

    /// These blocks come to a slot, or leave it, after all that was pushed before.
    #[inline]
    pub fn push(&mut self, slot: SlotId, tier: Tier, stores: bool, hashes: &[u64]) {
        self.hashes.extend_from_slice(hashes);
        let run = Run {
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

    /// So many events have been pushed, or needed no push; writes if enough is gathered.
    pub fn count_events(&mut self, events: usize) {
        self.events += events as u64;
        if self.hashes.len() >= HASHES_ENOUGH {
            self.flush();
        }
    }

    /// Write all that was pushed.
    pub fn flush(&mut self) {
        let mut begin = 0;
        let hashes = &self.hashes;
        let applied = self.index.apply(self.runs.drain(..).map(|run| {
            let hashes = &hashes[begin..run.end];
            begin = run.end;
            kvatlas_index::Run {
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

    /// An empty list, with room if there is one to use again.
    pub fn take_list(&mut self) -> EventList {
        self.spare.pop().unwrap_or_default()
    }

    /// A list that is done with.
    pub fn give_back(&mut self, mut list: EventList) {
        if self.spare.len() < SPARE_MAX {
            list.events.clear();
            list.hashes.clear();
            self.spare.push(list);
        }
    }
}

impl Drop for Changes<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}
