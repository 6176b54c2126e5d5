//! Holder sets at the probed depths, cut down to the workers still in question.
//!
//! Whoever holds any block of the prompt holds the first one; so the alive holders of the first block
//! are all that matter. The words of the bitmap in which they lie are the *active* words, and every set
//! of this look-up is that many words: the cost follows the matches, not the number of workers.
//!
//! Sets are copied out of the table once and then only compared with each other, and each one is kept
//! between its neighbours: within the set above it, and around the one below. So each worker ends at
//! exactly one depth, also when writers change the table in between.

use crate::sync::atomic::Ordering::Relaxed;

use crate::bitmap::Ones;
use crate::set::{Holders, Set};
use crate::table::prefetch;

/// One set of the look-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SetRef(u32);

#[derive(Default)]
pub(crate) struct Gathered {
    /// Which words of a bitmap the sets here consist of, ascending.
    active: Vec<u16>,
    /// By word: its place in `active`, if `active` says the same; else left over from earlier.
    place: Vec<u16>,
    /// All sets, one after another.
    words: Vec<u64>,
}

impl Gathered {
    /// The set that everything starts from.
    pub const FIRST: SetRef = SetRef(0);

    /// Starts anew with the holders that are alive; false if there are none.
    pub fn begin(&mut self, set: Set<'_>, alive: &[u64]) -> bool {
        self.active.clear();
        self.words.clear();
        if self.place.len() < alive.len() {
            self.place.resize(alive.len(), 0);
        }
        match set.holders() {
            Holders::Few(few) => {
                for slot in few.ids() {
                    let word = usize::from(slot / 64);
                    let bit = alive.get(word).map_or(0, |&word| word & 1 << (slot % 64));
                    self.add(word, bit);
                }
            }
            Holders::Many(bits) => {
                for (word, (bits, &alive)) in bits.iter().zip(alive).enumerate() {
                    self.add(word, bits.load(Relaxed) & alive);
                }
            }
        }
        !self.active.is_empty()
    }

    /// Adds bits to the first set; words come in ascending order.
    fn add(&mut self, word: usize, bits: u64) {
        if bits == 0 {
            return;
        }
        if self
            .active
            .last()
            .is_some_and(|&last| usize::from(last) == word)
        {
            let last = self.words.len() - 1;
            self.words[last] |= bits;
        } else {
            self.place[word] = self.active.len() as u16;
            self.active.push(word as u16);
            self.words.push(bits);
        }
    }

    /// Asks for the cache lines that [`Self::narrow`] is going to read.
    pub fn prefetch(&self, set: Set<'_>) {
        if let Holders::Many(bits) = set.holders() {
            let mut line = u16::MAX;
            for &word in &self.active {
                if word / 8 != line {
                    line = word / 8;
                    if let Some(word) = bits.get(usize::from(word)) {
                        prefetch(word);
                    }
                }
            }
        }
    }

    /// The set of `set`, within `above` and around `below`. It is `above` or `below` itself if equal
    /// to one of them, so that equal sets need no comparing later.
    pub fn narrow(&mut self, set: Set<'_>, above: SetRef, below: Option<SetRef>) -> SetRef {
        let width = self.active.len();
        let at = self.words.len();
        match set.holders() {
            Holders::Few(few) => {
                self.words.resize(at + width, 0);
                for slot in few.ids() {
                    let word = slot / 64;
                    let place =
                        usize::from(self.place.get(usize::from(word)).copied().unwrap_or(0));
                    if self.active.get(place) == Some(&word) {
                        self.words[at + place] |= 1 << (slot % 64);
                    }
                }
            }
            Holders::Many(bits) => {
                let read = |&word: &u16| bits.get(usize::from(word)).map_or(0, |w| w.load(Relaxed));
                self.words.extend(self.active.iter().map(read));
            }
        }
        let above_at = above.0 as usize * width;
        let below_at = below.map(|below| below.0 as usize * width);
        let (earlier, new) = self.words.split_at_mut(at);
        let (mut less, mut more) = (0, 0);
        for (place, new) in new.iter_mut().enumerate() {
            let above = earlier[above_at + place];
            let below = below_at.map_or(0, |below_at| earlier[below_at + place]);
            *new = *new & above | below;
            less |= *new ^ above;
            more |= *new ^ below;
        }
        let same = match below {
            _ if less == 0 => Some(above),
            Some(below) if more == 0 => Some(below),
            _ => None,
        };
        same.inspect(|_| self.words.truncate(at))
            .unwrap_or(SetRef((at / width) as u32))
    }

    /// What is in `above` and not in `below`.
    pub fn difference(&mut self, above: SetRef, below: SetRef) -> SetRef {
        let width = self.active.len();
        let (above, below) = (above.0 as usize * width, below.0 as usize * width);
        let at = self.words.len();
        for place in 0..width {
            self.words
                .push(self.words[above + place] & !self.words[below + place]);
        }
        SetRef((at / width) as u32)
    }

    pub fn is_empty(&self, set: SetRef) -> bool {
        self.words(set).iter().all(|&word| word == 0)
    }

    pub fn len(&self, set: SetRef) -> usize {
        self.words(set)
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// The worker slots of a set, ascending.
    pub fn slots(&self, set: SetRef) -> impl Iterator<Item = u16> {
        let words = self.active.iter().zip(self.words(set));
        words.flat_map(|(&word, &bits)| Ones(bits).map(move |bit| word * 64 + bit))
    }

    /// The words of a set with their places in a bitmap.
    pub fn placed_words(&self, set: SetRef) -> impl Iterator<Item = (usize, u64)> {
        let places = self.active.iter().map(|&place| usize::from(place));
        places.zip(self.words(set).iter().copied())
    }

    fn words(&self, set: SetRef) -> &[u64] {
        let width = self.active.len();
        let at = set.0 as usize * width;
        &self.words[at..at + width]
    }
}
