//! Holder sets at the probed depths, cut down to the workers still in question.
//!
//! Whoever holds the first block that is asked about holds all before it; so its alive holders are
//! all that matter. Few of them stay within a word, as they do in the table. Of more, the words of the bitmap in which
//! they lie are the *active* words, and every larger set of this look-up is that many words: the cost follows
//! the matches, not the number of workers. Deeper down most sets are few again, and cost next to nothing.
//!
//! Sets are copied out of the table once and then only compared with each other, and each one is kept
//! between its neighbours: within the set above it, and around the one below. So each worker ends at
//! exactly one depth, also when writers change the table in between.

use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::bitmap::Ones;
use crate::set::{Few, Holders, MAX_INLINE, Set};
use crate::table::prefetch;

/// Words of a bitmap in a cache line.
const WORDS_PER_LINE: usize = 8;

/// One set of the look-up. Two that [`Gathered::begin`] or [`Gathered::narrow`] made from each other are the same
/// exactly if they are equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SetRef {
    /// Up to four workers.
    Few(Few),
    /// More, from here on in the words.
    Wide(u32),
}

#[derive(Default)]
pub(crate) struct Gathered {
    /// Which words of a bitmap the wide sets here consist of, ascending.
    active: Vec<u16>,
    /// By word: its place in `active`, if `active` says the same; else left over from earlier.
    place: Vec<u16>,
    /// All wide sets, one after another.
    words: Vec<u64>,
}

impl Gathered {
    /// Starts anew with those holders that are alive, and meant if only some are; none if there are none.
    pub fn begin(&mut self, set: Set<'_>, alive: &[u64], meant: Option<&[u64]>) -> Option<SetRef> {
        self.active.clear();
        self.words.clear();
        let bits = match set.holders() {
            Holders::Few(few) => {
                let few = few.filtered(|slot| {
                    has(alive, slot) && meant.is_none_or(|meant| has(meant, slot))
                });
                return (few.len() > 0).then_some(SetRef::Few(few));
            }
            Holders::Many(bits) => bits,
        };
        if self.place.len() < alive.len() {
            self.place.resize(alive.len(), 0);
        }
        for (word, (bits, &alive)) in bits.iter().zip(alive).enumerate() {
            let meant = meant.map_or(u64::MAX, |meant| meant[word]);
            let bits = bits.load(Relaxed) & alive & meant;
            if bits != 0 {
                self.place[word] = self.active.len() as u16;
                self.active.push(word as u16);
                self.words.push(bits);
            }
        }
        (!self.words.is_empty()).then(|| self.settle(0))
    }

    /// Asks for the cache lines that [`Self::begin`] is going to read.
    pub fn prefetch_whole(set: Set<'_>) {
        if let Holders::Many(bits) = set.holders() {
            bits.iter().step_by(WORDS_PER_LINE).for_each(prefetch);
        }
    }

    /// Asks for the cache lines that [`Self::narrow`] is going to read.
    pub fn prefetch(&self, set: Set<'_>, above: SetRef) {
        let Holders::Many(bits) = set.holders() else {
            return;
        };
        let mut last = usize::MAX;
        let mut ask = |word: u16| {
            let line = usize::from(word) / WORDS_PER_LINE;
            if line != last {
                last = line;
                if let Some(word) = bits.get(usize::from(word)) {
                    prefetch(word);
                }
            }
        };
        match above {
            SetRef::Few(few) => few.ids().for_each(|slot| ask(slot / 64)),
            SetRef::Wide(_) => self.active.iter().for_each(|&word| ask(word)),
        }
    }

    /// The set of `set`, within `above` and around `below`.
    #[inline]
    pub fn narrow(&mut self, set: Set<'_>, above: SetRef, below: Option<SetRef>) -> SetRef {
        let at = match above {
            SetRef::Few(few) => return self.narrow_few(set, few, below),
            SetRef::Wide(at) => at as usize,
        };
        match (set.holders(), below) {
            (Holders::Many(bits), _) => self.narrow_wide(bits, at, below),
            (Holders::Few(few), None) => SetRef::Few(few.filtered(|slot| self.has(above, slot))),
            (Holders::Few(few), Some(below)) => {
                let kept = few.filtered(|slot| self.has(above, slot));
                match below {
                    SetRef::Few(ends) if ends.ids().all(|slot| kept.contains(slot)) => {
                        SetRef::Few(kept)
                    }
                    _ => self.join(kept, below),
                }
            }
        }
    }

    fn narrow_few(&self, set: Set<'_>, above: Few, below: Option<SetRef>) -> SetRef {
        if set.word() == above.word() {
            return SetRef::Few(above);
        }
        SetRef::Few(above.filtered(|slot| {
            set.contains(slot) || below.is_some_and(|below| self.has(below, slot))
        }))
    }

    fn narrow_wide(&mut self, bits: &[AtomicU64], above: usize, below: Option<SetRef>) -> SetRef {
        let width = self.active.len();
        let at = self.words.len();
        let read = |&word: &u16| bits.get(usize::from(word)).map_or(0, |w| w.load(Relaxed));
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
            return SetRef::Wide(above as u32);
        }
        match below {
            Some(below) => self.around(at, below),
            None => self.settle(at),
        }
    }

    /// The set at the end of the words, widened to hold `below`; which it then is, if they are equal.
    fn around(&mut self, at: usize, below: SetRef) -> SetRef {
        match below {
            SetRef::Few(few) => few.ids().for_each(|slot| self.add(at, slot)),
            SetRef::Wide(below) => {
                let (earlier, new) = self.words.split_at_mut(at);
                let below_words = &earlier[below as usize..][..new.len()];
                let mut more = 0;
                for (new, &below) in new.iter_mut().zip(below_words) {
                    *new |= below;
                    more |= *new ^ below;
                }
                if more == 0 {
                    self.words.truncate(at);
                    return SetRef::Wide(below);
                }
            }
        }
        self.settle(at)
    }

    /// The union of a few and a set below them: rare, since it takes a writer in between to need one.
    fn join(&mut self, few: Few, below: SetRef) -> SetRef {
        let at = self.words.len();
        self.words.resize(at + self.active.len(), 0);
        few.ids().for_each(|slot| self.add(at, slot));
        self.around(at, below)
    }

    /// Adds a worker, of one that lies in the active words, to the wide set at `at`.
    fn add(&mut self, at: usize, slot: u16) {
        if let Some(place) = self.place_of(slot / 64) {
            self.words[at + place] |= 1 << (slot % 64);
        }
    }

    /// The words from `at` on as a set: equal sets have equal forms.
    fn settle(&mut self, at: usize) -> SetRef {
        let words = &self.words[at..];
        let size: u32 = words.iter().map(|word| word.count_ones()).sum();
        if size as usize > MAX_INLINE {
            return SetRef::Wide(at as u32);
        }
        let set = SetRef::Few(self.slots_at(at).fold(Few::EMPTY, |few, slot| {
            // There is room: they have just been counted.
            few.with(slot).unwrap_or(few)
        }));
        self.words.truncate(at);
        set
    }

    /// What is in `above` and not in `below`.
    pub fn difference(&mut self, above: SetRef, below: SetRef) -> SetRef {
        let at = match above {
            SetRef::Few(few) => {
                return SetRef::Few(few.filtered(|slot| !self.has(below, slot)));
            }
            SetRef::Wide(at) => at as usize,
        };
        let new = self.words.len();
        let width = self.active.len();
        self.words.extend_from_within(at..at + width);
        match below {
            SetRef::Few(few) => {
                for slot in few.ids() {
                    if let Some(place) = self.place_of(slot / 64) {
                        self.words[new + place] &= !(1 << (slot % 64));
                    }
                }
            }
            SetRef::Wide(below) => {
                let (earlier, ended) = self.words.split_at_mut(new);
                for (ended, below) in ended.iter_mut().zip(&earlier[below as usize..]) {
                    *ended &= !below;
                }
            }
        }
        self.settle(new)
    }

    pub fn is_empty(set: SetRef) -> bool {
        // A wide set is never empty: it would be few.
        matches!(set, SetRef::Few(few) if few.len() == 0)
    }

    pub fn len(&self, set: SetRef) -> usize {
        match set {
            SetRef::Few(few) => few.len(),
            SetRef::Wide(at) => self
                .words_at(at)
                .iter()
                .map(|word| word.count_ones() as usize)
                .sum(),
        }
    }

    /// Writes a set to `dense`, one bit a slot, all of its words.
    pub fn spread(&self, set: SetRef, dense: &mut [u64]) {
        dense.fill(0);
        match set {
            SetRef::Few(few) => few
                .ids()
                .for_each(|slot| dense[usize::from(slot / 64)] |= 1 << (slot % 64)),
            SetRef::Wide(at) => {
                for (&word, &bits) in self.active.iter().zip(self.words_at(at)) {
                    dense[usize::from(word)] = bits;
                }
            }
        }
    }

    /// Calls `each` with every word of a wide set that has a bit, and its place in a bitmap.
    pub fn placed_words(&self, at: u32) -> impl Iterator<Item = (u16, u64)> {
        self.active
            .iter()
            .copied()
            .zip(self.words_at(at).iter().copied())
    }

    fn words_at(&self, at: u32) -> &[u64] {
        &self.words[at as usize..][..self.active.len()]
    }

    fn slots_at(&self, at: usize) -> impl Iterator<Item = u16> {
        let words = self.active.iter().zip(&self.words[at..]);
        words.flat_map(|(&word, &bits)| Ones(bits).map(move |bit| word * 64 + bit))
    }

    fn place_of(&self, word: u16) -> Option<usize> {
        let place = usize::from(*self.place.get(usize::from(word))?);
        (self.active.get(place) == Some(&word)).then_some(place)
    }

    fn has(&self, set: SetRef, slot: u16) -> bool {
        match set {
            SetRef::Few(few) => few.contains(slot),
            SetRef::Wide(at) => self
                .place_of(slot / 64)
                .is_some_and(|place| self.words[at as usize + place] >> (slot % 64) & 1 == 1),
        }
    }
}

/// Whether a slot's bit is set; no bit, no.
fn has(bits: &[u64], slot: u16) -> bool {
    bits.get(usize::from(slot / 64))
        .is_some_and(|word| word >> (slot % 64) & 1 == 1)
}
