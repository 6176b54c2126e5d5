//! What readers see of the table: a directory of shards, each entry naming one generation of slots.
//!
//! ```text
//! hash ─ Fibonacci multiply ─▶ top bits: shard ──▶ directory entry ──▶ slots (16 bytes each)
//!                              the rest: home slot       │             key │ set word
//!                                                        └ address (48 bit) │ capacity class (16 bit)
//! ```
//!
//! The capacity rides in the entry's upper bits, so from the entry (8 bytes a shard, all of them
//! fit the nearest cache) a reader goes straight to the slot: one miss a probe. The home slot is the
//! hash's place on a scale of 0 to 1, so a capacity need not be a power of two, and a copy into another
//! capacity walks both arrays in order. Home is a cache line of four slots; it is filled from its first
//! slot on. Where it is full, the search goes on with the line beside it, which is fetched at little cost, then leaps to
//! another pair of lines, as far as the hash's lower bits say. So full lines do not gather in runs: a table that is 7/8
//! full takes a new key after three lines more, instead of six if it went from line to line.
//!
//! A slot's key is written before the word that leaves "vacant" or "empty"; it is replaced only if the word has been
//! "empty" for a grace period. So a reader sees at most one change of a slot's key while it is pinned, and that one from
//! a word that was empty already: one that loads the word (`Acquire`), then the key, and finds the set not empty, has the
//! key that the set belongs to; one that finds it empty may have either key, and neither had a holder then.
//!
//! `unsafe` here: turning a directory entry into a slice. Sound because the entry always names a live
//! array of the capacity it states, and a retired array is freed only after a grace period that the
//! reader's pin holds back. Checked by `tests/stress.rs` and `tests/differential.rs`.

use crate::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::marker::PhantomData;

use crate::grace::Pin;
use crate::set::Set;
use crate::zeroed::{Zeroable, Zeroed};

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const CLASS_SHIFT: u32 = 48;
const ADDRESS_MASK: usize = (1 << CLASS_SHIFT) - 1;

/// One table slot.
#[repr(C, align(16))]
pub(crate) struct Slot {
    key: AtomicU64,
    word: AtomicU64,
}

// SAFETY: two atomics; zero bytes are the vacant slot.
unsafe impl Zeroable for Slot {
    #[cfg(loom)]
    fn zero() -> Self {
        Self {
            key: AtomicU64::new(0),
            word: AtomicU64::new(0),
        }
    }
    #[cfg(loom)]
    fn end(&mut self) {
        self.key.end();
        self.word.end();
    }
}

impl Slot {
    #[inline]
    pub fn set(&self) -> Set<'_> {
        // SAFETY: loaded with `Acquire` from a slot that is protected as long as it is borrowed.
        unsafe { Set::from_word(self.word.load(Ordering::Acquire)) }
    }

    /// The key; meaningful once the slot is not vacant.
    #[inline]
    pub fn key(&self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }

    #[inline]
    pub fn word(&self) -> u64 {
        self.word.load(Ordering::Acquire)
    }

    /// Writer only: gives a vacant slot, or one that [`crate::set::takes_key`], its key and first set word.
    pub fn claim(&self, key: u64, word: u64) {
        self.key.store(key, Ordering::Relaxed);
        self.word.store(word, Ordering::Release);
    }

    /// Writer only: another set for the same key.
    pub fn publish(&self, word: u64) {
        self.word.store(word, Ordering::Release);
    }
}

/// Slots in a cache line, the unit of probing. They get their keys from the first to the last.
pub(crate) const SLOTS_PER_LINE: usize = 4;
pub(crate) type Line = [Slot; SLOTS_PER_LINE];
/// Capacities are multiples of it.
const SLOTS_PER_UNIT: usize = SLOTS_PER_LINE * crate::sync::sized(4, 1);
/// Lines that a search reads in pairs; then it goes from line to line, and so to all of them.
const LEAPS: u32 = 32;

/// Capacities are whole units: any number up to 63, then 32 to 63 times a power of two, so that
/// rounding up never adds more than 1/32. The class is such a number in 16 bits, ascending with it.
pub(crate) fn capacity_of_class(class: u16) -> usize {
    let class = usize::from(class);
    let units = if class < 64 {
        class
    } else {
        (32 + class % 32) << (class / 32 - 1)
    };
    SLOTS_PER_UNIT * units
}

/// The smallest class with at least `slots` slots.
pub(crate) fn class_for(slots: usize) -> u16 {
    let units = slots.div_ceil(SLOTS_PER_UNIT).max(1);
    if units < 64 {
        return units as u16;
    }
    let exponent = units.ilog2() - 5;
    // Rounding up to 64 carries over into the exponent: the next class, as it should be.
    ((exponent as u16 + 1) << 5) + (units.div_ceil(1 << exponent) - 32) as u16
}

/// The slots of one generation, borrowed for as long as a pin (or the shard's lock) holds them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Slots<'p> {
    slots: &'p [Slot],
}

impl<'p> Slots<'p> {
    pub fn of(array: &'p Zeroed<Slot>) -> Self {
        Self {
            slots: array.as_slice(),
        }
    }

    /// The first slot of the cache line where the search for `scaled` (see [`Directory::place`])
    /// starts.
    #[inline]
    pub fn home(self, scaled: u64) -> usize {
        let lines = (self.slots.len() / SLOTS_PER_LINE) as u128;
        ((u128::from(scaled) * lines) >> 64) as usize * SLOTS_PER_LINE
    }

    /// The slot that has the key, or else the vacant slot where its search ends.
    #[inline]
    pub fn locate(self, hash: u64, scaled: u64) -> (&'p Slot, Set<'p>) {
        let mut at = self.home(scaled);
        let mut step = 0;
        // Ends: the writer keeps at least one slot vacant.
        loop {
            let line = &self.slots[at..at + SLOTS_PER_LINE];
            let sets: [Set<'p>; SLOTS_PER_LINE] = std::array::from_fn(|at| line[at].set());
            let mut found = 0u32;
            // No short circuit: which of a line's slots it is cannot be foreseen, so no branch should depend on it. The
            // words are loaded before the keys in any case.
            for (at, slot) in line.iter().enumerate() {
                found |= u32::from(sets[at].is_vacant() | (slot.key() == hash)) << at;
            }
            if found != 0 {
                let at = found.trailing_zeros() as usize % SLOTS_PER_LINE;
                return (&line[at], sets[at]);
            }
            step += 1;
            at = self.after(at, scaled, step);
        }
    }

    /// Whether these are the slots of `array`.
    #[inline]
    pub fn are_of(self, array: Option<&Zeroed<Slot>>) -> bool {
        array.map_or(self.slots.is_empty(), |array| {
            std::ptr::eq(array.first().as_ptr(), self.slots.as_ptr())
        })
    }

    #[inline]
    pub fn slot(self, at: usize) -> Option<&'p Slot> {
        self.slots.get(at)
    }

    /// The line that begins at slot `at`; none past the end.
    #[inline(always)]
    pub fn line(self, at: usize) -> Option<&'p Line> {
        self.slots.get(at..)?.first_chunk()
    }

    /// Writer only, before the slots are announced: adds a key that is not there yet. `keyed` counts the keys of
    /// each line.
    #[inline(always)]
    pub fn fill(self, keyed: &mut [u8], scaled: u64, key: u64, word: u64) {
        let mut at = self.home(scaled);
        let mut step = 0;
        loop {
            let keys = &mut keyed[at / SLOTS_PER_LINE];
            if usize::from(*keys) < SLOTS_PER_LINE {
                self.slots[at + usize::from(*keys)].claim(key, word);
                *keys += 1;
                return;
            }
            step += 1;
            at = self.after(at, scaled, step);
        }
    }

    /// The first slot of the line that a search reads as number `step`, after the one that begins at slot `at`.
    #[inline]
    pub fn after(self, at: usize, scaled: u64, step: u32) -> usize {
        let beside = at ^ SLOTS_PER_LINE;
        let next = if step >= LEAPS {
            at + SLOTS_PER_LINE
        } else if step % 2 == 1 {
            // The last line of a table may have none beside it.
            return if beside < self.slots.len() {
                beside
            } else {
                at
            };
        } else {
            let lines = (self.slots.len() / SLOTS_PER_LINE) as u64;
            let leap = ((scaled & u64::from(u32::MAX)) * lines) >> 32 | 1;
            beside + leap as usize * SLOTS_PER_LINE
        };
        if next < self.slots.len() {
            next
        } else {
            // Without slots there is no line, and whoever asks for it is told so.
            next.checked_rem(self.slots.len()).unwrap_or(0)
        }
    }
}

/// A hash's shard, and its place within it on a scale of 0 to 2^64.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub shard: usize,
    pub scaled: u64,
}

pub(crate) struct Directory {
    entries: Box<[AtomicPtr<Slot>]>,
    shard_bits: u32,
    _owns_nothing: PhantomData<*const ()>,
}

// SAFETY: the entries are atomics, and what they point to is only handed out as `&Slot`, which is
// `Sync`. The arrays belong to the shards' writers.
unsafe impl Send for Directory {}
// SAFETY: as above.
unsafe impl Sync for Directory {}

impl Directory {
    pub fn new(shard_bits: u32) -> Self {
        Self {
            entries: (0..1usize << shard_bits)
                .map(|_| AtomicPtr::default())
                .collect(),
            shard_bits,
            _owns_nothing: PhantomData,
        }
    }

    #[inline]
    pub fn place(&self, hash: u64) -> Place {
        let spread = hash.wrapping_mul(GOLDEN);
        // Rotating first makes "the top `shard_bits` bits" well defined for 0 bits as well.
        let top = spread.rotate_left(self.shard_bits) & ((1 << self.shard_bits) - 1);
        Place {
            shard: top as usize,
            scaled: spread << self.shard_bits,
        }
    }

    /// The present generation of a shard; none before its first block.
    #[inline]
    pub fn open<'p>(&self, shard: usize, _pin: &'p Pin<'_>) -> Option<Slots<'p>> {
        let entry = self.entries[shard].load(Ordering::Acquire);
        if entry.is_null() {
            return None;
        }
        let class = (entry.addr() >> CLASS_SHIFT) as u16;
        let first = entry
            .map_addr(|address| address & ADDRESS_MASK)
            .cast_const();
        // SAFETY: `announce` wrote this entry for an array of that class, whose owner retires it
        // through the grace period only after replacing the entry; the pin holds that back.
        let slots = unsafe { std::slice::from_raw_parts(first, capacity_of_class(class)) };
        Some(Slots { slots })
    }

    /// Who holds `hash`; none if nobody was ever known to.
    #[inline]
    pub fn look<'p>(&self, hash: u64, pin: &'p Pin<'_>) -> Option<Set<'p>> {
        let place = self.place(hash);
        let (_, set) = self.open(place.shard, pin)?.locate(hash, place.scaled);
        (!set.is_empty()).then_some(set)
    }

    /// Starts fetching the slot where the search for `hash` begins.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64, pin: &Pin<'_>) {
        let place = self.place(hash);
        if let Some(slots) = self.open(place.shard, pin) {
            prefetch(&slots.slots[slots.home(place.scaled)]);
        }
    }

    /// Writer only: makes `array`, of capacity class `class`, the shard's present generation.
    ///
    /// # Safety
    /// The array has that class's capacity, outlives its being announced, and afterwards is freed
    /// only through the grace period.
    pub unsafe fn announce(&self, shard: usize, array: Option<(&Zeroed<Slot>, u16)>) {
        let entry = array.map_or(std::ptr::null_mut(), |(array, class)| {
            debug_assert_eq!(array.len(), capacity_of_class(class));
            array.first().as_ptr().map_addr(|address| {
                assert!(
                    address <= ADDRESS_MASK,
                    "an address of more than 48 bits does not fit an entry"
                );
                address | usize::from(class) << CLASS_SHIFT
            })
        });
        self.entries[shard].store(entry, Ordering::Release);
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&*self.entries)
    }
}

/// Asks for the cache line of `target`; a hint, so nothing where the instruction is not known.
#[inline]
pub(crate) fn prefetch<T>(target: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program can see and cannot fault.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(target).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = target;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Lines that a new key reads beyond its own in a table that grows from 58 to 88 % full, on average: as searches go,
    /// and as they would from line to line.
    fn lines_beyond_home(leaps: bool) -> f64 {
        let array = Zeroed::<Slot>::new(capacity_of_class(class_for(24_000)));
        let slots = Slots::of(&array);
        let lines = array.len() / SLOTS_PER_LINE;
        let (mut keyed, mut read, mut counted) = (vec![0u8; lines], 0.0, 0.0);
        for key in 0..array.len() * 7 / 8 {
            let scaled = kvatlas_hashing::sequence_step(1, key as u64);
            let (mut at, mut step) = (slots.home(scaled), 0);
            while usize::from(keyed[at / SLOTS_PER_LINE]) == SLOTS_PER_LINE {
                step += 1;
                at = if leaps {
                    slots.after(at, scaled, step)
                } else {
                    (at + SLOTS_PER_LINE) % array.len()
                };
            }
            keyed[at / SLOTS_PER_LINE] += 1;
            if key * 12 >= array.len() * 7 {
                // Growing tables spend as long on every doubling of their keys.
                read += f64::from(step) / key as f64;
                counted += 1.0 / key as f64;
            }
        }
        read / counted
    }

    #[test]
    fn leaps_keep_full_lines_from_gathering_in_runs() {
        let (leaping, in_line) = (lines_beyond_home(true), lines_beyond_home(false));
        assert!((1.0..1.35).contains(&leaping), "{leaping} lines");
        assert!((1.7..2.2).contains(&in_line), "{in_line} lines");
    }

    proptest! {
        #[test]
        fn a_class_is_the_smallest_that_has_room(slots in 0usize..1 << 40) {
            let class = class_for(slots);
            prop_assert!(capacity_of_class(class) >= slots);
            prop_assert!(class == 1 || capacity_of_class(class - 1) < slots);
        }

        #[test]
        fn shard_and_home_are_in_range_for_any_hash(hash: u64, bits in 0u32..=16, class in 1u16..400) {
            let place = Directory::new(bits).place(hash);
            prop_assert!(place.shard < 1 << bits);
            let array = Zeroed::new(capacity_of_class(class));
            prop_assert!(Slots::of(&array).home(place.scaled) < array.len());
        }
    }
}
