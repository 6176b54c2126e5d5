//! The table of one shard, as its one writer sees it: insert, remove, resize.
//!
//! A removed key stays, with a tombstone for its set, until its entry takes another key or the table is resized
//! ([`crate::table::resize`]).
//!
//! `unsafe` here: publishing an array in the directory. Sound because the table owns the array from before it is published
//! until its successor is, and then retires it. Checked by `tests/differential.rs` and `tests/stress.rs`.

use kvatlas_pages::SMALL_PAGE;

use crate::counters::count;
use crate::memory::zeroed_array::ZeroedArray;
use crate::sync::relaxed::Ordering::Relaxed;
use crate::table::capacity::{
    class_for, fitting_entries, lines_of_class, max_keys, next_size, smallest_size,
};
use crate::table::compact_set::CompactSet;
use crate::table::context::{SharedState, TableContext};
use crate::table::directory::Home;
use crate::table::entry::Entry;
use crate::table::line::{ENTRIES_PER_LINE, Line};
use crate::table::lines::Lines;
use crate::table::probe::{Probe, ProbeStep};
use crate::table::resize::copy_entries;
use crate::table::set_changes::{Added, SetArena};
use crate::table::set_word::StoredSet;
use crate::table::spilled_sets::SpilledSets;
use crate::types::WorkerSlot;

#[derive(Default)]
#[repr(C)]
pub(crate) struct ShardTable {
    // The fields that every store reads come first, within a cache line.
    array: Option<ZeroedArray<Line>>,
    /// Vacant entries that may still be given keys.
    vacant: usize,
    /// Keys that somebody holds.
    held: usize,
    /// Arrays that this table has had, so that the sweep notices a new one.
    resizes: u64,
    /// Whether the table is larger than a shard's smallest.
    may_shrink: bool,
    arena: SetArena,
}

/// The first of the entries of a line whose bits are set.
#[inline(always)]
fn first_entry<'p>(line: &'p Line, bits: u32, spilled: &'p SpilledSets) -> Entry<'p> {
    line.entry(bits.trailing_zeros() as usize % ENTRIES_PER_LINE, spilled)
}

/// A probe from start to end with no others in flight.
fn probe_alone<'p>(
    context: TableContext<'p>,
    hash: u64,
    mut step: impl FnMut(&mut Probe<'p>) -> ProbeStep,
) -> bool {
    let start = || Probe::start(hash, 0, context.directory, context.pin);
    let mut probe = start();
    loop {
        match step(&mut probe) {
            ProbeStep::NextLine | ProbeStep::ReuseTombstone => {}
            ProbeStep::Done(changed) => return changed,
            ProbeStep::Restart => probe = start(),
        }
    }
}

impl ShardTable {
    pub fn is_unused(&self) -> bool {
        self.array.is_none()
    }

    /// How many arrays the table has had.
    pub fn resizes(&self) -> u64 {
        self.resizes
    }

    pub fn contains(&self, home: Home, hash: u64, slot: WorkerSlot, spilled: &SpilledSets) -> bool {
        self.array.as_ref().is_some_and(|array| {
            let set = Lines::of(array).find(hash, home.fraction, spilled);
            set.contains(slot)
        })
    }

    /// Looks at the probe's next line, to add `slot` to the holders of its hash.
    #[inline(always)]
    pub fn insert_step<'p>(
        &mut self,
        context: TableContext<'p>,
        probe: &mut Probe<'p>,
        slot: WorkerSlot,
    ) -> ProbeStep {
        if !probe.lines().are_of(self.array.as_ref()) {
            return ProbeStep::Restart;
        }
        let Some(line) = probe.line() else {
            self.resize(context, probe.shard());
            return ProbeStep::Restart;
        };
        let spilled = &*context.directory.spilled;
        let one = CompactSet::one(slot);
        let found = line.entries_with_key(probe.hash);
        if found != 0 {
            let entry = first_entry(line, found, spilled);
            let set = entry.compact_set();
            if set == one {
                return ProbeStep::Done(false);
            }
            if set != CompactSet::VACANT {
                return ProbeStep::Done(self.add_to_set(context, probe.shard(), entry, slot));
            }
        }
        if !line.has_vacancy() {
            probe.note_tombstone(line, context.epoch);
            let Home { fraction, .. } = context.directory.home_of(probe.hash);
            if !line.may_be_passed(fraction) {
                if probe.has_tombstone() {
                    return ProbeStep::ReuseTombstone;
                }
                line.probe_filter.insert(fraction);
            }
            probe.advance(context.directory);
            return ProbeStep::NextLine;
        }
        if probe.has_tombstone() {
            return ProbeStep::ReuseTombstone;
        }
        let entry = first_entry(line, line.free_entries(context.epoch), spilled);
        if entry.compact_set() == CompactSet::VACANT {
            if self.vacant == 0 {
                self.resize(context, probe.shard());
                return ProbeStep::Restart;
            }
            self.vacant -= 1;
        }
        entry.claim(probe.hash, one);
        self.held += 1;
        ProbeStep::Done(true)
    }

    /// Ends a probe that has come to [`ProbeStep::ReuseTombstone`].
    #[inline(never)]
    pub fn reuse_tombstone(
        &mut self,
        context: TableContext<'_>,
        probe: &Probe<'_>,
        slot: WorkerSlot,
    ) -> ProbeStep {
        match probe.tombstone(&context.directory.spilled) {
            Some(entry) if entry.compact_set().takes_key(context.epoch) => {
                entry.claim(probe.hash, CompactSet::one(slot));
                self.held += 1;
                ProbeStep::Done(true)
            }
            // Another probe in flight has taken it.
            _ => ProbeStep::Restart,
        }
    }

    /// Adds `slot` to a set whose key is there.
    #[inline(never)]
    fn add_to_set(
        &mut self,
        context: TableContext<'_>,
        shard: usize,
        entry: Entry<'_>,
        slot: WorkerSlot,
    ) -> bool {
        match self.arena.add_holder(entry, slot, context.shared) {
            Added::Nothing => return false,
            Added::First => self.held += 1,
            Added::Another => {}
            Added::Widened => {
                if self.arena.bitmaps.wants_packing(self.capacity() / 4) {
                    self.resize(context, shard);
                }
            }
        }
        true
    }

    /// Looks at the probe's next line, to remove `slot` from the holders of its hash.
    #[inline(always)]
    pub fn remove_step<'p>(
        &mut self,
        context: TableContext<'p>,
        probe: &mut Probe<'p>,
        slot: WorkerSlot,
    ) -> ProbeStep {
        if !probe.lines().are_of(self.array.as_ref()) {
            return ProbeStep::Restart;
        }
        let Some(line) = probe.line() else {
            return ProbeStep::Done(false);
        };
        let found = line.entries_with_key(probe.hash);
        if found != 0 {
            let entry = first_entry(line, found, &context.directory.spilled);
            let set = entry.compact_set();
            if set == CompactSet::one(slot) {
                let safe_from = context.pin.epoch_safe_after_unlink();
                entry.store_set(CompactSet::tombstone(safe_from));
                self.count_emptied(context, probe.shard());
                return ProbeStep::Done(true);
            }
            if set != CompactSet::VACANT {
                return ProbeStep::Done(self.remove_from_set(context, probe.shard(), entry, slot));
            }
        }
        let Home { fraction, .. } = context.directory.home_of(probe.hash);
        if !line.may_be_passed(fraction) {
            return ProbeStep::Done(false);
        }
        probe.advance(context.directory);
        ProbeStep::NextLine
    }

    /// Removes `slot` from a set that may have others.
    #[inline(never)]
    fn remove_from_set(
        &mut self,
        context: TableContext<'_>,
        shard: usize,
        entry: Entry<'_>,
        slot: WorkerSlot,
    ) -> bool {
        let (removed, any_left) = self.arena.remove_holder(entry, slot, context);
        if removed && !any_left {
            self.count_emptied(context, shard);
        }
        removed
    }

    /// Counts a key that has lost its last holder, and shrinks the table if few are left.
    #[inline(always)]
    fn count_emptied(&mut self, context: TableContext<'_>, shard: usize) {
        self.held -= 1;
        // More than what `shrink_if_sparse` shrinks at, less than what is usual.
        if self.held < self.capacity() / 3 && (self.may_shrink || self.held == 0) {
            self.shrink_if_sparse(context, shard);
        }
    }

    /// Adds `slot` to the holders of `hash`; false if it was one.
    pub fn insert(&mut self, context: TableContext<'_>, hash: u64, slot: WorkerSlot) -> bool {
        probe_alone(context, hash, |probe| {
            let step = self.insert_step(context, probe, slot);
            if matches!(step, ProbeStep::ReuseTombstone) {
                return self.reuse_tombstone(context, probe, slot);
            }
            step
        })
    }

    /// Removes `slot` from the holders of `hash`; false if it was none.
    pub fn remove(&mut self, context: TableContext<'_>, hash: u64, slot: WorkerSlot) -> bool {
        probe_alone(context, hash, |probe| {
            self.remove_step(context, probe, slot)
        })
    }

    /// Removes every slot whose bit is set in `removed` from up to `budget` entries from `from` on. Returns how many
    /// entries were visited, how many memberships removed, and whether the end is reached.
    pub fn remove_slots(
        &mut self,
        context: TableContext<'_>,
        from: usize,
        budget: usize,
        removed: &[u64],
    ) -> (usize, usize, bool) {
        let Some(array) = self.array.as_ref() else {
            return (0, 0, true);
        };
        let lines = Lines::of(array);
        let to = from.saturating_add(budget).min(lines.entry_count());
        let mut count = 0;
        for at in from.min(to)..to {
            let Some(entry) = lines.entry(at, &context.shared.spilled) else {
                break;
            };
            if !entry.compact_set().is_held() {
                continue;
            }
            count += self.arena.remove_holders(entry, removed, context);
            self.held -= usize::from(!entry.compact_set().is_held());
        }
        (to - from.min(to), count, to == lines.entry_count())
    }

    /// Moves to a smaller array if few of the entries are of use.
    #[inline(never)]
    pub fn shrink_if_sparse(&mut self, context: TableContext<'_>, shard: usize) {
        // Below half of what a new table would be filled to.
        let is_sparse = self.capacity() > fitting_entries(2 * self.held);
        let is_emptied = self.held == 0 && self.key_count() * 4 > self.capacity();
        if is_emptied || is_sparse && self.may_shrink {
            self.resize(context, shard);
        }
    }

    /// Makes the table as large as a shard's smallest is, if it is not, and takes its memory from the system.
    pub fn reserve(&mut self, context: TableContext<'_>, shard: usize) {
        let smallest = smallest_size(shard, initial_entries(context.shared));
        let least = lines_of_class(class_for(smallest));
        // Twice where nobody holds anything any more: then the first time only gives the table up.
        while self.array.as_ref().map_or(0, ZeroedArray::len) < least {
            self.resize(context, shard);
        }
        let lines = self.array.as_ref().map_or(&[][..], ZeroedArray::as_slice);
        let page_lines = SMALL_PAGE / size_of::<Line>();
        lines.iter().step_by(page_lines).for_each(Line::touch);
    }

    /// Copies the entries that have holders to an array of fitting size, publishes it, and retires the old one. A table
    /// whose keys have no holders at all is given up.
    #[cold]
    #[inline(never)]
    fn resize(&mut self, context: TableContext<'_>, shard: usize) {
        let TableContext {
            shared, directory, ..
        } = context;
        let initial = initial_entries(shared);
        let (keys, held) = (self.key_count(), self.held);
        let (old, old_arena) = (self.array.take(), std::mem::take(&mut self.arena));
        let old_len = old.as_ref().map_or(0, ZeroedArray::len);
        let gives_up = held == 0 && keys > 0;
        self.resizes += 1;
        (self.vacant, self.held) = (0, 0);
        if !gives_up {
            let class = class_for(next_size(shard, initial, held, keys));
            let array = ZeroedArray::new_in(&shared.pages, lines_of_class(class));
            shared
                .counters
                .table_bytes
                .fetch_add(array.bytes(), Relaxed);
            if let Some(old) = &old {
                self.held = copy_entries(old, &array, &mut self.arena, context);
            }
            self.vacant = max_keys(array.len() * ENTRIES_PER_LINE) - self.held;
            self.may_shrink = class > class_for(smallest_size(shard, initial));
            // SAFETY: of that class, owned by `self` until the next call, retired below then.
            unsafe { directory.publish(shard, Some((&array, class))) };
            self.array = Some(array);
        } else {
            // SAFETY: nothing is published.
            unsafe { directory.publish(shard, None) };
        }
        let new_len = self.array.as_ref().map_or(0, ZeroedArray::len);
        let Some(old) = old else { return };
        let events = &shared.counters.events;
        count(match new_len.cmp(&old_len) {
            std::cmp::Ordering::Greater => &events.growths,
            std::cmp::Ordering::Equal => &events.cleanups,
            std::cmp::Ordering::Less => &events.shrinks,
        });
        let (table_bytes, bitmap_bytes) = (old.bytes(), old_arena.bitmaps.bytes());
        shared.counters.table_bytes.fetch_sub(table_bytes, Relaxed);
        shared
            .counters
            .bitmap_bytes
            .fetch_sub(bitmap_bytes, Relaxed);
        shared
            .reclaimer
            .retire((old, old_arena), table_bytes + bitmap_bytes);
    }

    /// Number of entries.
    fn capacity(&self) -> usize {
        self.array.as_ref().map_or(0, ZeroedArray::len) * ENTRIES_PER_LINE
    }

    /// Number of entries with a key.
    pub fn key_count(&self) -> usize {
        max_keys(self.capacity()) - self.vacant
    }

    /// Every hash that has holders, with them.
    pub fn held<'p>(
        &'p self,
        spilled: &'p SpilledSets,
    ) -> impl Iterator<Item = (u64, StoredSet<'p>)> {
        let lines = self.array.as_ref().map(Lines::of).unwrap_or_default();
        let entries = lines.entries(spilled);
        let held = entries.map(|entry| (entry.key(), entry.set()));
        held.filter(|(_, set)| !set.is_empty())
    }
}

fn initial_entries(shared: &SharedState) -> usize {
    shared.initial_entries.load(Relaxed)
}
