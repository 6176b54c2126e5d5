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
//! capacity walks both arrays in order. Home is a cache line of four slots; what it has no slot for goes to the other
//! lines of its group of four, then to other groups ([`crate::stations`] has the way, and where it ends).
//!
//! A slot's key is written before the word that leaves "vacant" or "empty"; it is replaced only if the word has been
//! "empty" for a grace period. So a reader sees at most one change of a slot's key while it is pinned, and that one from
//! a word that was empty already: one that loads the word (`Acquire`), then the key, and finds the set not empty, has the
//! key that the set belongs to; one that finds it empty may have either key, and neither had a holder then.
//!
//! `unsafe` here: turning a directory entry into a slice, and slots into lines. Sound because lines are arrays of slots, and the entry always names a live
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
/// The bit of a slot's word that is not about its set but about its line, see [`crate::stations`].
const MARK: u64 = 1 << 63;

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
        unsafe { Set::from_word(self.word.load(Ordering::Acquire) & !MARK) }
    }

    /// The key; meaningful once the slot is not vacant.
    #[inline]
    pub fn key(&self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }

    #[inline]
    pub fn word(&self) -> u64 {
        self.word.load(Ordering::Acquire) & !MARK
    }

    #[inline]
    pub fn is_marked(&self) -> bool {
        self.word.load(Ordering::Acquire) & MARK != 0
    }

    /// Writer only: gives a slot that [`crate::set::takes_key`] its key and first set word.
    #[inline]
    pub fn claim(&self, key: u64, word: u64) {
        self.key.store(key, Ordering::Relaxed);
        self.publish(word);
    }

    /// Writer only: another set for the same key.
    #[inline]
    pub fn publish(&self, word: u64) {
        let mark = self.word.load(Ordering::Relaxed) & MARK;
        self.word.store(mark | word, Ordering::Release);
    }

    /// Writer only.
    pub fn mark(&self, marked: bool) {
        let word = self.word.load(Ordering::Relaxed) & !MARK;
        let mark = if marked { MARK } else { 0 };
        self.word.store(mark | word, Ordering::Release);
    }
}

/// Slots in a cache line, the unit of probing.
pub(crate) const SLOTS_PER_LINE: usize = 4;
pub(crate) type Line = [Slot; SLOTS_PER_LINE];
/// Lines that overflow into each other before they do into others.
pub(crate) const LINES_PER_GROUP: usize = crate::sync::sized(4, 1);
const SLOTS_PER_GROUP: usize = SLOTS_PER_LINE * LINES_PER_GROUP;
/// Capacities are whole groups: any number up to 63, then 32 to 63 times a power of two, so that
/// rounding up never adds more than 1/32. The class is such a number in 16 bits, ascending with it.
pub(crate) fn capacity_of_class(class: u16) -> usize {
    let class = usize::from(class);
    let groups = if class < 64 {
        class
    } else {
        (32 + class % 32) << (class / 32 - 1)
    };
    SLOTS_PER_GROUP * groups
}

/// The smallest class with at least `slots` slots.
pub(crate) fn class_for(slots: usize) -> u16 {
    let groups = slots.div_ceil(SLOTS_PER_GROUP).max(1);
    if groups < 64 {
        return groups as u16;
    }
    let exponent = groups.ilog2() - 5;
    // Rounding up to 64 carries over into the exponent: the next class, as it should be.
    ((exponent as u16 + 1) << 5) + (groups.div_ceil(1 << exponent) - 32) as u16
}

/// The same slots, line by line; those that fill no line are left out.
fn lines_of(slots: &[Slot]) -> &[Line] {
    // SAFETY: a line is an array of slots, and so many of them are there.
    unsafe { std::slice::from_raw_parts(slots.as_ptr().cast(), slots.len() / SLOTS_PER_LINE) }
}

/// The slots of one generation, line by line, borrowed for as long as a pin (or the shard's lock) holds them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Slots<'p> {
    pub lines: &'p [Line],
}

impl<'p> Slots<'p> {
    pub fn of(array: &'p Zeroed<Slot>) -> Self {
        Self {
            lines: lines_of(array.as_slice()),
        }
    }

    /// The line where the search begins for a hash with that place in the shard (see [`Directory::place`]).
    #[inline(always)]
    pub fn home(self, scaled: u64) -> usize {
        ((u128::from(scaled) * self.lines.len() as u128) >> 64) as usize
    }

    /// Who holds `hash`; none if nobody does.
    #[inline(always)]
    pub fn find(self, hash: u64, scaled: u64) -> Option<Set<'p>> {
        let (_, _, set) = self.find_from(hash, self.home(scaled))?;
        Some(set)
    }

    /// Whether these are the slots of `array`.
    #[inline(always)]
    pub fn are_of(self, array: Option<&Zeroed<Slot>>) -> bool {
        array.map_or(self.lines.is_empty(), |array| {
            std::ptr::addr_eq(array.first().as_ptr(), self.lines.as_ptr())
        })
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
        Some(Slots {
            lines: lines_of(slots),
        })
    }

    /// Who holds `hash`; none if nobody does.
    #[inline]
    pub fn look<'p>(&self, hash: u64, pin: &'p Pin<'_>) -> Option<Set<'p>> {
        let place = self.place(hash);
        self.open(place.shard, pin)?.find(hash, place.scaled)
    }

    /// Starts fetching the slot where the search for `hash` begins.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64, pin: &Pin<'_>) {
        let place = self.place(hash);
        if let Some(slots) = self.open(place.shard, pin) {
            prefetch(&slots.lines[slots.home(place.scaled)]);
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
            let slots = Slots::of(&array);
            prop_assert!(slots.home(place.scaled) < slots.lines.len());
        }
    }
}
