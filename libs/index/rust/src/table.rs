//! What readers see of the table: a directory of shards, each entry naming one generation of slots.
//!
//! ```text
//! hash ─ Fibonacci multiply ─▶ top bits: shard ──▶ directory entry ──▶ lines of 64 bytes
//!                              the rest: home line       │             5 keys of 8 bytes │ 5 set words in short, of 4 │ marks
//!                                                        └ address (48 bit) │ capacity class (16 bit)
//! ```
//!
//! The capacity rides in the entry's upper bits, so from the entry (8 bytes a shard, all of them
//! fit the nearest cache) a reader goes straight to the slot: one miss a probe. The home line is the
//! hash's place on a scale of 0 to 1, so a capacity need not be a power of two, and a copy into another
//! capacity walks both arrays in order. A line is filled from its first
//! slot on. Where it is full, the search goes on with the line beside it, which is fetched at little cost, then leaps to
//! another pair of lines, as far as the hash's lower bits say. So full lines do not gather in runs. Marks on a line say what
//! kinds of keys have gone past it; nothing else is looked for beyond it ([`crate::line`]).
//!
//! `unsafe` here: turning a directory entry into a slice, and a brief into its set. Sound because the entry always names a live
//! array of the capacity it states, and a retired array is freed only after a grace period that the
//! reader's pin holds back. Checked by `tests/stress.rs` and `tests/differential.rs`.

use crate::sync::atomic::{AtomicPtr, Ordering};
use std::marker::PhantomData;
use std::sync::Arc;

use crate::cells::Cells;
use crate::grace::Pin;
use crate::line::{Line, SLOTS_PER_LINE, Slot};
use crate::set::Set;
use crate::zeroed::Zeroed;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const CLASS_SHIFT: u32 = 48;
const ADDRESS_MASK: usize = (1 << CLASS_SHIFT) - 1;

/// Capacities are multiples of it.
const LINES_PER_UNIT: usize = crate::sync::sized(4, 1);
/// Lines that a search reads in pairs; then it goes from line to line, and so to all of them.
const LEAPS: u32 = 32;

/// Capacities are whole units: any number up to 63, then 32 to 63 times a power of two, so that
/// rounding up never adds more than 1/32. The class is such a number in 16 bits, ascending with it.
pub(crate) fn lines_of_class(class: u16) -> usize {
    let class = usize::from(class);
    let units = if class < 64 {
        class
    } else {
        (32 + class % 32) << (class / 32 - 1)
    };
    LINES_PER_UNIT * units
}

/// The smallest class with at least `slots` slots.
pub(crate) fn class_for(slots: usize) -> u16 {
    let units = slots.div_ceil(LINES_PER_UNIT * SLOTS_PER_LINE).max(1);
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
    lines: &'p [Line],
}

impl<'p> Slots<'p> {
    pub fn of(array: &'p Zeroed<Line>) -> Self {
        Self {
            lines: array.as_slice(),
        }
    }

    /// The number of slots.
    pub fn len(self) -> usize {
        self.lines.len() * SLOTS_PER_LINE
    }

    /// The line where the search for `scaled` (see [`Directory::place`]) starts.
    #[inline]
    pub fn home(self, scaled: u64) -> usize {
        ((u128::from(scaled) * self.lines.len() as u128) >> 64) as usize
    }

    /// The set of the slot that has the key; a vacant one's if there is none.
    #[inline]
    pub fn locate(self, hash: u64, scaled: u64, cells: &'p Cells) -> Set<'p> {
        let mut at = self.home(scaled);
        let mut step = 0;
        // Ends: the writer keeps at least one slot vacant, and nothing goes past its line.
        loop {
            let line = &self.lines[at];
            if let Some(brief) = line.brief_of(hash, scaled) {
                // SAFETY: loaded with `Acquire` from a slot that is protected for `'p`.
                return unsafe { Set::from_word(cells.word(brief)) };
            }
            step += 1;
            at = self.after(at, scaled, step);
        }
    }

    /// Whether these are the slots of `array`.
    #[inline]
    pub fn are_of(self, array: Option<&Zeroed<Line>>) -> bool {
        array.map_or(self.lines.is_empty(), |array| {
            std::ptr::eq(array.first().as_ptr(), self.lines.as_ptr())
        })
    }

    /// A line; none past the end.
    #[inline(always)]
    pub fn line(self, at: usize) -> Option<&'p Line> {
        self.lines.get(at)
    }

    /// A slot, counted through all lines; none past the end.
    #[inline]
    pub fn slot(self, at: usize, cells: &'p Cells) -> Option<Slot<'p>> {
        let line = self.lines.get(at / SLOTS_PER_LINE)?;
        Some(line.slot(at % SLOTS_PER_LINE, cells))
    }

    /// All slots.
    pub fn all(self, cells: &'p Cells) -> impl Iterator<Item = Slot<'p>> {
        self.lines
            .iter()
            .flat_map(move |line| (0..SLOTS_PER_LINE).map(move |at| line.slot(at, cells)))
    }

    /// Writer only, before the slots are announced: adds a key that is not there yet. `keyed` counts the keys of
    /// each line.
    #[inline(always)]
    pub fn fill(self, keyed: &mut [u8], scaled: u64, key: u64, brief: u32) {
        let mut at = self.home(scaled);
        let mut step = 0;
        loop {
            let keys = usize::from(keyed[at]);
            if keys < SLOTS_PER_LINE {
                keyed[at] += 1;
                self.lines[at].fill(keys, key, brief);
                return;
            }
            self.lines[at].let_pass(scaled);
            step += 1;
            at = self.after(at, scaled, step);
        }
    }

    /// The line that a search reads as number `step`, after line `at`.
    #[inline]
    pub fn after(self, at: usize, scaled: u64, step: u32) -> usize {
        let beside = at ^ 1;
        let lines = self.lines.len();
        let next = if step >= LEAPS {
            at + 1
        } else if step % 2 == 1 {
            // The last line of a table may have none beside it.
            return if beside < lines { beside } else { at };
        } else {
            let leap = ((scaled & u64::from(u32::MAX)) * lines as u64) >> 32 | 1;
            beside + leap as usize
        };
        if next < lines {
            next
        } else {
            // Without slots there is no line, and whoever asks for it is told so.
            next.checked_rem(lines).unwrap_or(0)
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
    entries: Box<[AtomicPtr<Line>]>,
    shard_bits: u32,
    /// Where the set words are that slots have no room for.
    pub cells: Arc<Cells>,
    _owns_nothing: PhantomData<*const ()>,
}

// SAFETY: the entries are atomics, and what they point to is only handed out as `&Slot`, which is
// `Sync`. The arrays belong to the shards' writers.
unsafe impl Send for Directory {}
// SAFETY: as above.
unsafe impl Sync for Directory {}

impl Directory {
    pub fn new(shard_bits: u32, cells: Arc<Cells>) -> Self {
        Self {
            entries: (0..1usize << shard_bits)
                .map(|_| AtomicPtr::default())
                .collect(),
            shard_bits,
            cells,
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
        let lines = unsafe { std::slice::from_raw_parts(first, lines_of_class(class)) };
        Some(Slots { lines })
    }

    /// Who holds `hash`; none if nobody was ever known to.
    #[inline]
    pub fn look<'p>(&'p self, hash: u64, pin: &'p Pin<'_>) -> Option<Set<'p>> {
        let place = self.place(hash);
        let slots = self.open(place.shard, pin)?;
        let set = slots.locate(hash, place.scaled, &self.cells);
        (!set.is_empty()).then_some(set)
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
    pub unsafe fn announce(&self, shard: usize, array: Option<(&Zeroed<Line>, u16)>) {
        let entry = array.map_or(std::ptr::null_mut(), |(array, class)| {
            debug_assert_eq!(array.len(), lines_of_class(class));
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

    /// Lines that a new key reads beyond its own in a table that grows from 42 to 83 % full, on average: as searches go,
    /// and as they would from line to line.
    fn lines_beyond_home(leaps: bool) -> f64 {
        let array = Zeroed::<Line>::new(lines_of_class(class_for(30_000)));
        let slots = Slots::of(&array);
        let (mut keyed, mut read, mut counted) = (vec![0u8; array.len()], 0.0, 0.0);
        for key in 0..slots.len() * 5 / 6 {
            let scaled = kvatlas_hashing::sequence_step(1, key as u64);
            let (mut at, mut step) = (slots.home(scaled), 0);
            while usize::from(keyed[at]) == SLOTS_PER_LINE {
                step += 1;
                at = if leaps {
                    slots.after(at, scaled, step)
                } else {
                    (at + 1) % array.len()
                };
            }
            keyed[at] += 1;
            if key * 12 >= slots.len() * 5 {
                // Growing tables spend as long on every doubling of their keys.
                read += f64::from(step) / key as f64;
                counted += 1.0 / key as f64;
            }
        }
        read / counted
    }

    #[test]
    #[cfg_attr(miri, ignore = "it counts, in large tables, and borrows nothing")]
    fn leaps_keep_full_lines_from_gathering_in_runs() {
        let (leaping, in_line) = (lines_beyond_home(true), lines_beyond_home(false));
        assert!((0.4..0.55).contains(&leaping), "{leaping} lines");
        assert!((0.5..0.8).contains(&in_line), "{in_line} lines");
    }

    #[test]
    #[cfg_attr(miri, ignore = "as above")]
    fn a_search_for_what_is_not_there_seldom_reads_on() {
        let array = Zeroed::<Line>::new(lines_of_class(class_for(30_000)));
        let slots = Slots::of(&array);
        let (mut keyed, count) = (vec![0u8; array.len()], slots.len() * 5 / 6);
        let place = |number: usize| kvatlas_hashing::sequence_step(1, number as u64);
        for number in 0..count {
            slots.fill(&mut keyed, place(number), place(number), 1);
        }
        let lines_beyond_home = |scaled, ends: fn(&Line, u64) -> bool| {
            let (mut at, mut step) = (slots.home(scaled), 0);
            while !ends(&array.as_slice()[at], scaled) {
                step += 1;
                at = slots.after(at, scaled, step);
            }
            step
        };
        let (mut with_marks, mut without) = (0, 0);
        for scaled in (count..2 * count).map(place) {
            with_marks += lines_beyond_home(scaled, |line, scaled| !line.was_passed(scaled));
            without += lines_beyond_home(scaled, |line, _| line.has_vacancy());
        }
        let [with_marks, without] =
            [with_marks, without].map(|lines| f64::from(lines) / count as f64);
        assert!((0.03..0.1).contains(&with_marks), "{with_marks} lines");
        assert!((1.5..2.2).contains(&without), "{without} lines");
    }

    const MOST_BITS: u32 = if cfg!(miri) { 8 } else { 16 };
    const MOST_CLASSES: u16 = if cfg!(miri) { 80 } else { 400 };

    proptest! {
        #[test]
        fn a_class_is_the_smallest_that_has_room(slots in 0usize..1 << 40) {
            let class = class_for(slots);
            prop_assert!(lines_of_class(class) * SLOTS_PER_LINE >= slots);
            prop_assert!(class == 1 || lines_of_class(class - 1) * SLOTS_PER_LINE < slots);
        }

        #[test]
        fn shard_and_home_are_in_range_for_any_hash(hash: u64, bits in 0u32..=MOST_BITS, class in 1..MOST_CLASSES) {
            let place = Directory::new(bits, Arc::default()).place(hash);
            prop_assert!(place.shard < 1 << bits);
            let array = Zeroed::new(lines_of_class(class));
            prop_assert!(Slots::of(&array).home(place.scaled) < array.len());
        }
    }
}
