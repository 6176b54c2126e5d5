//! The copy of a shard's table into another array: growth, clean-up and shrinking are this one operation.
//!
//! Entries that have holders are copied, and holders whose slots are being swept are left out. The copy stops this shard's
//! writers while it lasts (a shard is small), never a reader.

use crate::counters::count_many;
use crate::memory::zeroed_array::ZeroedArray;
use crate::table::bitmap;
use crate::table::compact_set::CompactSet;
use crate::table::context::TableContext;
use crate::table::line::Line;
use crate::table::lines::Lines;
use crate::table::set_changes::SetArena;
use crate::table::set_word::{Holders, StoredSet};

/// Copies the entries that have holders to `new`, and what does not fit them to `arena`; returns how many they are.
pub(crate) fn copy_entries(
    old: &ZeroedArray<Line>,
    new: &ZeroedArray<Line>,
    arena: &mut SetArena,
    context: TableContext<'_>,
) -> usize {
    let TableContext {
        shared, directory, ..
    } = context;
    let any_being_swept = shared.workers.any_being_swept();
    let (lines, mut held, mut removed) = (Lines::of(new), 0, 0);
    let mut key_counts = vec![0; new.len()];
    for entry in Lines::of(old).entries(&shared.spilled) {
        let mut set = entry.compact_set();
        if set.is_held() && (any_being_swept || set.spilled_number().is_some()) {
            set = copy_set(entry.set(), any_being_swept, &mut removed, arena, context);
        }
        if set.is_held() {
            let key = entry.key();
            let fraction = directory.home_of(key).fraction;
            lines.fill(&mut key_counts, fraction, key, set);
            held += 1;
        }
    }
    count_many(&shared.counters.events.swept_memberships, removed);
    held
}

/// The compact form of a set without the slots that are being swept; vacant if none is left.
fn copy_set(
    set: StoredSet<'_>,
    any_being_swept: bool,
    removed: &mut usize,
    arena: &mut SetArena,
    context: TableContext<'_>,
) -> CompactSet {
    let shared = context.shared;
    let workers = &shared.workers;
    let word = match set.holders() {
        Holders::Inline(inline) => {
            let kept = inline.filtered(|slot| !workers.is_being_swept(slot));
            *removed += inline.len() - kept.len();
            kept.word()
        }
        Holders::Bitmap(words) => {
            let is_kept = |slot: &_| !any_being_swept || !workers.is_being_swept(*slot);
            if any_being_swept {
                *removed += bitmap::slots(words).filter(|slot| !is_kept(slot)).count();
            }
            let width = workers.bitmap_words().max(words.len() as u16);
            let kept = bitmap::slots(words).filter(is_kept);
            arena.smallest_word(kept, width, shared)
        }
    };
    if !word.is_held() {
        return CompactSet::VACANT;
    }
    arena.compact(word, shared)
}
