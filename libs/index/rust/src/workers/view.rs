//! The workers that a look-up may name, and the order of answers: an immutable picture, replaced as a whole at each change.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::bits;
use crate::sync::{Tracker, relaxed};
use crate::types::{WorkerKey, WorkerSlot};

/// The slots that have an owner, in the order of answers: by worker id, then data-parallel rank.
pub(crate) struct AnswerOrder {
    /// By slot: its position in this order.
    pub position: Box<[u16]>,
    /// By position: the owner.
    pub owner: Box<[WorkerKey]>,
    /// By position: the slot.
    pub slot: Box<[WorkerSlot]>,
    /// One bit a slot: whether it has an owner.
    pub owned: Box<[u64]>,
    /// Unique in the process, so that caches can tell one order from another.
    pub version: u64,
}

/// The workers that a look-up may name. Never changed once published.
pub(crate) struct WorkerView {
    /// One bit a slot, as in bitmaps of holders.
    pub matchable: Box<[u64]>,
    /// Has every slot that is matchable.
    pub order: Arc<AnswerOrder>,
    /// Lets a model check when the view is read and freed.
    pub tracker: Tracker,
}

#[cfg(loom)]
impl crate::sync::HasTracker for WorkerView {
    fn tracker(&self) -> &Tracker {
        &self.tracker
    }
}

impl WorkerView {
    pub fn new(matchable: &[u64], order: &Arc<AnswerOrder>) -> Arc<Self> {
        Arc::new(Self {
            matchable: matchable.into(),
            order: Arc::clone(order),
            tracker: Tracker::default(),
        })
    }

    pub fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.matchable)
    }
}

impl AnswerOrder {
    /// The order of the assigned slots, of `used` that there are.
    pub fn new(assigned: &BTreeSet<(WorkerKey, WorkerSlot)>, used: usize) -> Arc<Self> {
        // Buffers of look-ups outlive indexes, so versions are counted by the process. From 1.
        static VERSIONS: relaxed::AtomicU64 = relaxed::AtomicU64::new(0);
        let mut position = vec![0; used].into_boxed_slice();
        let mut owned = vec![0; used.div_ceil(64)];
        for (place, &(_, slot)) in (0..).zip(assigned) {
            position[slot.index()] = place;
            bits::insert(&mut owned, slot);
        }
        Arc::new(Self {
            position,
            owner: assigned.iter().map(|&(owner, _)| owner).collect(),
            slot: assigned.iter().map(|&(_, slot)| slot).collect(),
            owned: owned.into(),
            version: VERSIONS.fetch_add(1, relaxed::Ordering::Relaxed) + 1,
        })
    }
}
