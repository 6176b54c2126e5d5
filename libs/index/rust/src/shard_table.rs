//! The one writer's side of a shard's table: insert, remove, purge.
//!
//! Whoever has the right to write to the shard owns this. A change takes a few turns, and its caller may let others
//! go on between them, so that the misses of many overlap ([`crate::write`]): if it can be made at the key's home, it
//! is; else the lines where it goes on are asked for, and in its last turn it is made in one go. So two changes of
//! one key never meet half-way. A removed key stays, with an empty set, until its slot takes another key; searches do not
//! count on it ([`crate::stations`]).

use std::sync::Arc;

use crate::bitmap::Arena;
use crate::counters::Counters;
use crate::entry::{self, Joined};
use crate::grace::{Grace, Pin};
use crate::pages::Pages;
use crate::renewal::fitting_slots;
use crate::roster::Roster;
use crate::set::{Few, Set, emptied, is_held};
use crate::stations::{LEAPS, free_slot, held_in, marks};
use crate::sync::tally::AtomicUsize;
use crate::table::{Directory, Place, SLOTS_PER_LINE, Slot, Slots, prefetch};
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
    /// Keys that somebody holds.
    pub(crate) held: usize,
    /// How many of them the table takes.
    pub(crate) most_held: usize,
    /// Keys that were held in this table and are not any more.
    pub(crate) lost: usize,
    /// Whether any key went on from more than [`LEAPS`] stations.
    pub(crate) is_far: bool,
    /// Counts the tables this shard has had, so that the sweep notices a new one.
    pub(crate) generation: u64,
    /// Whether the table is larger than a shard's smallest.
    pub(crate) shrinks: bool,
    pub(crate) arena: Arena,
}

/// A search for the slot of a hash, between two turns.
#[derive(Clone, Copy, Default)]
pub(crate) struct Search<'p> {
    pub hash: u64,
    slots: Slots<'p>,
    shard: u32,
    home: u32,
    /// How much of the way was read: the home, and its neighbours.
    turn: u8,
}

impl<'p> Search<'p> {
    /// Starts the search, and fetching the line where it begins.
    #[inline(always)]
    pub fn start(hash: u64, directory: &Directory, pin: &'p Pin<'_>) -> Self {
        let Place { shard, scaled } = directory.place(hash);
        let slots = directory.open(shard, pin).unwrap_or_default();
        let home = slots.home(scaled);
        if let Some(line) = slots.lines.get(home) {
            prefetch(line);
        }
        Self {
            hash,
            slots,
            // Shards are at most 2^16, and a table of one of them has far less than 2^32 lines.
            shard: shard as u32,
            home: home as u32,
            turn: 0,
        }
    }

    #[inline(always)]
    pub fn shard(&self) -> usize {
        self.shard as usize
    }

    #[inline(always)]
    fn home(&self) -> usize {
        self.home as usize
    }
}

/// Of a table from which much was removed: keys lie further from home there, so it takes fewer of them.
fn most_after_losses(slots: usize) -> usize {
    slots * 4 / 5
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
            .and_then(|array| Slots::of(array).find(hash, place.scaled))
            .is_some_and(|set| set.contains(slot))
    }

    /// Starts a search anew if the table it began in is no longer this one.
    #[inline(always)]
    fn follow<'p>(&self, search: &mut Search<'p>, target: Target<'p>) {
        if !search.slots.are_of(self.slots.as_ref()) {
            *search = Search::start(search.hash, target.directory, target.pin);
        }
    }

    /// Adds `slot` to the holders of the search's hash. None if that takes another turn; else false if it was one.
    #[inline(always)]
    pub fn insert_step<'p>(
        &mut self,
        target: Target<'p>,
        search: &mut Search<'p>,
        slot: u16,
    ) -> Option<bool> {
        self.follow(search, target);
        let (hash, home) = (search.hash, search.home());
        if search.turn > 0 {
            return self.insert_later(target, search, slot);
        }
        let Some(line) = search.slots.lines.get(home) else {
            return Some(self.insert_away(target, search, slot));
        };
        let one = Few::one(slot).word();
        if let Some((entry, set)) = held_in(line, hash) {
            return Some(
                set.word() != one && self.insert_beside(target, search.shard(), entry, set, slot),
            );
        }
        let (marks, free) = (marks(line), free_slot(line, target.now));
        if marks == 0
            && self.held < self.most_held
            && let Some(entry) = free
        {
            entry.claim(hash, one);
            self.held += 1;
            return Some(true);
        }
        search.turn = 1;
        // Where it may be; and where it will be stored, if there is no room at home.
        let next = if free.is_none() { 0b11 } else { 0 };
        search.slots.prefetch_way(home, marks | next);
        None
    }

    /// As [`Self::insert_step`], once the home was read.
    #[inline(never)]
    fn insert_later<'p>(
        &mut self,
        target: Target<'p>,
        search: &mut Search<'p>,
        slot: u16,
    ) -> Option<bool> {
        if search.turn == 1 && search.slots.is_group_full(search.home(), target.now) {
            search.turn = 2;
            search.slots.prefetch_station(search.home());
            return None;
        }
        Some(self.insert_away(target, search, slot))
    }

    /// As [`Self::insert_step`] in one go, wherever the way leads.
    #[inline(never)]
    fn insert_away(&mut self, target: Target<'_>, search: &Search<'_>, slot: u16) -> bool {
        let (hash, shard) = (search.hash, search.shard());
        let scaled = target.directory.place(hash).scaled;
        let one = Few::one(slot).word();
        loop {
            if let Some(slots) = target.directory.open(shard, target.pin) {
                let home = slots.home(scaled);
                if let Some((_, entry, set)) = slots.find_from(hash, home) {
                    return set.word() != one
                        && self.insert_beside(target, shard, entry, set, slot);
                }
                if self.held < self.most_held
                    && let Some(stations) = slots.give(home, hash, one, target.now)
                {
                    self.is_far |= stations >= LEAPS;
                    self.held += 1;
                    return true;
                }
            }
            self.renew(target, shard);
        }
    }

    /// Adds `slot` to a set that has others.
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

    /// Takes `slot` from the holders of the search's hash. None if that takes another turn; else false if it was none.
    #[inline(always)]
    pub fn remove_step<'p>(
        &mut self,
        target: Target<'p>,
        search: &mut Search<'p>,
        slot: u16,
    ) -> Option<bool> {
        self.follow(search, target);
        let (slots, home) = (search.slots, search.home());
        let Some(line) = slots.lines.get(home) else {
            return Some(false);
        };
        if search.turn > 0 {
            let found = slots.find_from(search.hash, home);
            return Some(found.is_some_and(|(line, entry, set)| {
                self.remove_at(target, search, line, (entry, set), slot)
            }));
        }
        if let Some(found) = held_in(line, search.hash) {
            return Some(self.remove_at(target, search, home, found, slot));
        }
        let marks = marks(line);
        if marks == 0 {
            return Some(false);
        }
        search.turn = 1;
        slots.prefetch_way(home, marks);
        None
    }

    #[inline(always)]
    fn remove_at<'p>(
        &mut self,
        target: Target<'p>,
        search: &Search<'p>,
        line: usize,
        (entry, set): (&'p Slot, Set<'p>),
        slot: u16,
    ) -> bool {
        let (left, any) = if set.word() == Few::one(slot).word() {
            entry.publish(emptied(target.pin.unlinked_passes()));
            (true, false)
        } else {
            entry::leave(entry, set, slot, &mut self.arena, target)
        };
        if left && !any {
            self.lose(target, search.slots, search.home(), line);
            let slots = self.slots.as_ref().map_or(0, Zeroed::len);
            // More than what `shrink` shrinks at, less than what is usual.
            if self.held < slots / 3 && (self.shrinks || self.held == 0) {
                self.shrink(target, search.shard());
            }
        }
        left
    }

    /// Accounts for a key on `line` that nobody holds any more.
    #[inline(always)]
    fn lose(&mut self, target: Target<'_>, slots: Slots<'_>, home: usize, line: usize) {
        slots.unmark(home, line, self.is_far, |key| {
            slots.home(target.directory.place(key).scaled)
        });
        self.held -= 1;
        self.lost += 1;
        let capacity = slots.lines.len() * SLOTS_PER_LINE;
        if self.lost == capacity / 4 {
            self.most_held = most_after_losses(capacity);
        }
    }

    /// Adds `slot` to the holders of `hash`; false if it was one.
    pub fn insert(&mut self, target: Target<'_>, hash: u64, slot: u16) -> bool {
        let mut search = Search::start(hash, target.directory, target.pin);
        loop {
            if let Some(inserted) = self.insert_step(target, &mut search, slot) {
                return inserted;
            }
        }
    }

    /// Takes `slot` from the holders of `hash`; false if it was none.
    pub fn remove(&mut self, target: Target<'_>, hash: u64, slot: u16) -> bool {
        let mut search = Search::start(hash, target.directory, target.pin);
        loop {
            if let Some(removed) = self.remove_step(target, &mut search, slot) {
                return removed;
            }
        }
    }

    /// Removes every member whose bit is in `gone` from up to `budget` slots from `from` on.
    /// Returns how many slots were visited, how many members removed, and whether the end is reached.
    pub fn purge(
        &mut self,
        target: Target<'_>,
        shard: usize,
        from: usize,
        budget: usize,
        gone: &[u64],
    ) -> (usize, usize, bool) {
        let Some(table) = target.directory.open(shard, target.pin) else {
            return (0, 0, true);
        };
        let slots = table.lines.as_flattened();
        let to = from.saturating_add(budget).min(slots.len());
        let from = from.min(to);
        let mut removed = 0;
        for (at, entry) in (from..to).zip(&slots[from..to]) {
            let set = entry.set();
            if set.is_empty() {
                continue;
            }
            removed += entry::purge(entry, set, gone, &mut self.arena, target);
            if !is_held(entry.word()) {
                let home = table.home(target.directory.place(entry.key()).scaled);
                self.lose(target, table, home, at / SLOTS_PER_LINE);
            }
        }
        (to - from, removed, to == slots.len())
    }

    /// Publishes a smaller table if few of the slots are of use.
    #[inline(never)]
    pub fn shrink(&mut self, target: Target<'_>, shard: usize) {
        let Some(array) = &self.slots else { return };
        // Below half of what a new table would be filled to.
        let sparse = array.len() > fitting_slots(2 * self.held);
        // Not each time that the few blocks of a small index come and go.
        let emptied = self.held == 0 && self.lost * 4 > array.len();
        if emptied || sparse && self.shrinks {
            self.renew(target, shard);
        }
    }

    /// Every hash that has holders, with them.
    pub fn held(&self) -> impl Iterator<Item = (u64, Set<'_>)> {
        let slots = self.slots.as_ref().map_or(&[][..], Zeroed::as_slice);
        let entries = slots.iter().map(|entry| (entry.key(), entry.set()));
        entries.filter(|(_, set)| !set.is_empty())
    }

    /// Slots with a key that nobody holds.
    #[cfg(all(test, not(loom)))]
    pub fn waiting(&self) -> usize {
        let slots = self.slots.as_ref().map_or(&[][..], Zeroed::as_slice);
        let words = slots.iter().map(Slot::word);
        words.filter(|&word| word != 0 && !is_held(word)).count()
    }
}
