//! Worker slots: whose they are, in which life, what they hold in sum, and who is matchable now.
//!
//! A slot goes free → staged → live ⇄ suspended → dead → (grace period, sweep) → free. Changes of life
//! are rare and made under one lock; a look-up reads a [`View`], an immutable picture of who is
//! matchable, published whole at each change. So a replacement is one step for every reader. The grace
//! period keeps a dead slot's set whole, and its place from the next owner, for look-ups whose picture
//! still has it alive, and lets calls that were storing to it end.
//!
//! `unsafe` here: the view behind an atomic pointer. Sound because the pointer always comes from
//! `Arc::into_raw`, and the count that it owns is given up through the grace period. Checked by
//! `tests/stress.rs` (replacement and reuse under readers).

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

use crate::grace::{Grace, Pin};
use crate::set::MAX_SLOTS;
use crate::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Guarded, Mutex, OnceLock, leaving, sized, tally};
use crate::types::{IndexError, SlotId, SlotSummary, Tier, WorkerKey};

const RECORDS_PER_CHUNK: usize = sized(64, 4);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Free = 0,
    Staged = 1,
    Live = 2,
    Suspended = 3,
    Dead = 4,
}

/// Life in the upper half, phase in the lower.
fn state(life: u32, phase: Phase) -> u64 {
    u64::from(life) << 32 | phase as u64
}

#[derive(Default)]
struct Record {
    state: AtomicU64,
    blocks: AtomicU64,
    counts: [AtomicU64; 4],
    digests: [AtomicU64; 4],
}

/// What one call changed for one slot; gathered, then applied at once.
#[derive(Clone, Copy, Default)]
pub(crate) struct Change {
    pub tier_count: usize,
    pub blocks: usize,
    pub digest: u64,
}

/// All slots that have an owner, in the order of answers.
pub(crate) struct Order {
    /// By slot: its rank.
    pub rank: Box<[u16]>,
    /// By rank: its owner.
    pub owner: Box<[WorkerKey]>,
    /// By rank: its slot.
    pub slot: Box<[u16]>,
    /// One bit a slot: whether it has an owner.
    pub owned: Box<[u64]>,
    /// Tells this order from every other one of the process.
    pub edition: u64,
}

/// Who is matchable, and how answers are ordered. Never changed once published.
pub(crate) struct View {
    /// One bit a slot, as in the bitmaps.
    pub alive: Box<[u64]>,
    /// Has every slot that is alive.
    pub order: Arc<Order>,
    guard: Guarded,
}

#[cfg(loom)]
impl crate::sync::HasGuard for View {
    fn guard(&self) -> &Guarded {
        &self.guard
    }
}

struct Registry {
    /// Lowest first, which keeps bitmaps narrow.
    free: BinaryHeap<Reverse<u16>>,
    /// Owner by slot, for every slot that was ever used.
    owners: Vec<WorkerKey>,
    taken: BTreeSet<(WorkerKey, u16)>,
    /// Retired and in no pass of the sweep yet, with the stamp of being hidden.
    retired: VecDeque<(u64, u16)>,
    alive: Vec<u64>,
    order: Arc<Order>,
    order_is_stale: bool,
}

pub(crate) struct Roster {
    records: Box<[OnceLock<Box<[Record; RECORDS_PER_CHUNK]>>]>,
    used: AtomicUsize,
    /// Slots whose memberships may be removed, one bit each.
    dead: Box<[AtomicU64]>,
    dead_count: AtomicUsize,
    view: AtomicPtr<View>,
    registry: Mutex<Registry>,
}

impl Roster {
    pub fn new() -> Self {
        let order = Arc::new(Order::of(&BTreeSet::new(), 0));
        let view = Arc::new(View {
            alive: Box::default(),
            order: Arc::clone(&order),
            guard: Guarded::default(),
        });
        Self {
            records: (0..MAX_SLOTS / RECORDS_PER_CHUNK)
                .map(|_| OnceLock::new())
                .collect(),
            used: AtomicUsize::new(0),
            dead: (0..MAX_SLOTS / 64).map(|_| AtomicU64::new(0)).collect(),
            dead_count: AtomicUsize::new(0),
            view: AtomicPtr::new(Arc::into_raw(view).cast_mut()),
            registry: Mutex::new(Registry {
                free: BinaryHeap::new(),
                owners: Vec::new(),
                taken: BTreeSet::new(),
                retired: VecDeque::new(),
                alive: Vec::new(),
                order,
                order_is_stale: false,
            }),
        }
    }

    /// A fresh slot for `worker`, and whether it had an owner before.
    pub fn allocate(&self, worker: WorkerKey) -> Result<(SlotId, bool), IndexError> {
        let mut registry = self.registry.lock();
        let (slot, reused) = match registry.free.pop() {
            Some(Reverse(slot)) => (slot, true),
            None if registry.owners.len() == MAX_SLOTS => {
                return Err(IndexError::SlotsExhausted { limit: MAX_SLOTS });
            }
            None => {
                registry.owners.push(worker);
                self.used.store(registry.owners.len(), Ordering::Release);
                ((registry.owners.len() - 1) as u16, false)
            }
        };
        registry.owners[usize::from(slot)] = worker;
        registry.taken.insert((worker, slot));
        registry.order_is_stale = true;
        let record = self.record_or_new(slot);
        let life = ((record.state.load(Ordering::Relaxed) >> 32) as u32).wrapping_add(1);
        record.blocks.store(0, Ordering::Relaxed);
        for counter in record.counts.iter().chain(&record.digests) {
            counter.store(0, Ordering::Relaxed);
        }
        record
            .state
            .store(state(life, Phase::Staged), Ordering::Release);
        Ok((SlotId { slot, life }, reused))
    }

    /// Shows a staged or suspended slot to readers; nothing for any other.
    pub fn publish(&self, id: SlotId, grace: &Grace) {
        let mut registry = self.registry.lock();
        if self.enter(&mut registry, id, Phase::Live) {
            self.show(&mut registry, grace);
        }
    }

    /// Hides a live slot from readers.
    pub fn suspend(&self, id: SlotId, grace: &Grace) {
        let mut registry = self.registry.lock();
        if self.phase(id) == Some(Phase::Live) && self.enter(&mut registry, id, Phase::Suspended) {
            self.show(&mut registry, grace);
        }
    }

    /// Hides a slot for ever and leaves its memberships to the sweep.
    pub fn retire(&self, id: SlotId, grace: &Grace) {
        let mut registry = self.registry.lock();
        let was_alive = self.phase(id) == Some(Phase::Live);
        if self.enter(&mut registry, id, Phase::Dead) {
            if was_alive {
                self.show(&mut registry, grace);
            }
            registry.retired.push_back((grace.stamp(), id.slot));
        }
    }

    /// Retires `old` and publishes `new` with one and the same view.
    pub fn replace(&self, old: SlotId, new: SlotId, grace: &Grace) {
        let mut registry = self.registry.lock();
        let shown = self.enter(&mut registry, new, Phase::Live);
        let hidden = old != new && self.enter(&mut registry, old, Phase::Dead);
        if shown || hidden {
            self.show(&mut registry, grace);
        }
        if hidden {
            registry.retired.push_back((grace.stamp(), old.slot));
        }
    }

    /// Hands a pass of the sweep all retired slots that no look-up can still take for alive. Before
    /// that their memberships must stay: a look-up would see a set that was never anyone's.
    pub fn take_dead(&self, grace: &Grace) -> Vec<u16> {
        let mut registry = self.registry.lock();
        let mut taken = Vec::new();
        while let Some(&(stamp, slot)) = registry.retired.front() {
            if !grace.passed_or_steps(stamp) {
                break;
            }
            registry.retired.pop_front();
            self.dead[usize::from(slot / 64)].fetch_or(1 << (slot % 64), Ordering::Relaxed);
            taken.push(slot);
        }
        self.dead_count.fetch_add(taken.len(), Ordering::Relaxed);
        taken
    }

    pub fn has_retired(&self) -> bool {
        !self.registry.lock().retired.is_empty()
    }

    /// Gives swept slots back.
    pub fn free(&self, slots: &[u16]) {
        let mut registry = self.registry.lock();
        for &slot in slots {
            let record = self.record_or_new(slot);
            let life = (record.state.load(Ordering::Relaxed) >> 32) as u32;
            record
                .state
                .store(state(life, Phase::Free), Ordering::Release);
            let owner = registry.owners[usize::from(slot)];
            registry.taken.remove(&(owner, slot));
            registry.free.push(Reverse(slot));
            self.dead[usize::from(slot / 64)].fetch_and(!(1 << (slot % 64)), Ordering::Relaxed);
        }
        self.dead_count.fetch_sub(slots.len(), Ordering::Relaxed);
        registry.order_is_stale |= !slots.is_empty();
    }

    /// Whether `id` may be stored to. Under a shard's lock the answer "no" is final for the shard:
    /// a slot dies before the sweep that removes its memberships takes that lock.
    #[inline]
    pub fn writable(&self, id: SlotId) -> bool {
        matches!(
            self.phase(id),
            Some(Phase::Staged | Phase::Live | Phase::Suspended)
        )
    }

    /// Whether any slot's memberships are being removed.
    pub fn any_dead(&self) -> bool {
        self.dead_count.load(Ordering::Relaxed) > 0
    }

    pub fn is_dead(&self, slot: u16) -> bool {
        self.dead[usize::from(slot / 64)].load(Ordering::Relaxed) >> (slot % 64) & 1 == 1
    }

    /// Width in words of a bitmap that has room for every slot used so far.
    pub fn width(&self) -> u16 {
        self.used.load(Ordering::Relaxed).div_ceil(64) as u16
    }

    #[inline]
    pub fn view<'p>(&self, _pin: &'p Pin<'_>) -> &'p View {
        // SAFETY: the pointer came from `Arc::into_raw`; the count behind it is given up, in
        // `show`, through the grace period, which the pin holds back.
        let view = unsafe { &*self.view.load(Ordering::Acquire) };
        view.guard.read();
        view
    }

    /// Adds (or takes away) what a call changed for a slot that is known to be writable.
    pub fn account(&self, slot: u16, tier: Tier, change: &Change, stored: bool) {
        if change.tier_count == 0 {
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
        record.counts[tier as usize].fetch_add(signed(change.tier_count), Ordering::Relaxed);
        record
            .blocks
            .fetch_add(signed(change.blocks), Ordering::Relaxed);
        record.digests[tier as usize].fetch_xor(change.digest, Ordering::Relaxed);
    }

    pub fn summary(&self, id: SlotId) -> SlotSummary {
        let mut summary = SlotSummary::default();
        let (Some(record), true) = (self.record(id.slot), self.writable(id)) else {
            return summary;
        };
        for (tier, out) in summary.tiers.iter_mut().enumerate() {
            out.count = record.counts[tier].load(Ordering::Relaxed);
            out.digest = record.digests[tier].load(Ordering::Relaxed);
        }
        summary.blocks = record.blocks.load(Ordering::Relaxed);
        summary
    }

    /// Blocks held by slots that are not dead, each once per holder.
    pub fn memberships(&self) -> u64 {
        let chunks = self.records.iter().map_while(OnceLock::get);
        let records = chunks.flat_map(|chunk| chunk.iter());
        records
            .filter(|record| {
                let phase = record.state.load(Ordering::Relaxed) as u32;
                phase != Phase::Dead as u32 && phase != Phase::Free as u32
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
            + size_of_val(&*self.dead)
            + registry.owners.len() * per_owner
    }

    fn record(&self, slot: u16) -> Option<&Record> {
        let chunk = self
            .records
            .get(usize::from(slot) / RECORDS_PER_CHUNK)?
            .get()?;
        Some(&chunk[usize::from(slot) % RECORDS_PER_CHUNK])
    }

    fn record_or_new(&self, slot: u16) -> &Record {
        let chunk = &self.records[usize::from(slot) / RECORDS_PER_CHUNK];
        let chunk = chunk.get_or_init(|| Box::new(std::array::from_fn(|_| Record::default())));
        &chunk[usize::from(slot) % RECORDS_PER_CHUNK]
    }

    #[inline]
    fn phase(&self, id: SlotId) -> Option<Phase> {
        let state_now = self.record(id.slot)?.state.load(Ordering::Acquire);
        [Phase::Staged, Phase::Live, Phase::Suspended, Phase::Dead]
            .into_iter()
            .find(|&phase| state_now == state(id.life, phase))
    }

    /// Moves a slot whose life is not over to `phase`; false if it is over.
    fn enter(&self, registry: &mut Registry, id: SlotId, phase: Phase) -> bool {
        if !self.writable(id) {
            return false;
        }
        self.record_or_new(id.slot)
            .state
            .store(state(id.life, phase), Ordering::SeqCst);
        let (place, bit) = (usize::from(id.slot / 64), 1u64 << (id.slot % 64));
        if registry.alive.len() <= place {
            registry.alive.resize(place + 1, 0);
        }
        if phase == Phase::Live {
            registry.alive[place] |= bit;
        } else {
            registry.alive[place] &= !bit;
        }
        true
    }

    /// Publishes a view of the registry as it is now.
    fn show(&self, registry: &mut Registry, grace: &Grace) {
        if registry.order_is_stale {
            registry.order = Arc::new(Order::of(&registry.taken, registry.owners.len()));
            registry.order_is_stale = false;
        }
        let alive: Box<[u64]> = registry.alive.as_slice().into();
        let view = Arc::new(View {
            alive,
            order: Arc::clone(&registry.order),
            guard: Guarded::default(),
        });
        let bytes = size_of::<View>() + size_of_val(&*view.alive);
        let old = self
            .view
            .swap(Arc::into_raw(view).cast_mut(), Ordering::AcqRel);
        // SAFETY: `old` came from `Arc::into_raw`, and the swap took over its count.
        grace.retire(leaving(unsafe { Arc::from_raw(old.cast_const()) }), bytes);
    }
}

impl Drop for Roster {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `Arc::into_raw`; nobody reads any more.
        drop(unsafe { Arc::from_raw(self.view.load(Ordering::Relaxed).cast_const()) });
    }
}

impl Order {
    fn of(taken: &BTreeSet<(WorkerKey, u16)>, used: usize) -> Self {
        // Buffers of look-ups outlive indexes, so editions are counted by the process. From 1.
        static EDITIONS: tally::AtomicU64 = tally::AtomicU64::new(0);
        let mut rank = vec![0; used].into_boxed_slice();
        let mut owned = vec![0; used.div_ceil(64)].into_boxed_slice();
        for (place, &(_, slot)) in taken.iter().enumerate() {
            rank[usize::from(slot)] = place as u16;
            owned[usize::from(slot / 64)] |= 1u64 << (slot % 64);
        }
        Self {
            rank,
            owner: taken.iter().map(|&(owner, _)| owner).collect(),
            slot: taken.iter().map(|&(_, slot)| slot).collect(),
            owned,
            edition: EDITIONS.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }
}
