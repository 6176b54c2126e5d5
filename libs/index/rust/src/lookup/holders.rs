//! The sets of holders at the probed depths, reduced to the workers that can still match.
//!
//! A worker that holds the first block of interest holds all before it, so that block's matchable holders are all that
//! matter. Up to four stay within a word, as they do in the table. If there are more, the bitmap words in which they
//! lie are the *active* words. Every larger set of this look-up consists of these words alone, so the cost follows the
//! matches, not the number of workers. Deeper down most sets are small again, and cost next to nothing.
//!
//! Sets are copied out of the table once and then only compared with each other. Each one is kept between its neighbours:
//! within the set above it, and around the set below. So each worker's match ends at exactly one depth, also when writers
//! change the table in between.

use crate::bits;
use crate::memory::prefetch::prefetch;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::table::set_word::{Holders, InlineSet, MAX_INLINE, StoredSet};
use crate::types::WorkerSlot;

/// Words of a bitmap in a cache line.
const WORDS_PER_LINE: usize = 8;

/// One set of the look-up. Sets that [`HolderSets::begin`] and [`HolderSets::narrow`] made from each other have the same
/// members exactly if they are equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HolderSet {
    /// Up to four workers.
    Inline(InlineSet),
    /// More: their active words are in [`HolderSets`], from this place on.
    Words(u32),
}

/// The sets of one look-up.
#[derive(Default)]
pub(crate) struct HolderSets {
    /// The words of a bitmap that larger sets consist of, ascending.
    active: Vec<u16>,
    /// By word of a bitmap: its place in `active`, if `active` says the same; else left over from earlier.
    place: Vec<u16>,
    /// All larger sets, one after another.
    words: Vec<u64>,
}

impl HolderSets {
    /// Starts anew with those holders that are matchable, and included if only some are; none if there are none.
    pub fn begin(
        &mut self,
        set: StoredSet<'_>,
        matchable: &[u64],
        included: Option<&[u64]>,
    ) -> Option<HolderSet> {
        self.active.clear();
        self.words.clear();
        let bitmap = match set.holders() {
            Holders::Inline(inline) => {
                let kept = inline.filtered(|slot| {
                    bits::contains(matchable, slot)
                        && included.is_none_or(|included| bits::contains(included, slot))
                });
                return (kept.len() > 0).then_some(HolderSet::Inline(kept));
            }
            Holders::Bitmap(bitmap) => bitmap,
        };
        if self.place.len() < matchable.len() {
            self.place.resize(matchable.len(), 0);
        }
        for (place, (word, &matchable)) in bitmap.iter().zip(matchable).enumerate() {
            let included = included.map_or(u64::MAX, |included| included[place]);
            let bits = word.load(Relaxed) & matchable & included;
            if bits != 0 {
                self.place[place] = self.active.len() as u16;
                self.active.push(place as u16);
                self.words.push(bits);
            }
        }
        (!self.words.is_empty()).then(|| self.normalized(0))
    }

    /// Asks for the cache lines that [`Self::begin`] is going to read.
    pub fn prefetch_all(set: StoredSet<'_>) {
        if let Holders::Bitmap(bitmap) = set.holders() {
            bitmap.iter().step_by(WORDS_PER_LINE).for_each(prefetch);
        }
    }

    /// Asks for the cache lines that [`Self::narrow`] is going to read.
    pub fn prefetch(&self, set: StoredSet<'_>, above: HolderSet) {
        let Holders::Bitmap(bitmap) = set.holders() else {
            return;
        };
        let mut last = usize::MAX;
        let mut ask = |word: usize| {
            let line = word / WORDS_PER_LINE;
            if line != last {
                last = line;
                if let Some(word) = bitmap.get(word) {
                    prefetch(word);
                }
            }
        };
        match above {
            HolderSet::Inline(inline) => inline.slots().for_each(|slot| ask(slot.word())),
            HolderSet::Words(_) => self.active.iter().for_each(|&word| ask(word.into())),
        }
    }

    /// The holders of `set`, within `above` and around `below`.
    #[inline]
    pub fn narrow(
        &mut self,
        set: StoredSet<'_>,
        above: HolderSet,
        below: Option<HolderSet>,
    ) -> HolderSet {
        let at = match above {
            HolderSet::Inline(inline) => return self.narrow_inline(set, inline, below),
            HolderSet::Words(at) => at as usize,
        };
        match (set.holders(), below) {
            (Holders::Bitmap(bitmap), _) => self.narrow_words(bitmap, at, below),
            (Holders::Inline(inline), None) => {
                HolderSet::Inline(inline.filtered(|slot| self.contains(above, slot)))
            }
            (Holders::Inline(inline), Some(below)) => {
                let kept = inline.filtered(|slot| self.contains(above, slot));
                match below {
                    HolderSet::Inline(below) if below.slots().all(|slot| kept.contains(slot)) => {
                        HolderSet::Inline(kept)
                    }
                    _ => self.union(kept, below),
                }
            }
        }
    }

    fn narrow_inline(
        &self,
        set: StoredSet<'_>,
        above: InlineSet,
        below: Option<HolderSet>,
    ) -> HolderSet {
        if set.word() == above.word() {
            return HolderSet::Inline(above);
        }
        HolderSet::Inline(above.filtered(|slot| {
            set.contains(slot) || below.is_some_and(|below| self.contains(below, slot))
        }))
    }

    fn narrow_words(
        &mut self,
        bitmap: &[AtomicU64],
        above: usize,
        below: Option<HolderSet>,
    ) -> HolderSet {
        let width = self.active.len();
        let at = self.words.len();
        let read = |&word: &u16| bitmap.get(usize::from(word)).map_or(0, |w| w.load(Relaxed));
        self.words.extend(self.active.iter().map(read));
        let (earlier, new) = self.words.split_at_mut(at);
        let above_words = &earlier[above..above + width];
        let mut less = 0;
        for (new, &above) in new.iter_mut().zip(above_words) {
            *new &= above;
            less |= *new ^ above;
        }
        if less == 0 {
            self.words.truncate(at);
            return HolderSet::Words(above as u32);
        }
        match below {
            Some(below) => self.widened(at, below),
            None => self.normalized(at),
        }
    }

    /// The set at the end of the words, with the members of `below` added; `below` itself, if they are equal then.
    fn widened(&mut self, at: usize, below: HolderSet) -> HolderSet {
        match below {
            HolderSet::Inline(below) => below.slots().for_each(|slot| self.add(at, slot)),
            HolderSet::Words(below) => {
                let (earlier, new) = self.words.split_at_mut(at);
                let below_words = &earlier[below as usize..][..new.len()];
                let mut more = 0;
                for (new, &below) in new.iter_mut().zip(below_words) {
                    *new |= below;
                    more |= *new ^ below;
                }
                if more == 0 {
                    self.words.truncate(at);
                    return HolderSet::Words(below);
                }
            }
        }
        self.normalized(at)
    }

    /// The union of an inline set and a set below it. Rare, since it takes a writer in between to need one.
    fn union(&mut self, inline: InlineSet, below: HolderSet) -> HolderSet {
        let at = self.words.len();
        self.words.resize(at + self.active.len(), 0);
        inline.slots().for_each(|slot| self.add(at, slot));
        self.widened(at, below)
    }

    /// Adds a worker that lies in the active words to the set at `at`.
    fn add(&mut self, at: usize, slot: WorkerSlot) {
        if let Some(place) = self.place_of(slot) {
            self.words[at + place] |= slot.bit();
        }
    }

    /// The words from `at` on as a set, in its normal form: equal sets have equal forms.
    fn normalized(&mut self, at: usize) -> HolderSet {
        let words = &self.words[at..];
        let size: u32 = words.iter().map(|word| word.count_ones()).sum();
        if size as usize > MAX_INLINE {
            return HolderSet::Words(at as u32);
        }
        let active = self.active.iter().zip(words);
        let slots = active.flat_map(|(&place, &word)| bits::slots_of_word(place, word));
        let set = HolderSet::Inline(InlineSet::collected(slots));
        self.words.truncate(at);
        set
    }

    /// The members of `above` that are not in `below`.
    pub fn difference(&mut self, above: HolderSet, below: HolderSet) -> HolderSet {
        let at = match above {
            HolderSet::Inline(above) => {
                return HolderSet::Inline(above.filtered(|slot| !self.contains(below, slot)));
            }
            HolderSet::Words(at) => at as usize,
        };
        let new = self.words.len();
        let width = self.active.len();
        self.words.extend_from_within(at..at + width);
        match below {
            HolderSet::Inline(below) => {
                for slot in below.slots() {
                    if let Some(place) = self.place_of(slot) {
                        self.words[new + place] &= !slot.bit();
                    }
                }
            }
            HolderSet::Words(below) => {
                let (earlier, ended) = self.words.split_at_mut(new);
                for (ended, below) in ended.iter_mut().zip(&earlier[below as usize..]) {
                    *ended &= !below;
                }
            }
        }
        self.normalized(new)
    }

    pub fn is_empty(set: HolderSet) -> bool {
        // A set of words is never empty: it would be inline.
        matches!(set, HolderSet::Inline(inline) if inline.len() == 0)
    }

    pub fn len(&self, set: HolderSet) -> usize {
        match set {
            HolderSet::Inline(inline) => inline.len(),
            HolderSet::Words(at) => self
                .words_at(at)
                .iter()
                .map(|word| word.count_ones() as usize)
                .sum(),
        }
    }

    /// Writes a set to `bitmap`, one bit per slot, all of its words.
    pub fn write_bitmap(&self, set: HolderSet, bitmap: &mut [u64]) {
        bitmap.fill(0);
        match set {
            HolderSet::Inline(inline) => inline
                .slots()
                .for_each(|slot| bitmap[slot.word()] |= slot.bit()),
            HolderSet::Words(at) => {
                for (place, word) in self.placed_words(at) {
                    bitmap[usize::from(place)] = word;
                }
            }
        }
    }

    /// Every word of a larger set that may have members, with its place in a bitmap.
    pub fn placed_words(&self, at: u32) -> impl Iterator<Item = (u16, u64)> {
        self.active
            .iter()
            .copied()
            .zip(self.words_at(at).iter().copied())
    }

    fn words_at(&self, at: u32) -> &[u64] {
        &self.words[at as usize..][..self.active.len()]
    }

    /// The place of a slot's word in `active`.
    fn place_of(&self, slot: WorkerSlot) -> Option<usize> {
        let place = usize::from(*self.place.get(slot.word())?);
        (self.active.get(place) == Some(&(slot.word() as u16))).then_some(place)
    }

    fn contains(&self, set: HolderSet, slot: WorkerSlot) -> bool {
        match set {
            HolderSet::Inline(inline) => inline.contains(slot),
            HolderSet::Words(at) => self
                .place_of(slot)
                .is_some_and(|place| self.words[at as usize + place] & slot.bit() != 0),
        }
    }
}
