//! The one writer's side of a shard's table: insert, remove, growth, clean-up, shrinking.
//!
//! Whoever holds the shard's lock owns this. Growth and clean-up are one operation: the members that
//! count are copied into a new generation of fitting size, which is announced, and the old one is
//! retired. It stops this shard's writers for the time of the copy (a shard is small), never a
//! reader. A removed key stays, with an empty set, until then.
//!
//! `unsafe` here: announcing an array to the directory. Sound because the array is owned here from
//! before it is announced until after its successor is, and then goes to the grace period's limbo.
//! Checked by `tests/differential.rs` and `tests/stress.rs`.

use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::Relaxed;

use crate::bitmap::{self, Arena};
use crate::counters::{Counters, count, count_many};
use crate::grace::Grace;
use crate::roster::Roster;
use crate::set::{EMPTY, Few, Holders, MAX_INLINE, Set};
use crate::table::{Directory, Place, Slot, Slots, capacity_of_class, class_for};
use crate::zeroed::Zeroed;

/// A bitmap goes back into the slot at this size; below the size at which it left, so that one worker
/// coming and going does not move it each time.
const UNSPILL_AT: usize = 3;

/// What the writers of all shards share.
pub(crate) struct Shared {
    pub grace: Grace,
    pub roster: Roster,
    pub counters: Counters,
    pub initial_slots: usize,
}

/// Which table an operation is on: its directory, and the shared parts.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub shared: &'a Shared,
    pub directory: &'a Directory,
}

#[derive(Default)]
#[repr(C)]
pub(crate) struct ShardTable {
    // What every store reads comes first, within a cache line.
    slots: Option<Zeroed<Slot>>,
    /// Keys that may still be added.
    room: usize,
    /// Keys that somebody holds.
    held: usize,
    /// Counts the tables this shard has had, so that the sweep notices a new one.
    generation: u64,
    arena: Arena,
}

/// Keys a table of `capacity` slots may have: 27/32, and always one slot vacant.
fn most_keys(capacity: usize) -> usize {
    capacity * 27 / 32
}

/// Slots for `held` keys in a table that comes and goes: 60 % full.
fn fitting_slots(held: usize) -> usize {
    held * 5 / 3 + 1
}

/// From one table to the next of a shard that grows.
const GROWTH: f64 = 1.42;
/// A table that has grown is less full than this.
const MOST_FULL_AFTER_GROWTH: f64 = 0.7;

/// The sizes that a growing shard's tables go through: `GROWTH` apart, and those of different shards
/// evenly spread in between. So at any time some shards are about to grow and some have just grown, and neither the
/// work nor the spare room of all of them peaks at once.
fn rung(shared: &Shared, shard: usize, at_least: f64) -> usize {
    // Bits reversed: the first few shards are as evenly spread as all of them.
    let phase = (shard as u32).reverse_bits() as f64 / f64::from(u32::MAX);
    let first = shared.initial_slots.max(1) as f64 * GROWTH.powf(phase);
    let rungs = (at_least / first).max(1.0).log(GROWTH).ceil();
    // `as` saturates, and a table of that size could not be had anyway.
    (first * GROWTH.powf(rungs)).ceil() as usize
}

/// Slots for a new table, after one with `keyed` keys of which `held` still count.
fn next_slots(shared: &Shared, shard: usize, held: usize, keyed: usize) -> usize {
    if held + 1 >= keyed - keyed / 5 {
        rung(shared, shard, (held + 1) as f64 / MOST_FULL_AFTER_GROWTH)
    } else {
        fitting_slots(held + 1).max(rung(shared, shard, 0.0))
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

    /// Adds `slot` to the holders of `hash`; false if it was one.
    #[inline]
    pub fn insert(&mut self, target: Target<'_>, place: Place, hash: u64, slot: u16) -> bool {
        let Self {
            slots: Some(array),
            room,
            held,
            arena,
            ..
        } = self
        else {
            return self.insert_renewed(target, place, hash, slot);
        };
        let (entry, set) = Slots::of(array).locate(hash, place.scaled);
        if set.is_vacant() {
            if *room == 0 {
                return self.insert_renewed(target, place, hash, slot);
            }
            entry.claim(hash, Few::one(slot).word());
            *room -= 1;
            *held += 1;
            return true;
        }
        match join(entry, set, slot, arena, target.shared) {
            Joined::Already => return false,
            Joined::First => *held += 1,
            Joined::Beside => {}
            Joined::Wider => {
                if arena.wants_packing(array.len() / 4) {
                    self.renew(target, place.shard);
                }
            }
        }
        true
    }

    /// As [`Self::insert`], where there is no table, or it is full.
    #[cold]
    #[inline(never)]
    fn insert_renewed(&mut self, target: Target<'_>, place: Place, hash: u64, slot: u16) -> bool {
        self.renew(target, place.shard);
        self.insert(target, place, hash, slot)
    }

    /// Takes `slot` from the holders of `hash`; false if it was none.
    pub fn remove(&mut self, target: Target<'_>, place: Place, hash: u64, slot: u16) -> bool {
        let Some(slots) = self.slots.as_ref() else {
            return false;
        };
        let (entry, set) = Slots::of(slots).locate(hash, place.scaled);
        if !set.contains(slot) {
            return false;
        }
        match set.holders() {
            Holders::Few(few) => {
                lessened(entry, few, |id| id == slot);
            }
            Holders::Many(bits) => {
                bitmap::assign(bits, slot, false);
                unspill_if_few(entry, set, bits, &mut self.arena, target.shared);
            }
        }
        if entry.set().is_empty() {
            self.held -= 1;
            self.shrink(target, place.shard);
        }
        true
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
            match set.holders() {
                Holders::Few(few) => {
                    removed += lessened(entry, few, |slot| {
                        gone.get(usize::from(slot / 64))
                            .is_some_and(|word| word >> (slot % 64) & 1 == 1)
                    });
                }
                Holders::Many(bits) => {
                    let count = bitmap::subtract(bits, gone);
                    if count > 0 {
                        unspill_if_few(entry, set, bits, &mut self.arena, target.shared);
                    }
                    removed += count;
                }
            }
            self.held -= usize::from(entry.set().is_empty());
        }
        (to - from.min(to), removed, to == slots.len())
    }

    /// Publishes a smaller table if few of the slots are of use.
    pub fn shrink(&mut self, target: Target<'_>, shard: usize) {
        let Some(array) = &self.slots else { return };
        // Below half of what a new table would be filled to.
        let sparse = array.len() > fitting_slots(2 * self.held);
        let emptied = self.held == 0 && self.keyed() * 4 > array.len();
        if emptied
            || sparse && array.len() > capacity_of_class(class_for(rung(target.shared, shard, 0.0)))
        {
            self.renew(target, shard);
        }
    }

    /// Slots with a key.
    fn keyed(&self) -> usize {
        let capacity = self.slots.as_ref().map_or(0, Zeroed::len);
        most_keys(capacity) - self.room
    }

    /// Every hash that has holders, with them.
    pub fn held(&self) -> impl Iterator<Item = (u64, Set<'_>)> {
        let slots = self.slots.as_ref().map_or(&[][..], Zeroed::as_slice);
        let entries = slots.iter().map(|entry| (entry.key(), entry.set()));
        entries.filter(|(_, set)| !set.is_empty())
    }

    /// Copies what counts into a new generation of fitting size, announces it, retires the old.
    #[cold]
    #[inline(never)]
    fn renew(&mut self, target: Target<'_>, shard: usize) {
        let Target { shared, directory } = target;
        let (keyed, held) = (self.keyed(), self.held);
        let (old, old_arena) = (self.slots.take(), std::mem::take(&mut self.arena));
        let old_len = old.as_ref().map_or(0, Zeroed::len);
        let gives_up = held == 0 && keyed > 0;
        self.generation += 1;
        (self.room, self.held) = (0, 0);
        if !gives_up {
            let class = class_for(next_slots(shared, shard, held, keyed));
            let array = Zeroed::new(capacity_of_class(class));
            shared
                .counters
                .table_bytes
                .fetch_add(array.bytes(), Relaxed);
            if let Some(old) = &old {
                self.copy(old, &array, target);
            }
            self.room = most_keys(array.len()) - self.held;
            // SAFETY: of that class, owned by `self` until the next call, retired below then.
            unsafe { directory.announce(shard, Some((&array, class))) };
            self.slots = Some(array);
        } else {
            // SAFETY: nothing is announced.
            unsafe { directory.announce(shard, None) };
        }
        let new_len = self.slots.as_ref().map_or(0, Zeroed::len);
        let Some(old) = old else { return };
        let events = &shared.counters.events;
        count(match new_len.cmp(&old_len) {
            std::cmp::Ordering::Greater => &events.growths,
            std::cmp::Ordering::Equal => &events.cleanups,
            std::cmp::Ordering::Less => &events.shrinks,
        });
        let (table_bytes, bitmap_bytes) = (old.bytes(), old_arena.bytes());
        shared.counters.table_bytes.fetch_sub(table_bytes, Relaxed);
        shared
            .counters
            .bitmap_bytes
            .fetch_sub(bitmap_bytes, Relaxed);
        shared
            .grace
            .retire((old, old_arena), table_bytes + bitmap_bytes);
    }

    fn copy(&mut self, old: &Zeroed<Slot>, new: &Zeroed<Slot>, target: Target<'_>) {
        let Target { shared, directory } = target;
        let any_dead = shared.roster.any_dead();
        let mut swept = 0;
        for entry in old.as_slice() {
            let set = entry.set();
            let word = if any_dead || set.is_spilled() {
                self.kept(set, any_dead, &mut swept, shared)
            } else {
                set.word()
            };
            if word > EMPTY {
                let key = entry.key();
                let free = Slots::of(new).vacancy(directory.place(key).scaled);
                free.claim(key, word);
                self.held += 1;
            }
        }
        count_many(&shared.counters.events.swept_memberships, swept);
    }

    /// The word of a set without its dead, its bitmap, if it needs one, in the new arena.
    fn kept(&mut self, set: Set<'_>, any_dead: bool, swept: &mut usize, shared: &Shared) -> u64 {
        let roster = &shared.roster;
        match set.holders() {
            Holders::Few(few) => {
                let kept = few.filtered(|slot| !roster.is_dead(slot));
                *swept += few.len() - kept.len();
                kept.word()
            }
            Holders::Many(bits) => {
                let is_kept = |slot: &u16| !any_dead || !roster.is_dead(*slot);
                if any_dead {
                    *swept += bitmap::slots(bits).filter(|slot| !is_kept(slot)).count();
                }
                let width = roster.width().max(bits.len() as u16);
                let kept = bitmap::slots(bits).filter(is_kept);
                packed(kept, width, &mut self.arena, shared)
            }
        }
    }
}

enum Joined {
    Already,
    /// The key was there, and nobody held it.
    First,
    Beside,
    /// In a bitmap that is wider than the one before.
    Wider,
}

/// Adds `slot` to the holders of a hash that has a key.
fn join(entry: &Slot, set: Set<'_>, slot: u16, arena: &mut Arena, shared: &Shared) -> Joined {
    match set.holders() {
        Holders::Few(few) if few.contains(slot) => Joined::Already,
        Holders::Few(few) => {
            entry.publish(grown(few, slot, arena, shared));
            if few.len() == 0 {
                Joined::First
            } else {
                Joined::Beside
            }
        }
        Holders::Many(bits) if bitmap::contains(bits, slot) => Joined::Already,
        Holders::Many(bits) if usize::from(slot / 64) < bits.len() => {
            bitmap::assign(bits, slot, true);
            Joined::Beside
        }
        Holders::Many(bits) => {
            widen(entry, set, bits, slot, arena, shared);
            Joined::Wider
        }
    }
}

/// The word for `few` and `slot`, spilled if there is no room.
fn grown(few: Few, slot: u16, arena: &mut Arena, shared: &Shared) -> u64 {
    few.with(slot).map_or_else(
        || {
            count(&shared.counters.events.spills);
            let members = few.ids().chain([slot]);
            arena.make(
                shared.roster.width(),
                members,
                &shared.grace,
                &shared.counters,
            )
        },
        Few::word,
    )
}

/// The word for a set of any size, in the smallest form.
fn packed(
    members: impl Iterator<Item = u16> + Clone,
    width: u16,
    arena: &mut Arena,
    shared: &Shared,
) -> u64 {
    if members.clone().nth(MAX_INLINE).is_some() {
        return arena.make(width, members, &shared.grace, &shared.counters);
    }
    // At most four, as just seen, so there is room for each.
    members
        .fold(Few::EMPTY, |few, slot| few.with(slot).unwrap_or(few))
        .word()
}

/// Replaces a bitmap by one that has room for `slot`.
fn widen(
    entry: &Slot,
    set: Set<'_>,
    bits: &[AtomicU64],
    slot: u16,
    arena: &mut Arena,
    shared: &Shared,
) {
    count(&shared.counters.events.widenings);
    let members = bitmap::slots(bits).chain([slot]);
    let width = shared.roster.width().max(slot / 64 + 1);
    entry.publish(arena.make(width, members, &shared.grace, &shared.counters));
    arena.retire(set.word(), &shared.grace);
}

/// Publishes `few` without `gone`.
fn lessened(entry: &Slot, few: Few, gone: impl Fn(u16) -> bool) -> usize {
    let kept = few.filtered(|slot| !gone(slot));
    if kept != few {
        entry.publish(kept.word());
    }
    few.len() - kept.len()
}

/// Moves what is left of a bitmap back into the slot, if it is little.
fn unspill_if_few(
    entry: &Slot,
    set: Set<'_>,
    bits: &[AtomicU64],
    arena: &mut Arena,
    shared: &Shared,
) {
    if bitmap::slots(bits).nth(UNSPILL_AT).is_none() {
        count(&shared.counters.events.unspills);
        let left = bitmap::slots(bits);
        entry.publish(
            left.fold(Few::EMPTY, |few, id| few.with(id).unwrap_or(few))
                .word(),
        );
        arena.retire(set.word(), &shared.grace);
    }
}
