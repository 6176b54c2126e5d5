//! The directory: which shard a hash belongs to, and where that shard's lines are. This is all that readers need.
//!
//! ```text
//! hash ─ Fibonacci multiply ─▶ top bits: shard ──▶ directory entry ──▶ lines of 64 bytes
//!                              the rest: home line       │             5 keys of 8 bytes │ 5 compact sets of 4 │ filter
//!                                                        └ address (48 bit) │ capacity class (16 bit)
//! ```
//!
//! The capacity class lies in the upper bits of the address. So from the directory entry (8 bytes a shard, all of them fit
//! the nearest cache) a reader goes straight to the line: one miss a search. The home line is a fraction of the lines given
//! by the hash. So a capacity need not be a power of two, and a copy into another capacity walks both arrays in order.
//!
//! `unsafe` here: turning a directory entry into a slice. Sound because the entry always names a live array of the capacity
//! it states, and a retired array is freed only after a grace period, which the reader's pin holds back. Checked by
//! `tests/stress.rs` and `tests/differential.rs`.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::memory::prefetch::prefetch;
use crate::memory::reclamation::Pin;
use crate::memory::zeroed_array::ZeroedArray;
use crate::sync::atomic::{AtomicPtr, Ordering};
use crate::table::capacity::lines_of_class;
use crate::table::line::Line;
use crate::table::lines::Lines;
use crate::table::set_word::StoredSet;
use crate::table::spilled_sets::SpilledSets;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const CLASS_SHIFT: u32 = 48;
const ADDRESS_MASK: usize = (1 << CLASS_SHIFT) - 1;

/// Where the search for a hash begins.
#[derive(Clone, Copy)]
pub(crate) struct Home {
    pub shard: usize,
    /// The home line as a fraction of the shard's lines, in units of 2^-64.
    pub fraction: u64,
}

pub(crate) struct Directory {
    /// By shard: address and capacity class of its lines; null before its first block.
    entries: Box<[AtomicPtr<Line>]>,
    shard_bits: u32,
    /// The set words that entries have no room for.
    pub spilled: Arc<SpilledSets>,
    _owns_nothing: PhantomData<*const ()>,
}

// SAFETY: the entries are atomics, and what they point to is only handed out as `&Line`, which is `Sync`. The arrays belong
// to the shards' writers.
unsafe impl Send for Directory {}
// SAFETY: as above.
unsafe impl Sync for Directory {}

impl Directory {
    pub fn new(shard_bits: u32, spilled: Arc<SpilledSets>) -> Self {
        Self {
            entries: (0..1usize << shard_bits)
                .map(|_| AtomicPtr::default())
                .collect(),
            shard_bits,
            spilled,
            _owns_nothing: PhantomData,
        }
    }

    #[inline]
    pub fn home_of(&self, hash: u64) -> Home {
        let spread = hash.wrapping_mul(GOLDEN);
        // Rotating first makes "the top `shard_bits` bits" well defined for 0 bits as well.
        let top = spread.rotate_left(self.shard_bits) & ((1 << self.shard_bits) - 1);
        Home {
            shard: top as usize,
            fraction: spread << self.shard_bits,
        }
    }

    /// The present lines of a shard; none before its first block.
    #[inline]
    pub fn lines<'p>(&self, shard: usize, _pin: &'p Pin<'_>) -> Option<Lines<'p>> {
        let entry = self.entries[shard].load(Ordering::Acquire);
        if entry.is_null() {
            return None;
        }
        let class = (entry.addr() >> CLASS_SHIFT) as u16;
        let first = entry
            .map_addr(|address| address & ADDRESS_MASK)
            .cast_const();
        // SAFETY: `publish` wrote this entry for an array of that class. The array's owner retires it only after it has
        // replaced the entry; the pin holds the grace period back.
        let lines = unsafe { std::slice::from_raw_parts(first, lines_of_class(class)) };
        Some(Lines::new(lines))
    }

    /// The holders of `hash`; none if nobody was ever known to hold it.
    #[inline]
    pub fn find<'p>(&'p self, hash: u64, pin: &'p Pin<'_>) -> Option<StoredSet<'p>> {
        let home = self.home_of(hash);
        let lines = self.lines(home.shard, pin)?;
        let set = lines.find(hash, home.fraction, &self.spilled);
        (!set.is_empty()).then_some(set)
    }

    /// Starts fetching the line where the search for `hash` begins.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64, pin: &Pin<'_>) {
        let home = self.home_of(hash);
        if let Some(lines) = self.lines(home.shard, pin)
            && let Some(line) = lines.line(lines.home_line(home.fraction))
        {
            prefetch(line);
        }
    }

    /// Writer only: makes `array`, of capacity class `class`, the shard's present lines.
    ///
    /// # Safety
    /// The array has that class's capacity, outlives its publication, and is then freed only after a grace period.
    pub unsafe fn publish(&self, shard: usize, array: Option<(&ZeroedArray<Line>, u16)>) {
        let entry = array.map_or(std::ptr::null_mut(), |(array, class)| {
            debug_assert_eq!(array.len(), lines_of_class(class));
            array.first().as_ptr().map_addr(|address| {
                assert!(
                    address <= ADDRESS_MASK,
                    "an address of more than 48 bits does not fit a directory entry"
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX_BITS: u32 = if cfg!(miri) { 8 } else { 16 };
    const MAX_CLASSES: u16 = if cfg!(miri) { 80 } else { 400 };

    proptest! {
        #[test]
        fn shard_and_home_line_are_in_range_for_any_hash(hash: u64, bits in 0u32..=MAX_BITS, class in 1..MAX_CLASSES) {
            let home = Directory::new(bits, Arc::default()).home_of(hash);
            prop_assert!(home.shard < 1 << bits);
            let array = ZeroedArray::new(lines_of_class(class));
            prop_assert!(Lines::of(&array).home_line(home.fraction) < array.len());
        }
    }
}
