//! Changes to the set of one entry: a holder added, a holder removed, retired workers removed.
//!
//! Called by the one writer of the entry's shard. A set of up to four is in its word, a larger one in a bitmap; the word is
//! in the entry in compact form, or spilled. Each change is published by one store: to the entry, the spilled word, or one
//! word of the bitmap.

use crate::bits;
use crate::counters::count;
use crate::sync::atomic::AtomicU64;
use crate::table::bitmap;
use crate::table::bitmap_arena::BitmapArena;
use crate::table::compact_set::CompactSet;
use crate::table::context::{SharedState, TableContext};
use crate::table::entry::Entry;
use crate::table::set_word::{Holders, InlineSet, MAX_INLINE, SetWord, StoredSet};
use crate::table::spilled_sets::SpilledSetArena;
use crate::types::WorkerSlot;

/// A bitmap becomes an inline set again at this size. It is below the size at which it was made, so that one worker coming
/// and going does not change the form each time.
const INLINE_AGAIN_AT: usize = 3;

/// Memory for the sets of one table that do not fit their entries.
#[derive(Default)]
pub(crate) struct SetArena {
    pub bitmaps: BitmapArena,
    pub spilled: SpilledSetArena,
}

pub(crate) enum Added {
    /// The worker held the block already.
    Nothing,
    /// The key was there, and nobody held it.
    First,
    Another,
    /// In a bitmap that is wider than the one before.
    Widened,
}

impl SetArena {
    /// Adds `slot` to the holders of a block whose key is there.
    pub fn add_holder(
        &mut self,
        entry: Entry<'_>,
        slot: WorkerSlot,
        shared: &SharedState,
    ) -> Added {
        let set = entry.set();
        match set.holders() {
            Holders::Inline(inline) if inline.contains(slot) => Added::Nothing,
            Holders::Inline(inline) => {
                let word = match inline.with(slot) {
                    Some(larger) => larger.word(),
                    None => self.grow_to_bitmap(inline, slot, shared),
                };
                self.store_word(entry, word, shared);
                if inline.len() == 0 {
                    Added::First
                } else {
                    Added::Another
                }
            }
            Holders::Bitmap(words) if bitmap::contains(words, slot) => Added::Nothing,
            Holders::Bitmap(words) if slot.word() < words.len() => {
                bitmap::assign(words, slot, true);
                Added::Another
            }
            Holders::Bitmap(words) => {
                count(&shared.counters.events.bitmaps_widened);
                let members = bitmap::slots(words).chain([slot]);
                let width = shared.workers.bitmap_words().max(slot.word() as u16 + 1);
                let word = self.make_bitmap(width, members, shared);
                self.store_word(entry, word, shared);
                self.bitmaps.retire(set.word(), &shared.reclaimer);
                Added::Widened
            }
        }
    }

    /// Removes `slot` from the holders of a block; returns whether it was one, and whether anyone is left.
    pub fn remove_holder(
        &mut self,
        entry: Entry<'_>,
        slot: WorkerSlot,
        context: TableContext<'_>,
    ) -> (bool, bool) {
        let set = entry.set();
        if !set.contains(slot) {
            return (false, !set.is_empty());
        }
        match set.holders() {
            Holders::Inline(inline) => {
                self.store_kept(entry, inline, |held| held != slot, context);
            }
            Holders::Bitmap(words) => {
                bitmap::assign(words, slot, false);
                self.inline_if_few(entry, set, words, context);
            }
        }
        (true, !entry.set().is_empty())
    }

    /// Removes all slots whose bits are set in `removed` from the holders; returns how many held the block.
    pub fn remove_holders(
        &mut self,
        entry: Entry<'_>,
        removed: &[u64],
        context: TableContext<'_>,
    ) -> usize {
        let set = entry.set();
        match set.holders() {
            Holders::Inline(inline) => {
                let is_kept = |slot: WorkerSlot| !bits::contains(removed, slot);
                self.store_kept(entry, inline, is_kept, context)
            }
            Holders::Bitmap(words) => {
                let count = bitmap::subtract(words, removed);
                if count > 0 {
                    self.inline_if_few(entry, set, words, context);
                }
                count
            }
        }
    }

    /// The word for a set of any size, in the smallest form.
    pub fn smallest_word(
        &mut self,
        members: impl Iterator<Item = WorkerSlot> + Clone,
        width: u16,
        shared: &SharedState,
    ) -> SetWord {
        if members.clone().nth(MAX_INLINE).is_some() {
            return self.make_bitmap(width, members, shared);
        }
        InlineSet::collected(members).word()
    }

    /// The compact form of a set that has holders; spills its word if that is needed.
    pub fn compact(&mut self, word: SetWord, shared: &SharedState) -> CompactSet {
        CompactSet::of_word(word).unwrap_or_else(|| {
            let spilled = &mut self.spilled;
            CompactSet::spilled(spilled.add(&shared.spilled, word, &shared.reclaimer))
        })
    }

    fn make_bitmap(
        &mut self,
        width: u16,
        members: impl Iterator<Item = WorkerSlot>,
        shared: &SharedState,
    ) -> SetWord {
        let bitmaps = &mut self.bitmaps;
        bitmaps.make(width, members, &shared.reclaimer, &shared.counters)
    }

    /// The word for a full inline set and one more slot.
    fn grow_to_bitmap(
        &mut self,
        inline: InlineSet,
        slot: WorkerSlot,
        shared: &SharedState,
    ) -> SetWord {
        count(&shared.counters.events.bitmaps_made);
        let members = inline.slots().chain([slot]);
        self.make_bitmap(shared.workers.bitmap_words(), members, shared)
    }

    /// Stores those slots of an inline set that are kept; returns how many are not.
    fn store_kept(
        &mut self,
        entry: Entry<'_>,
        inline: InlineSet,
        is_kept: impl Fn(WorkerSlot) -> bool,
        context: TableContext<'_>,
    ) -> usize {
        let kept = inline.filtered(is_kept);
        if kept != inline {
            self.store_inline(entry, kept, context);
        }
        inline.len() - kept.len()
    }

    fn store_inline(&mut self, entry: Entry<'_>, inline: InlineSet, context: TableContext<'_>) {
        if inline.len() == 0 {
            let tombstone = CompactSet::tombstone(context.pin.epoch_safe_after_unlink());
            self.store_compact(entry, tombstone, context.shared);
        } else {
            self.store_word(entry, inline.word(), context.shared);
        }
    }

    /// Stores the word of a set that has holders: in compact form if there is one, else spilled.
    fn store_word(&mut self, entry: Entry<'_>, word: SetWord, shared: &SharedState) {
        if let Some(set) = CompactSet::of_word(word) {
            self.store_compact(entry, set, shared);
        } else if let Some(number) = entry.compact_set().spilled_number() {
            self.spilled.replace(&shared.spilled, number, word);
        } else {
            entry.store_set(self.compact(word, shared));
        }
    }

    fn store_compact(&mut self, entry: Entry<'_>, set: CompactSet, shared: &SharedState) {
        let before = entry.compact_set();
        entry.store_set(set);
        if let Some(number) = before.spilled_number() {
            self.spilled.retire(number, &shared.reclaimer);
        }
    }

    /// Moves what is left of a bitmap back into a set word, if it is little.
    fn inline_if_few(
        &mut self,
        entry: Entry<'_>,
        set: StoredSet<'_>,
        words: &[AtomicU64],
        context: TableContext<'_>,
    ) {
        if bitmap::slots(words).nth(INLINE_AGAIN_AT).is_none() {
            count(&context.shared.counters.events.bitmaps_inlined);
            let inline = InlineSet::collected(bitmap::slots(words));
            self.store_inline(entry, inline, context);
            let reclaimer = &context.shared.reclaimer;
            self.bitmaps.retire(set.word(), reclaimer);
        }
    }
}
