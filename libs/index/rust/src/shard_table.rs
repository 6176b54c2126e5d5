//! The one writer's side of a shard's table: insert, remove, purge.
//!
//! Whoever has the right to write to the shard owns this. A search goes line by line, and its caller may let others
//! go on between two lines, so that the misses of many searches overlap ([`crate::write`]). A removed key stays, with
//! an empty set, until its slot takes another key or the table is renewed ([`crate::renewal`]).

use std::sync::Arc;

use kvatlas_pages::Pages;

use crate::bitmap::Arena;
use crate::brief;
use crate::cells::Cells;
use crate::counters::Counters;
use crate::entry::{self, Joined};
use crate::grace::{Grace, Pin};
use crate::line::{Line, SLOTS_PER_LINE, Slot};
use crate::renewal::{fitting_slots, most_keys};
use crate::roster::Roster;
use crate::set::Set;
use crate::sync::tally::AtomicUsize;
use crate::table::{Directory, Place, Slots, prefetch};
use crate::zeroed::Zeroed;

/// What the writers of all shards share.
pub(crate) struct Shared {
    pub grace: Grace,
    pub roster: Roster,
    pub counters: Counters,
    pub pages: Arc<Pages>,
    pub cells: Arc<Cells>,
    pub initial_slots: AtomicUsize,
}

/// Which table an operation is on, the shared parts, and the writer's pin.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub shared: &'a Shared,
    pub directory: &'a Directory,
    pub pin: &'a Pin<'a>,
    /// The epoch, now or a little ago.
    pub now: u64,
}

#[derive(Default)]
#[repr(C)]
pub(crate) struct ShardTable {
    // What every store reads comes first, within a cache line.
    pub(crate) lines: Option<Zeroed<Line>>,
    /// Slots that were never used and may still be.
    pub(crate) room: usize,
    /// Keys that somebody holds.
    pub(crate) held: usize,
    /// Counts the tables this shard has had, so that the sweep notices a new one.
    pub(crate) generation: u64,
    /// Whether the table is larger than a shard's smallest.
    pub(crate) shrinks: bool,
    pub(crate) arena: Arena,
}

/// A search for the slot of a hash, between two lines.
#[derive(Clone, Copy, Default)]
pub(crate) struct Search<'p> {
    pub hash: u64,
    slots: Slots<'p>,
    shard: u16,
    run: u16,
    /// Which search of its call it is.
    pub order: u32,
    /// The line that it reads next.
    at: u32,
    /// Lines that were read, full of other keys.
    step: u32,
    /// A slot on the way that may take another key, plus one.
    spare: u32,
}

impl<'p> Search<'p> {
    /// The beginning of a search for a block of a run. [`Self::fetch`] starts fetching the line where it begins.
    #[inline(always)]
    pub fn start(hash: u64, run: usize, directory: &Directory, pin: &'p Pin<'_>) -> Self {
        let Place { shard, scaled } = directory.place(hash);
        let slots = directory.open(shard, pin).unwrap_or_default();
        Self {
            hash,
            slots,
            // Shards are at most 2^16, and runs fewer; a table of a shard has far less than 2^32 slots.
            shard: shard as u16,
            run: run as u16,
            order: 0,
            at: slots.home(scaled) as u32,
            step: 0,
            spare: 0,
        }
    }

    /// The same search from its beginning.
    pub fn anew(&self, directory: &Directory, pin: &'p Pin<'_>) -> Self {
        Self {
            order: self.order,
            ..Self::start(self.hash, self.run(), directory, pin)
        }
    }

    /// Starts fetching the line where it begins.
    #[inline(always)]
    pub fn fetch(&self) {
        if let Some(line) = self.line() {
            prefetch(line);
        }
    }

    pub fn shard(&self) -> usize {
        self.shard.into()
    }

    /// Which run the block is of.
    pub fn run(&self) -> usize {
        self.run.into()
    }

    #[inline(always)]
    fn line(&self) -> Option<&'p Line> {
        self.slots.line(self.at as usize)
    }

    /// Goes on to the next line, and starts fetching it.
    #[inline(always)]
    fn advance(&mut self, directory: &Directory) {
        self.step += 1;
        let Place { scaled, .. } = directory.place(self.hash);
        self.at = self.slots.after(self.at as usize, scaled, self.step) as u32;
        if let Some(line) = self.line() {
            prefetch(line);
        }
    }

    /// Remembers the first slot on the way that may take another key.
    #[inline(always)]
    fn note_spare(&mut self, line: &Line, now: u64) {
        if self.spare == 0 {
            let free = line.free(now);
            if free != 0 {
                self.spare = self.at * SLOTS_PER_LINE as u32 + free.trailing_zeros() + 1;
            }
        }
    }

    fn spare(&self, cells: &'p Cells) -> Option<Slot<'p>> {
        let at = (self.spare as usize).checked_sub(1)?;
        self.slots.slot(at, cells)
    }
}

/// The first of the slots of a line that are marked.
#[inline(always)]
fn first<'p>(line: &'p Line, marks: u32, cells: &'p Cells) -> Slot<'p> {
    line.slot(marks.trailing_zeros() as usize % SLOTS_PER_LINE, cells)
}

/// What came of a look at a search's next line.
pub(crate) enum Step {
    /// The search reads another line.
    Further,
    /// The search may take a slot on a line that it has passed: by [`ShardTable::take_spare`], if no other one for the
    /// same hash is in flight. Such may have passed that line too, or be short of it.
    Spare,
    /// A holder was added or taken; false if there was nothing to change.
    Done(bool),
    /// The search must begin anew: its table is another now, or the slot that it meant to fill is taken. Until it has
    /// ended, no search for the same hash that began after it may go on.
    Anew,
}

/// A search from beginning to end with no others in flight.
fn alone<'p>(target: Target<'p>, hash: u64, mut step: impl FnMut(&mut Search<'p>) -> Step) -> bool {
    let start = || Search::start(hash, 0, target.directory, target.pin);
    let mut search = start();
    loop {
        match step(&mut search) {
            Step::Further | Step::Spare => {}
            Step::Done(changed) => return changed,
            Step::Anew => search = start(),
        }
    }
}

impl ShardTable {
    pub fn is_unused(&self) -> bool {
        self.lines.is_none()
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn contains(&self, place: Place, hash: u64, slot: u16, cells: &Cells) -> bool {
        self.lines.as_ref().is_some_and(|array| {
            let set = Slots::of(array).locate(hash, place.scaled, cells);
            set.contains(slot)
        })
    }

    /// Looks at the search's next line, to add `slot` to the holders of its hash.
    #[inline(always)]
    pub fn insert_step<'p>(
        &mut self,
        target: Target<'p>,
        search: &mut Search<'p>,
        slot: u16,
    ) -> Step {
        if !search.slots.are_of(self.lines.as_ref()) {
            return Step::Anew;
        }
        let Some(line) = search.line() else {
            self.renew(target, search.shard());
            return Step::Anew;
        };
        let cells = &*target.directory.cells;
        let one = brief::one(slot);
        let keyed = line.with_key(search.hash);
        if keyed != 0 {
            let entry = first(line, keyed, cells);
            let brief = entry.brief();
            if brief == one {
                return Step::Done(false);
            }
            if brief != brief::VACANT {
                return Step::Done(self.insert_beside(target, search.shard(), entry, slot));
            }
        }
        if !line.has_vacancy() {
            search.note_spare(line, target.now);
            let Place { scaled, .. } = target.directory.place(search.hash);
            if !line.was_passed(scaled) {
                if search.spare != 0 {
                    return Step::Spare;
                }
                line.let_pass(scaled);
            }
            search.advance(target.directory);
            return Step::Further;
        }
        if search.spare != 0 {
            return Step::Spare;
        }
        let entry = first(line, line.free(target.now), cells);
        if entry.brief() == brief::VACANT {
            if self.room == 0 {
                self.renew(target, search.shard());
                return Step::Anew;
            }
            self.room -= 1;
        }
        entry.claim(search.hash, one);
        self.held += 1;
        Step::Done(true)
    }

    /// Ends a search that has come to [`Step::Spare`].
    #[inline(never)]
    pub fn take_spare(&mut self, target: Target<'_>, search: &Search<'_>, slot: u16) -> Step {
        match search.spare(&target.directory.cells) {
            Some(spare) if brief::takes_key(spare.brief(), target.now) => {
                spare.claim(search.hash, brief::one(slot));
                self.held += 1;
                Step::Done(true)
            }
            // Another search in flight has taken it.
            _ => Step::Anew,
        }
    }

    /// Adds `slot` to a set that is there already, be it empty.
    #[inline(never)]
    fn insert_beside(
        &mut self,
        target: Target<'_>,
        shard: usize,
        entry: Slot<'_>,
        slot: u16,
    ) -> bool {
        match entry::join(entry, entry.set(), slot, &mut self.arena, target.shared) {
            Joined::Already => return false,
            Joined::First => self.held += 1,
            Joined::Beside => {}
            Joined::Wider => {
                if self.arena.wants_packing(self.capacity() / 4) {
                    self.renew(target, shard);
                }
            }
        }
        true
    }

    /// Looks at the search's next line, to take `slot` from the holders of its hash.
    #[inline(always)]
    pub fn remove_step<'p>(
        &mut self,
        target: Target<'p>,
        search: &mut Search<'p>,
        slot: u16,
    ) -> Step {
        if !search.slots.are_of(self.lines.as_ref()) {
            return Step::Anew;
        }
        let Some(line) = search.line() else {
            return Step::Done(false);
        };
        let keyed = line.with_key(search.hash);
        if keyed != 0 {
            let entry = first(line, keyed, &target.directory.cells);
            let brief = entry.brief();
            if brief == brief::one(slot) {
                entry.publish(brief::emptied(target.pin.unlinked_passes()));
                self.lost_one(target, search.shard());
                return Step::Done(true);
            }
            if brief != brief::VACANT {
                return Step::Done(self.remove_from(target, search.shard(), entry, slot));
            }
        }
        let Place { scaled, .. } = target.directory.place(search.hash);
        if !line.was_passed(scaled) {
            return Step::Done(false);
        }
        search.advance(target.directory);
        Step::Further
    }

    /// Takes `slot` from a set that may have others.
    #[inline(never)]
    fn remove_from(
        &mut self,
        target: Target<'_>,
        shard: usize,
        entry: Slot<'_>,
        slot: u16,
    ) -> bool {
        let (left, any) = entry::leave(entry, entry.set(), slot, &mut self.arena, target);
        if left && !any {
            self.lost_one(target, shard);
        }
        left
    }

    #[inline(always)]
    fn lost_one(&mut self, target: Target<'_>, shard: usize) {
        self.held -= 1;
        // More than what `shrink` shrinks at, less than what is usual.
        if self.held < self.capacity() / 3 && (self.shrinks || self.held == 0) {
            self.shrink(target, shard);
        }
    }

    /// Adds `slot` to the holders of `hash`; false if it was one.
    pub fn insert(&mut self, target: Target<'_>, hash: u64, slot: u16) -> bool {
        alone(target, hash, |search| {
            let step = self.insert_step(target, search, slot);
            if matches!(step, Step::Spare) {
                return self.take_spare(target, search, slot);
            }
            step
        })
    }

    /// Takes `slot` from the holders of `hash`; false if it was none.
    pub fn remove(&mut self, target: Target<'_>, hash: u64, slot: u16) -> bool {
        alone(target, hash, |search| {
            self.remove_step(target, search, slot)
        })
    }

    /// Removes every member whose bit is in `gone` from up to `budget` slots from `from` on.
    /// Returns how many slots were visited, how many members removed, and whether the end is reached.
    pub fn purge(
        &mut self,
        target: Target<'_>,
        from: usize,
        budget: usize,
        gone: &[u64],
    ) -> (usize, usize, bool) {
        let Some(array) = self.lines.as_ref() else {
            return (0, 0, true);
        };
        let slots = Slots::of(array);
        let to = from.saturating_add(budget).min(slots.len());
        let mut removed = 0;
        for at in from.min(to)..to {
            let Some(entry) = slots.slot(at, &target.shared.cells) else {
                break;
            };
            if !brief::is_held(entry.brief()) {
                continue;
            }
            removed += entry::purge(entry, entry.set(), gone, &mut self.arena, target);
            self.held -= usize::from(!brief::is_held(entry.brief()));
        }
        (to - from.min(to), removed, to == slots.len())
    }

    /// Publishes a smaller table if few of the slots are of use.
    #[inline(never)]
    pub fn shrink(&mut self, target: Target<'_>, shard: usize) {
        // Below half of what a new table would be filled to.
        let sparse = self.capacity() > fitting_slots(2 * self.held);
        let emptied = self.held == 0 && self.keyed() * 4 > self.capacity();
        if emptied || sparse && self.shrinks {
            self.renew(target, shard);
        }
    }

    /// The number of slots.
    pub fn capacity(&self) -> usize {
        self.lines.as_ref().map_or(0, Zeroed::len) * SLOTS_PER_LINE
    }

    /// Slots with a key.
    pub fn keyed(&self) -> usize {
        most_keys(self.capacity()) - self.room
    }

    /// Every hash that has holders, with them.
    pub fn held<'p>(&'p self, cells: &'p Cells) -> impl Iterator<Item = (u64, Set<'p>)> {
        let slots = self.lines.as_ref().map(Slots::of).unwrap_or_default();
        let entries = slots.all(cells).map(|entry| (entry.key(), entry.set()));
        entries.filter(|(_, set)| !set.is_empty())
    }
}
