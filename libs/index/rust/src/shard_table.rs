//! The one writer's side of a shard's table: insert, remove, purge.
//!
//! Whoever has the right to write to the shard owns this. A search goes line by line, and its caller may let others
//! go on between two lines, so that the misses of many searches overlap ([`crate::write`]). A removed key stays, with
//! an empty set, until its slot takes another key or the table is renewed ([`crate::renewal`]).

use std::sync::Arc;

use kvatlas_pages::Pages;

use crate::bitmap::Arena;
use crate::counters::Counters;
use crate::entry::{self, Joined};
use crate::grace::{Grace, Pin};
use crate::renewal::{fitting_slots, most_keys};
use crate::roster::Roster;
use crate::set::{Few, Set, emptied, is_held, takes_key};
use crate::sync::tally::AtomicUsize;
use crate::table::{Directory, Line, Place, SLOTS_PER_LINE, Slot, Slots, prefetch};
use crate::zeroed::Zeroed;

/// What the writers of all shards share.
pub(crate) struct Shared {
    pub grace: Grace,
    pub roster: Roster,
    pub counters: Counters,
    pub pages: Arc<Pages>,
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
    pub(crate) slots: Option<Zeroed<Slot>>,
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
    /// First slot of the line that it reads next.
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
            let free = marks(line, |entry| takes_key(entry.word(), now));
            if free != 0 {
                self.spare = self.at + free.trailing_zeros() + 1;
            }
        }
    }

    fn spare(&self) -> Option<&'p Slot> {
        self.slots.slot((self.spare as usize).checked_sub(1)?)
    }
}

/// A bit for each slot of a line, the first in the lowest.
#[inline(always)]
fn marks(line: &Line, marked: impl Fn(&Slot) -> bool) -> u32 {
    let [first, second, third, fourth] = line;
    u32::from(marked(first))
        | u32::from(marked(second)) << 1
        | u32::from(marked(third)) << 2
        | u32::from(marked(fourth)) << 3
}

/// The first slot of a line with that key. For key 0 it may be a vacant one, if the line does not have it.
#[inline(always)]
fn keyed(line: &Line, hash: u64) -> Option<&Slot> {
    // No short circuit: which of a line's slots it is cannot be foreseen.
    let same = marks(line, |slot| slot.key() == hash);
    (same != 0).then(|| &line[same.trailing_zeros() as usize % SLOTS_PER_LINE])
}

/// Whether a search ends here, because a key that is further on would have taken a slot of this line.
#[inline(always)]
fn has_vacancy(line: &Line) -> bool {
    line[SLOTS_PER_LINE - 1].set().is_vacant()
}

/// What came of a look at a search's next line.
pub(crate) enum Step {
    /// The search reads another line.
    Further,
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
            Step::Further => {}
            Step::Done(changed) => return changed,
            Step::Anew => search = start(),
        }
    }
}

impl ShardTable {
    pub fn is_unused(&self) -> bool {
        self.slots.is_none()
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn contains(&self, place: Place, hash: u64, slot: u16) -> bool {
        self.slots
            .as_ref()
            .is_some_and(|array| Slots::of(array).locate(hash, place.scaled).1.contains(slot))
    }

    /// Looks at the search's next line, to add `slot` to the holders of its hash.
    #[inline(always)]
    pub fn insert_step<'p>(
        &mut self,
        target: Target<'p>,
        search: &mut Search<'p>,
        slot: u16,
    ) -> Step {
        if !search.slots.are_of(self.slots.as_ref()) {
            return Step::Anew;
        }
        let Some(line) = search.line() else {
            self.renew(target, search.shard());
            return Step::Anew;
        };
        let one = Few::one(slot).word();
        if let Some(entry) = keyed(line, search.hash) {
            let set = entry.set();
            if set.word() == one {
                return Step::Done(false);
            }
            if !set.is_vacant() {
                return Step::Done(self.insert_beside(target, search.shard(), entry, set, slot));
            }
        }
        if !has_vacancy(line) {
            search.note_spare(line, target.now);
            search.advance(target.directory);
            return Step::Further;
        }
        if let Some(spare) = search.spare() {
            if takes_key(spare.word(), target.now) {
                spare.claim(search.hash, one);
                self.held += 1;
                return Step::Done(true);
            }
            // Another search in flight has taken it, perhaps for the same hash: on a line that this one has passed.
            return Step::Anew;
        }
        let free = marks(line, |entry| takes_key(entry.word(), target.now));
        let entry = &line[free.trailing_zeros() as usize % SLOTS_PER_LINE];
        if entry.set().is_vacant() {
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

    /// Adds `slot` to a set that is there already, be it empty.
    #[inline(never)]
    fn insert_beside(
        &mut self,
        target: Target<'_>,
        shard: usize,
        entry: &Slot,
        set: Set<'_>,
        slot: u16,
    ) -> bool {
        match entry::join(entry, set, slot, &mut self.arena, target.shared) {
            Joined::Already => return false,
            Joined::First => self.held += 1,
            Joined::Beside => {}
            Joined::Wider => {
                let slots = self.slots.as_ref().map_or(0, Zeroed::len);
                if self.arena.wants_packing(slots / 4) {
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
        if !search.slots.are_of(self.slots.as_ref()) {
            return Step::Anew;
        }
        let Some(line) = search.line() else {
            return Step::Done(false);
        };
        if let Some(entry) = keyed(line, search.hash) {
            let set = entry.set();
            if set.word() == Few::one(slot).word() {
                entry.publish(emptied(target.pin.unlinked_passes()));
                self.lost_one(target, search.shard());
                return Step::Done(true);
            }
            if !set.is_vacant() {
                let (left, any) = entry::leave(entry, set, slot, &mut self.arena, target);
                if left && !any {
                    self.lost_one(target, search.shard());
                }
                return Step::Done(left);
            }
        }
        if has_vacancy(line) {
            return Step::Done(false);
        }
        search.advance(target.directory);
        Step::Further
    }

    #[inline(always)]
    fn lost_one(&mut self, target: Target<'_>, shard: usize) {
        self.held -= 1;
        let slots = self.slots.as_ref().map_or(0, Zeroed::len);
        // More than what `shrink` shrinks at, less than what is usual.
        if self.held < slots / 3 && (self.shrinks || self.held == 0) {
            self.shrink(target, shard);
        }
    }

    /// Adds `slot` to the holders of `hash`; false if it was one.
    pub fn insert(&mut self, target: Target<'_>, hash: u64, slot: u16) -> bool {
        alone(target, hash, |search| {
            self.insert_step(target, search, slot)
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
        let Some(array) = self.slots.as_ref() else {
            return (0, 0, true);
        };
        let slots = array.as_slice();
        let to = from.saturating_add(budget).min(slots.len());
        let mut removed = 0;
        for entry in &slots[from.min(to)..to] {
            let set = entry.set();
            if set.is_empty() {
                continue;
            }
            removed += entry::purge(entry, set, gone, &mut self.arena, target);
            self.held -= usize::from(!is_held(entry.word()));
        }
        (to - from.min(to), removed, to == slots.len())
    }

    /// Publishes a smaller table if few of the slots are of use.
    #[inline(never)]
    pub fn shrink(&mut self, target: Target<'_>, shard: usize) {
        let Some(array) = &self.slots else { return };
        // Below half of what a new table would be filled to.
        let sparse = array.len() > fitting_slots(2 * self.held);
        let emptied = self.held == 0 && self.keyed() * 4 > array.len();
        if emptied || sparse && self.shrinks {
            self.renew(target, shard);
        }
    }

    /// Slots with a key.
    pub fn keyed(&self) -> usize {
        let capacity = self.slots.as_ref().map_or(0, Zeroed::len);
        most_keys(capacity) - self.room
    }

    /// Every hash that has holders, with them.
    pub fn held(&self) -> impl Iterator<Item = (u64, Set<'_>)> {
        let slots = self.slots.as_ref().map_or(&[][..], Zeroed::as_slice);
        let entries = slots.iter().map(|entry| (entry.key(), entry.set()));
        entries.filter(|(_, set)| !set.is_empty())
    }
}
