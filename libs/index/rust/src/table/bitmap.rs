//! Bitmaps of holders: the bit operations. One writer changes them while readers load them.
//!
//! Worker slot `s` is bit `s % 64` of word `s / 64`. [`crate::table::bitmap_arena`] has the memory they lie in.

use crate::bits;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::types::WorkerSlot;

pub(crate) fn contains(bitmap: &[AtomicU64], slot: WorkerSlot) -> bool {
    let word = bitmap
        .get(slot.word())
        .map_or(0, |word| word.load(Ordering::Relaxed));
    word & slot.bit() != 0
}

/// Sets or clears one bit. Only the shard's writer changes bits, so a load and a store are enough.
pub(crate) fn assign(bitmap: &[AtomicU64], slot: WorkerSlot, value: bool) {
    let word = &bitmap[slot.word()];
    let old = word.load(Ordering::Relaxed);
    word.store(
        if value {
            old | slot.bit()
        } else {
            old & !slot.bit()
        },
        Ordering::Release,
    );
}

/// Clears every bit that is set in `removed`; returns how many were set.
pub(crate) fn subtract(bitmap: &[AtomicU64], removed: &[u64]) -> usize {
    let mut count = 0;
    for (word, removed) in bitmap.iter().zip(removed) {
        let old = word.load(Ordering::Relaxed);
        if old & removed != 0 {
            word.store(old & !removed, Ordering::Release);
            count += (old & removed).count_ones() as usize;
        }
    }
    count
}

/// The worker slots whose bits are set, ascending.
pub(crate) fn slots(bitmap: &[AtomicU64]) -> impl Iterator<Item = WorkerSlot> + Clone {
    (0..)
        .zip(bitmap)
        .flat_map(|(place, word)| bits::slots_of_word(place, word.load(Ordering::Relaxed)))
}
