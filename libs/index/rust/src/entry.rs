//! One table slot's set: who joins it, who leaves it, and in which form it is kept.
//!
//! Called by the one writer of the slot's shard. A set of up to four is in its word, a larger one in a bitmap of the
//! shard's arena, and the word in the slot in short or in a cell ([`crate::cells`]); each change is published by one store, to the slot, the
//! cell, or one word of the bitmap.

use crate::sync::atomic::AtomicU64;

use crate::bitmap::{self, Arena};
use crate::brief;
use crate::counters::count;
use crate::line::Slot;
use crate::set::{Few, Holders, MAX_INLINE, Set};
use crate::shard_table::{Shared, Target};

/// A bitmap goes back into the slot at this size; below the size at which it left, so that one worker
/// coming and going does not move it each time.
const UNSPILL_AT: usize = 3;

pub(crate) enum Joined {
    Already,
    /// The key was there, and nobody held it.
    First,
    Beside,
    /// In a bitmap that is wider than the one before.
    Wider,
}

/// Adds `slot` to the holders of a hash that has a key.
pub(crate) fn join(
    entry: Slot<'_>,
    set: Set<'_>,
    slot: u16,
    arena: &mut Arena,
    shared: &Shared,
) -> Joined {
    match set.holders() {
        Holders::Few(few) if few.contains(slot) => Joined::Already,
        Holders::Few(few) => {
            let word = grown(few, slot, arena, shared);
            put(entry, word, arena, shared);
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

/// Takes `slot` from the holders of a hash; whether it was one, and whether anyone is left.
pub(crate) fn leave(
    entry: Slot<'_>,
    set: Set<'_>,
    slot: u16,
    arena: &mut Arena,
    target: Target<'_>,
) -> (bool, bool) {
    if !set.contains(slot) {
        return (false, !set.is_empty());
    }
    match set.holders() {
        Holders::Few(few) => {
            lessened(entry, few, |id| id == slot, arena, target);
        }
        Holders::Many(bits) => {
            bitmap::assign(bits, slot, false);
            unspill_if_few(entry, set, bits, arena, target);
        }
    }
    (true, !entry.set().is_empty())
}

/// Takes all whose bit is in `gone` from the holders; returns how many they were.
pub(crate) fn purge(
    entry: Slot<'_>,
    set: Set<'_>,
    gone: &[u64],
    arena: &mut Arena,
    target: Target<'_>,
) -> usize {
    match set.holders() {
        Holders::Few(few) => {
            let is_gone = |slot: u16| {
                gone.get(usize::from(slot / 64))
                    .is_some_and(|word| word >> (slot % 64) & 1 == 1)
            };
            lessened(entry, few, is_gone, arena, target)
        }
        Holders::Many(bits) => {
            let count = bitmap::subtract(bits, gone);
            if count > 0 {
                unspill_if_few(entry, set, bits, arena, target);
            }
            count
        }
    }
}

/// The word for `few` and `slot`, spilled if there is no room.
fn grown(few: Few, slot: u16, arena: &mut Arena, shared: &Shared) -> u64 {
    few.with(slot).map_or_else(
        || {
            count(&shared.counters.events.spills);
            let members = few.ids().chain([slot]);
            let width = shared.roster.width();
            arena.make(width, members, &shared.grace, &shared.counters)
        },
        Few::word,
    )
}

/// The word for a set of any size, in the smallest form.
pub(crate) fn packed(
    members: impl Iterator<Item = u16> + Clone,
    width: u16,
    arena: &mut Arena,
    shared: &Shared,
) -> u64 {
    if members.clone().nth(MAX_INLINE).is_some() {
        return arena.make(width, members, &shared.grace, &shared.counters);
    }
    inlined(members).word()
}

/// A set of at most four, so that there is room for each.
fn inlined(members: impl Iterator<Item = u16>) -> Few {
    members.fold(Few::EMPTY, |few, slot| few.with(slot).unwrap_or(few))
}

/// Replaces a bitmap by one that has room for `slot`.
fn widen(
    entry: Slot<'_>,
    set: Set<'_>,
    bits: &[AtomicU64],
    slot: u16,
    arena: &mut Arena,
    shared: &Shared,
) {
    count(&shared.counters.events.widenings);
    let members = bitmap::slots(bits).chain([slot]);
    let width = shared.roster.width().max(slot / 64 + 1);
    let word = arena.make(width, members, &shared.grace, &shared.counters);
    put(entry, word, arena, shared);
    arena.retire(set.word(), &shared.grace);
}

/// Publishes `few` without `gone`; returns how many they were.
fn lessened(
    entry: Slot<'_>,
    few: Few,
    gone: impl Fn(u16) -> bool,
    arena: &mut Arena,
    target: Target<'_>,
) -> usize {
    let kept = few.filtered(|slot| !gone(slot));
    if kept != few {
        publish_few(entry, kept, arena, target);
    }
    few.len() - kept.len()
}

fn publish_few(entry: Slot<'_>, few: Few, arena: &mut Arena, target: Target<'_>) {
    if few.len() == 0 {
        let emptied = brief::emptied(target.pin.unlinked_passes());
        put_brief(entry, emptied, arena, target.shared);
    } else {
        put(entry, few.word(), arena, target.shared);
    }
}

/// Publishes the word of a set that has holders: in short if that is possible, else in the slot's cell.
fn put(entry: Slot<'_>, word: u64, arena: &mut Arena, shared: &Shared) {
    if let Some(brief) = brief::of_word(word) {
        put_brief(entry, brief, arena, shared);
    } else if let Some(cell) = brief::cell(entry.brief()) {
        arena.cells.replace(&shared.cells, cell, word);
    } else {
        let cell = arena.cells.put(&shared.cells, word, &shared.grace);
        entry.publish(brief::in_cell(cell));
    }
}

fn put_brief(entry: Slot<'_>, brief: u32, arena: &mut Arena, shared: &Shared) {
    let before = entry.brief();
    entry.publish(brief);
    if let Some(cell) = brief::cell(before) {
        arena.cells.retire(cell, &shared.grace);
    }
}

/// Moves what is left of a bitmap back into the slot, if it is little.
fn unspill_if_few(
    entry: Slot<'_>,
    set: Set<'_>,
    bits: &[AtomicU64],
    arena: &mut Arena,
    target: Target<'_>,
) {
    if bitmap::slots(bits).nth(UNSPILL_AT).is_none() {
        let shared = target.shared;
        count(&shared.counters.events.unspills);
        publish_few(entry, inlined(bitmap::slots(bits)), arena, target);
        arena.retire(set.word(), &shared.grace);
    }
}
