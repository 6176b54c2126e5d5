//! Which workers a look-up may name: a filter that is made once and kept between queries.
//!
//! A filter says whom it means, by worker or by life of a slot; bits by slot number are what a search needs. The
//! bits belong to one edition of the roster, so they are kept with the buffers of look-ups and made anew, from
//! whom the filter means, when the roster has changed since. So a filter never comes to mean the
//! next owner of a slot, and a worker that gets a fresh slot is still meant if it was named by its key.

use crate::roster::{Roster, View};
use crate::sync::tally::{AtomicU64, Ordering};
use crate::types::{SlotId, WorkerKey};

/// Filters whose bits are kept at a time; more that take turns are made anew each time.
const KEPT_FILTERS: usize = 4;

/// The workers that a look-up may name; all others do not count, neither as matches nor toward the limit.
///
/// Make it once and keep it; it may be shared between threads. The first look-up after the roster changed
/// turns it into bits, at a cost that grows with the filter and the roster; those that follow with the same buffers
/// find them there. Whom the index does not know is no error, nor does who is not named match; so a
/// filter may be wider or narrower than the roster, and an empty one lets nobody match.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotFilter {
    /// Tells this filter from every other of the process; clones say the same.
    id: u64,
    meant: Meant,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Meant {
    /// Ascending, each once.
    Workers(Box<[WorkerKey]>),
    Slots(Box<[SlotId]>),
}

impl SlotFilter {
    /// These workers, in whatever slots they are.
    #[must_use]
    pub fn of_workers(workers: impl IntoIterator<Item = WorkerKey>) -> Self {
        let mut workers: Vec<_> = workers.into_iter().collect();
        workers.sort_unstable();
        workers.dedup();
        Self::new(Meant::Workers(workers.into()))
    }

    /// These slots, in these lives: once a life is over, the slot's next owner is not meant.
    #[must_use]
    pub fn of_slots(slots: impl IntoIterator<Item = SlotId>) -> Self {
        Self::new(Meant::Slots(slots.into_iter().collect()))
    }

    fn new(meant: Meant) -> Self {
        // Bits are kept by number, so a number is never given twice. From 1.
        static FILTERS: AtomicU64 = AtomicU64::new(0);
        Self {
            id: FILTERS.fetch_add(1, Ordering::Relaxed) + 1,
            meant,
        }
    }

    /// One bit a slot that may be named, of the slots that the view knows.
    fn resolve(&self, roster: &Roster, view: &View, bits: &mut Vec<u64>) {
        bits.clear();
        bits.resize(view.alive.len(), 0);
        let mut mean = |slot: u16| {
            if let Some(word) = bits.get_mut(usize::from(slot / 64)) {
                *word |= 1 << (slot % 64);
            }
        };
        match &self.meant {
            Meant::Workers(workers) => {
                // Both ascend by worker: one walk over the two.
                let mut wanted = workers.iter().peekable();
                for (owner, &slot) in view.order.owner.iter().zip(&view.order.slot) {
                    while wanted.next_if(|&worker| worker < owner).is_some() {}
                    match wanted.peek() {
                        Some(&worker) if worker == owner => mean(slot),
                        Some(_) => {}
                        None => break,
                    }
                }
            }
            // A slot that the view has as alive cannot begin another life while the caller is pinned; so whose
            // life goes on now is who the view means.
            Meant::Slots(slots) => slots
                .iter()
                .filter(|&&id| roster.writable(id))
                .for_each(|id| mean(id.slot)),
        }
    }
}

/// Bits of the filters last used, by filter and edition of the roster.
#[derive(Default)]
pub(crate) struct Filters([Resolved; KEPT_FILTERS]);

#[derive(Default)]
struct Resolved {
    filter: u64,
    edition: u64,
    bits: Vec<u64>,
}

impl Filters {
    /// The filter as one bit a slot; as wide as the view.
    pub fn bits(&mut self, filter: &SlotFilter, roster: &Roster, view: &View) -> &[u64] {
        let kept = &mut self.0[filter.id as usize % KEPT_FILTERS];
        let wanted = (filter.id, view.order.edition);
        // The width as well: a slot may have become alive, for the first time, without a new edition.
        if (kept.filter, kept.edition) != wanted || kept.bits.len() != view.alive.len() {
            filter.resolve(roster, view, &mut kept.bits);
            (kept.filter, kept.edition) = wanted;
        }
        &kept.bits
    }
}
