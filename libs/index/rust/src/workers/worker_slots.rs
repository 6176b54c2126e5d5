//! Worker slots: the owner of each, the state it is in, and counts and digests of what it holds.
//!
//! A slot goes free → staged → live ⇄ suspended → retired → (grace period, sweep) → free. State changes are rare and made
//! under one lock. A look-up reads a [`WorkerView`], an immutable picture of who is matchable, which each change replaces
//! as a whole. So a replacement of one slot by another is one step for every reader.
//!
//! A retired slot's memberships stay until a grace period is over, since look-ups whose view still has it live must find
//! them whole. Then a sweep removes them, and the slot can be allocated again. The same grace period lets calls that were
//! storing to the slot end before it has its next owner.
//!
//! `unsafe` here: the view behind an atomic pointer. Sound because the pointer always comes from `Arc::into_raw`, and the
//! count that it owns is given up after a grace period. Checked by `tests/stress.rs` (replacement and reuse under readers).

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

use crate::bits;
use crate::memory::reclamation::{Pin, Reclaimer};
use crate::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, OnceLock, sized_for_models, track_retired};
use crate::types::{IndexError, SlotId, SlotSummary, Tier, WorkerKey, WorkerSlot};
use crate::workers::view::{AnswerOrder, WorkerView};

const RECORDS_PER_CHUNK: usize = sized_for_models(64, 4);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Without an owner.
    Free = 0,
    /// Being filled, not yet matchable.
    Staged = 1,
    /// Matchable.
    Live = 2,
    /// Taken out of matches, with its memberships.
    Suspended = 3,
    /// Gone for good; its memberships wait for the sweep.
    Retired = 4,
}

/// Generation in the upper half, state in the lower.
fn packed_state(generation: u32, state: State) -> u64 {
    u64::from(generation) << 32 | state as u64
}

#[derive(Default)]
struct Record {
    state: AtomicU64,
    blocks: AtomicU64,
    counts: [AtomicU64; 4],
    digests: [AtomicU64; 4],
}

impl Record {
    /// How many times the slot was allocated, modulo 2^32.
    fn generation(&self) -> u32 {
        (self.state.load(Ordering::Relaxed) >> 32) as u32
    }
}

/// Blocks that one call stored or removed for one slot on one tier, to be added to its counts at once.
#[derive(Clone, Copy, Default)]
pub(crate) struct SlotDelta {
    /// Blocks on the tier.
    pub tier_count: usize,
    /// Blocks that became known, or unknown, as held on any tier.
    pub blocks: usize,
    /// XOR of the hashes of the blocks on the tier.
    pub digest: u64,
}

/// Assignments of slots, changed under the lock.
struct Registry {
    /// Lowest first, which keeps bitmaps narrow.
    free: BinaryHeap<Reverse<WorkerSlot>>,
    /// Owner by slot, for every slot that was ever used.
    owners: Vec<WorkerKey>,
    assigned: BTreeSet<(WorkerKey, WorkerSlot)>,
    /// Retired and in no pass of the sweep yet, each with the stamp of when it was hidden.
    retired: VecDeque<(u64, WorkerSlot)>,
    matchable: Vec<u64>,
    order: Arc<AnswerOrder>,
    order_is_stale: bool,
}

/// All worker slots of an index.
pub(crate) struct WorkerSlots {
    records: Box<[OnceLock<Box<[Record; RECORDS_PER_CHUNK]>>]>,
    used: AtomicUsize,
    /// One bit a slot: whether a pass of the sweep removes its memberships.
    being_swept: Box<[AtomicU64]>,
    being_swept_count: AtomicUsize,
    view: AtomicPtr<WorkerView>,
    registry: Mutex<Registry>,
}

impl WorkerSlots {
    pub fn new() -> Self {
        let order = AnswerOrder::new(&BTreeSet::new(), 0);
        let view = WorkerView::new(&[], &order);
        Self {
            records: (0..WorkerSlot::COUNT / RECORDS_PER_CHUNK)
                .map(|_| OnceLock::new())
                .collect(),
            used: AtomicUsize::new(0),
            being_swept: (0..WorkerSlot::COUNT / 64)
                .map(|_| AtomicU64::new(0))
                .collect(),
            being_swept_count: AtomicUsize::new(0),
            view: AtomicPtr::new(Arc::into_raw(view).cast_mut()),
            registry: Mutex::new(Registry {
                free: BinaryHeap::new(),
                owners: Vec::new(),
                assigned: BTreeSet::new(),
                retired: VecDeque::new(),
                matchable: Vec::new(),
                order,
                order_is_stale: false,
            }),
        }
    }

    /// A fresh slot for `worker`, and whether the slot had an owner before.
    pub fn allocate(&self, worker: WorkerKey) -> Result<(SlotId, bool), IndexError> {
        let mut registry = self.registry.lock();
        let (slot, reused) = match registry.free.pop() {
            Some(Reverse(slot)) => (slot, true),
            None if registry.owners.len() == WorkerSlot::COUNT => {
                return Err(IndexError::SlotsExhausted {
                    limit: WorkerSlot::COUNT,
                });
            }
            None => {
                registry.owners.push(worker);
                self.used.store(registry.owners.len(), Ordering::Release);
                (WorkerSlot::new((registry.owners.len() - 1) as u16), false)
            }
        };
        registry.owners[slot.index()] = worker;
        registry.assigned.insert((worker, slot));
        registry.order_is_stale = true;
        let record = self.record_or_new(slot);
        let generation = record.generation().wrapping_add(1);
        record.blocks.store(0, Ordering::Relaxed);
        for counter in record.counts.iter().chain(&record.digests) {
            counter.store(0, Ordering::Relaxed);
        }
        let state = packed_state(generation, State::Staged);
        record.state.store(state, Ordering::Release);
        Ok((SlotId { slot, generation }, reused))
    }

    /// Shows a staged or suspended slot to readers; does nothing for any other.
    pub fn publish(&self, id: SlotId, reclaimer: &Reclaimer) {
        let mut registry = self.registry.lock();
        if self.transition(&mut registry, id, State::Live) {
            self.publish_view(&mut registry, reclaimer);
        }
    }

    /// Hides a live slot from readers.
    pub fn suspend(&self, id: SlotId, reclaimer: &Reclaimer) {
        let mut registry = self.registry.lock();
        if self.state(id) == Some(State::Live)
            && self.transition(&mut registry, id, State::Suspended)
        {
            self.publish_view(&mut registry, reclaimer);
        }
    }

    /// Hides a slot for good and leaves its memberships to the sweep.
    pub fn retire(&self, id: SlotId, reclaimer: &Reclaimer) {
        let mut registry = self.registry.lock();
        let was_live = self.state(id) == Some(State::Live);
        if self.transition(&mut registry, id, State::Retired) {
            if was_live {
                self.publish_view(&mut registry, reclaimer);
            }
            registry.retired.push_back((reclaimer.stamp(), id.slot));
        }
    }

    /// Retires `old` and publishes `new` with one and the same view.
    pub fn replace(&self, old: SlotId, new: SlotId, reclaimer: &Reclaimer) {
        let mut registry = self.registry.lock();
        let shown = self.transition(&mut registry, new, State::Live);
        let hidden = old != new && self.transition(&mut registry, old, State::Retired);
        if shown || hidden {
            self.publish_view(&mut registry, reclaimer);
        }
        if hidden {
            registry.retired.push_back((reclaimer.stamp(), old.slot));
        }
    }

    /// Hands a pass of the sweep all retired slots that no look-up can still see as live. Until then their memberships
    /// must stay, or a look-up would see a set that was never anyone's.
    pub fn take_sweepable(&self, reclaimer: &Reclaimer) -> Vec<WorkerSlot> {
        let mut registry = self.registry.lock();
        let mut taken = Vec::new();
        while let Some(&(stamp, slot)) = registry.retired.front() {
            if !reclaimer.advance_until_safe(stamp) {
                break;
            }
            registry.retired.pop_front();
            self.being_swept[slot.word()].fetch_or(slot.bit(), Ordering::Relaxed);
            taken.push(slot);
        }
        self.being_swept_count
            .fetch_add(taken.len(), Ordering::Relaxed);
        taken
    }

    /// Whether slots wait for a pass of the sweep.
    pub fn has_retired(&self) -> bool {
        !self.registry.lock().retired.is_empty()
    }

    /// Makes swept slots available again.
    pub fn free(&self, slots: &[WorkerSlot]) {
        let mut registry = self.registry.lock();
        for &slot in slots {
            let record = self.record_or_new(slot);
            let state = packed_state(record.generation(), State::Free);
            record.state.store(state, Ordering::Release);
            let owner = registry.owners[slot.index()];
            registry.assigned.remove(&(owner, slot));
            registry.free.push(Reverse(slot));
            self.being_swept[slot.word()].fetch_and(!slot.bit(), Ordering::Relaxed);
        }
        self.being_swept_count
            .fetch_sub(slots.len(), Ordering::Relaxed);
        registry.order_is_stale |= !slots.is_empty();
    }

    /// Whether blocks may be stored to `id`. Under a shard's lock the answer "no" is final for the shard: a slot is
    /// retired before the sweep that removes its memberships takes that lock.
    #[inline]
    pub fn is_writable(&self, id: SlotId) -> bool {
        matches!(
            self.state(id),
            Some(State::Staged | State::Live | State::Suspended)
        )
    }

    /// Whether the memberships of any slot are being removed.
    pub fn any_being_swept(&self) -> bool {
        self.being_swept_count.load(Ordering::Relaxed) > 0
    }

    /// Whether the memberships of this slot are being removed.
    pub fn is_being_swept(&self, slot: WorkerSlot) -> bool {
        self.being_swept[slot.word()].load(Ordering::Relaxed) & slot.bit() != 0
    }

    /// Number of words of a bitmap that has room for every slot used so far.
    pub fn bitmap_words(&self) -> u16 {
        self.used.load(Ordering::Relaxed).div_ceil(64) as u16
    }

    #[inline]
    pub fn view<'p>(&self, _pin: &'p Pin<'_>) -> &'p WorkerView {
        // SAFETY: the pointer came from `Arc::into_raw`. `publish_view` gives up the count behind it after a grace
        // period, which the pin holds back.
        let view = unsafe { &*self.view.load(Ordering::Acquire) };
        view.tracker.read();
        view
    }

    /// Adds (or subtracts) what a call changed for a slot that is known to be writable.
    pub fn add_delta(&self, slot: WorkerSlot, tier: Tier, delta: &SlotDelta, stored: bool) {
        if delta.tier_count == 0 {
            return;
        }
        let record = self.record_or_new(slot);
        let signed = |n: usize| {
            if stored {
                n as u64
            } else {
                (n as u64).wrapping_neg()
            }
        };
        record.counts[tier as usize].fetch_add(signed(delta.tier_count), Ordering::Relaxed);
        record
            .blocks
            .fetch_add(signed(delta.blocks), Ordering::Relaxed);
        record.digests[tier as usize].fetch_xor(delta.digest, Ordering::Relaxed);
    }

    pub fn summary(&self, id: SlotId) -> SlotSummary {
        let mut summary = SlotSummary::default();
        let (Some(record), true) = (self.record(id.slot), self.is_writable(id)) else {
            return summary;
        };
        for (tier, out) in summary.tiers.iter_mut().enumerate() {
            out.count = record.counts[tier].load(Ordering::Relaxed);
            out.digest = record.digests[tier].load(Ordering::Relaxed);
        }
        summary.blocks = record.blocks.load(Ordering::Relaxed);
        summary
    }

    /// Blocks held by slots that are not retired, each once per holder.
    pub fn memberships(&self) -> u64 {
        let chunks = self.records.iter().map_while(OnceLock::get);
        let records = chunks.flat_map(|chunk| chunk.iter());
        records
            .filter(|record| {
                let state = record.state.load(Ordering::Relaxed) as u32;
                state != State::Retired as u32 && state != State::Free as u32
            })
            .map(|record| record.blocks.load(Ordering::Relaxed))
            .sum()
    }

    pub fn bytes(&self) -> usize {
        let registry = self.registry.lock();
        let chunks = self
            .records
            .iter()
            .filter(|chunk| chunk.get().is_some())
            .count();
        let per_owner = 4 * size_of::<WorkerKey>();
        size_of_val(&*self.records)
            + chunks * RECORDS_PER_CHUNK * size_of::<Record>()
            + size_of_val(&*self.being_swept)
            + registry.owners.len() * per_owner
    }

    fn record(&self, slot: WorkerSlot) -> Option<&Record> {
        let chunk = self.records.get(slot.index() / RECORDS_PER_CHUNK)?.get()?;
        Some(&chunk[slot.index() % RECORDS_PER_CHUNK])
    }

    fn record_or_new(&self, slot: WorkerSlot) -> &Record {
        let chunk = &self.records[slot.index() / RECORDS_PER_CHUNK];
        let chunk = chunk.get_or_init(|| Box::new(std::array::from_fn(|_| Record::default())));
        &chunk[slot.index() % RECORDS_PER_CHUNK]
    }

    /// State of a slot that is still in the handle's generation.
    #[inline]
    fn state(&self, id: SlotId) -> Option<State> {
        let now = self.record(id.slot)?.state.load(Ordering::Acquire);
        [State::Staged, State::Live, State::Suspended, State::Retired]
            .into_iter()
            .find(|&state| now == packed_state(id.generation, state))
    }

    /// Moves a slot that is not retired to `state`; false if it is retired.
    fn transition(&self, registry: &mut Registry, id: SlotId, state: State) -> bool {
        if !self.is_writable(id) {
            return false;
        }
        self.record_or_new(id.slot)
            .state
            .store(packed_state(id.generation, state), Ordering::SeqCst);
        bits::insert(&mut registry.matchable, id.slot);
        if state != State::Live {
            registry.matchable[id.slot.word()] &= !id.slot.bit();
        }
        true
    }

    /// Publishes a view of the registry as it is now.
    fn publish_view(&self, registry: &mut Registry, reclaimer: &Reclaimer) {
        if registry.order_is_stale {
            registry.order = AnswerOrder::new(&registry.assigned, registry.owners.len());
            registry.order_is_stale = false;
        }
        let view = WorkerView::new(&registry.matchable, &registry.order);
        let bytes = view.bytes();
        let old = self
            .view
            .swap(Arc::into_raw(view).cast_mut(), Ordering::AcqRel);
        // SAFETY: `old` came from `Arc::into_raw`, and the swap took over its count.
        let old = unsafe { Arc::from_raw(old.cast_const()) };
        reclaimer.retire(track_retired(old), bytes);
    }
}

impl Drop for WorkerSlots {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `Arc::into_raw`; nobody reads any more.
        drop(unsafe { Arc::from_raw(self.view.load(Ordering::Relaxed).cast_const()) });
    }
}
