//! Growth, clean-up and shrinking of a shard's table: one operation, a copy into a new generation.
//!
//! The members that count are copied into slots of fitting number, which are announced, and the old ones are retired.
//! It stops this shard's writers for the time of the copy (a shard is small), never a reader.
//!
//! `unsafe` here: announcing an array to the directory. Sound because the array is owned by the shard's table from
//! before it is announced until after its successor is, and then goes to the grace period's limbo.
//! Checked by `tests/differential.rs` and `tests/stress.rs`.

use crate::sync::atomic::Ordering::Relaxed;

use kvatlas_pages::SMALL_PAGE;

use crate::bitmap;
use crate::brief;
use crate::counters::{count, count_many};
use crate::entry::packed;
use crate::line::{Line, SLOTS_PER_LINE};
use crate::set::{self, Holders, Set};
use crate::shard_table::{ShardTable, Shared, Target};
use crate::table::{Directory, Slots, class_for, lines_of_class};
use crate::zeroed::Zeroed;

/// Keys a table of `capacity` slots may have: 5/6, and always one slot vacant.
pub(crate) fn most_keys(capacity: usize) -> usize {
    capacity * 5 / 6
}

/// Slots for `held` keys in a table that comes and goes: 60 % full.
pub(crate) fn fitting_slots(held: usize) -> usize {
    held * 5 / 3 + 1
}

/// From one table to the next of a shard that grows.
const GROWTH: f64 = 2.0;
/// A table that has grown is less full than this.
const MOST_FULL_AFTER_GROWTH: f64 = 0.7;

/// The smallest table of a shard, in slots.
fn first_rung(shared: &Shared, shard: usize) -> usize {
    rung(shared, shard, 0.0)
}

/// The sizes that a growing shard's tables go through: `GROWTH` apart, and those of different shards
/// evenly spread in between. So at any time some shards are about to grow and some have just grown, and neither the
/// work nor the spare room of all of them peaks at once.
fn rung(shared: &Shared, shard: usize, at_least: f64) -> usize {
    // Bits reversed: the first few shards are as evenly spread as all of them.
    let phase = (shard as u32).reverse_bits() as f64 / f64::from(u32::MAX);
    let initial = shared.initial_slots.load(Relaxed).max(1);
    let first = initial as f64 * GROWTH.powf(phase);
    let rungs = (at_least / first).max(1.0).log(GROWTH).ceil();
    // `as` saturates, and a table of that size could not be had anyway.
    (first * GROWTH.powf(rungs)).ceil() as usize
}

/// Slots for a new table, after one with `keyed` keys of which `held` still count.
fn next_slots(shared: &Shared, shard: usize, held: usize, keyed: usize) -> usize {
    if held + 1 >= keyed - keyed / 5 {
        rung(shared, shard, (held + 1) as f64 / MOST_FULL_AFTER_GROWTH)
    } else {
        fitting_slots(held + 1).max(first_rung(shared, shard))
    }
}

/// The least slots a shard must start with for `memberships` spread over `shards` to stay clear of growth.
pub(crate) fn slots_reserved(memberships: usize, shards: usize) -> usize {
    let keys = memberships as f64 / shards as f64;
    // No shard has many more than its share: five standard deviations.
    ((keys + 5.0 * keys.sqrt()) * 6.0 / 5.0).ceil() as usize
}

impl ShardTable {
    /// Makes the table as large as a shard's smallest is, if it is not, and takes its memory from the system.
    pub fn reserve(&mut self, target: Target<'_>, shard: usize) {
        let least = lines_of_class(class_for(first_rung(target.shared, shard)));
        // Twice where nobody holds anything any more: then the first time only gives the table up.
        while self.lines.as_ref().map_or(0, Zeroed::len) < least {
            self.renew(target, shard);
        }
        let lines = self.lines.as_ref().map_or(&[][..], Zeroed::as_slice);
        let page_lines = SMALL_PAGE / size_of::<Line>();
        lines.iter().step_by(page_lines).for_each(Line::touch);
    }

    /// Copies what counts into a new generation of fitting size, announces it, retires the old.
    #[cold]
    #[inline(never)]
    pub fn renew(&mut self, target: Target<'_>, shard: usize) {
        let Target {
            shared, directory, ..
        } = target;
        let (keyed, held) = (self.keyed(), self.held);
        let (old, old_arena) = (self.lines.take(), std::mem::take(&mut self.arena));
        let old_len = old.as_ref().map_or(0, Zeroed::len);
        let gives_up = held == 0 && keyed > 0;
        self.generation += 1;
        (self.room, self.held) = (0, 0);
        if !gives_up {
            let class = class_for(next_slots(shared, shard, held, keyed));
            let array = Zeroed::new_in(&shared.pages, lines_of_class(class));
            shared
                .counters
                .table_bytes
                .fetch_add(array.bytes(), Relaxed);
            if let Some(old) = &old {
                self.copy(old, &array, shared, directory);
            }
            self.room = most_keys(array.len() * SLOTS_PER_LINE) - self.held;
            self.shrinks = class > class_for(first_rung(shared, shard));
            // SAFETY: of that class, owned by `self` until the next call, retired below then.
            unsafe { directory.announce(shard, Some((&array, class))) };
            self.lines = Some(array);
        } else {
            // SAFETY: nothing is announced.
            unsafe { directory.announce(shard, None) };
        }
        let new_len = self.lines.as_ref().map_or(0, Zeroed::len);
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

    fn copy(
        &mut self,
        old: &Zeroed<Line>,
        new: &Zeroed<Line>,
        shared: &Shared,
        directory: &Directory,
    ) {
        let any_dead = shared.roster.any_dead();
        let (slots, mut held, mut swept) = (Slots::of(new), 0, 0);
        let mut keyed = vec![0; new.len()];
        for entry in Slots::of(old).all(&shared.cells) {
            let mut brief = entry.brief();
            if brief::is_held(brief) && (any_dead || brief::cell(brief).is_some()) {
                brief = self.kept(entry.set(), any_dead, &mut swept, shared);
            }
            if brief::is_held(brief) {
                let key = entry.key();
                slots.fill(&mut keyed, directory.place(key).scaled, key, brief);
                held += 1;
            }
        }
        self.held = held;
        count_many(&shared.counters.events.swept_memberships, swept);
    }

    /// What a slot keeps of a set without its dead, its bitmap, if it needs one, in the new arena; vacant if none is left.
    fn kept(&mut self, set: Set<'_>, any_dead: bool, swept: &mut usize, shared: &Shared) -> u32 {
        let roster = &shared.roster;
        let word = match set.holders() {
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
        };
        if !set::is_held(word) {
            return brief::VACANT;
        }
        brief::of_word(word).unwrap_or_else(|| {
            let cell = self.arena.cells.put(&shared.cells, word, &shared.grace);
            brief::in_cell(cell)
        })
    }
}
