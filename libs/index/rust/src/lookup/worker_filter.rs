//! The workers that a look-up may name: a filter that is made once and kept between queries.
//!
//! A filter lists workers or slots; a search needs one bit per slot number. These bits hold for one version of the answer
//! order, so they are cached with the buffers of look-ups, and made again from the list when the order has changed. So a
//! filter never comes to include the next owner of a slot. A worker that was named by its key is still included when it gets
//! a fresh slot.

use crate::bits;
use crate::sync::relaxed::{AtomicU64, Ordering};
use crate::types::{SlotId, WorkerKey, WorkerSlot};
use crate::workers::view::WorkerView;
use crate::workers::worker_slots::WorkerSlots;

/// Filters whose bits are cached. If more take turns, bits are made again each time.
const CACHED_FILTERS: usize = 4;

/// The workers that a look-up may name. All others do not count, neither as matches nor toward the limit.
///
/// Make it once and keep it; threads may share it. The first look-up after a change of the workers turns it into bits, at a
/// cost that grows with the filter and the fleet. Later look-ups with the same buffers reuse the bits. Naming a worker that
/// the index does not know is no error. With an empty filter nobody matches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerFilter {
    /// Unique in the process; clones have the same.
    id: u64,
    included: Included,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Included {
    /// Ascending, each once.
    Workers(Box<[WorkerKey]>),
    Slots(Box<[SlotId]>),
}

impl WorkerFilter {
    /// Includes these workers, in whatever slots they are.
    #[must_use]
    pub fn of_workers(workers: impl IntoIterator<Item = WorkerKey>) -> Self {
        let mut workers: Vec<_> = workers.into_iter().collect();
        workers.sort_unstable();
        workers.dedup();
        Self::new(Included::Workers(workers.into()))
    }

    /// Includes these slots, in these generations: the next owner of a slot is not included.
    #[must_use]
    pub fn of_slots(slots: impl IntoIterator<Item = SlotId>) -> Self {
        Self::new(Included::Slots(slots.into_iter().collect()))
    }

    fn new(included: Included) -> Self {
        // Bits are cached by id, so an id is never given twice. From 1.
        static FILTERS: AtomicU64 = AtomicU64::new(0);
        Self {
            id: FILTERS.fetch_add(1, Ordering::Relaxed) + 1,
            included,
        }
    }

    /// One bit for each slot that may be named, of the slots that the view knows.
    fn resolve(&self, workers: &WorkerSlots, view: &WorkerView, bits: &mut Vec<u64>) {
        bits.clear();
        bits.resize(view.matchable.len(), 0);
        let mut include = |slot: WorkerSlot| {
            if slot.word() < bits.len() {
                bits::insert(bits, slot);
            }
        };
        match &self.included {
            Included::Workers(included) => {
                // Both ascend by worker: one walk over the two.
                let mut wanted = included.iter().peekable();
                for (owner, &slot) in view.order.owner.iter().zip(&view.order.slot) {
                    while wanted.next_if(|&worker| worker < owner).is_some() {}
                    match wanted.peek() {
                        Some(&worker) if worker == owner => include(slot),
                        Some(_) => {}
                        None => break,
                    }
                }
            }
            // A slot that the view has as matchable cannot be allocated again while the caller is pinned. So a handle
            // that is still current names the owner that the view has.
            Included::Slots(slots) => slots
                .iter()
                .filter(|&&id| workers.is_writable(id))
                .for_each(|id| include(id.slot)),
        }
    }
}

/// Bits of the filters used last, by filter and version of the answer order.
#[derive(Default)]
pub(crate) struct FilterCache([Resolved; CACHED_FILTERS]);

#[derive(Default)]
struct Resolved {
    filter: u64,
    version: u64,
    bits: Vec<u64>,
}

impl FilterCache {
    /// The filter as one bit per slot; as wide as the view.
    pub fn bits(
        &mut self,
        filter: &WorkerFilter,
        workers: &WorkerSlots,
        view: &WorkerView,
    ) -> &[u64] {
        let cached = &mut self.0[filter.id as usize % CACHED_FILTERS];
        let wanted = (filter.id, view.order.version);
        // The width as well: a slot may have become matchable, for the first time, without a new version.
        if (cached.filter, cached.version) != wanted || cached.bits.len() != view.matchable.len() {
            filter.resolve(workers, view, &mut cached.bits);
            (cached.filter, cached.version) = wanted;
        }
        &cached.bits
    }
}
