//! Epoch-based reclamation: memory and worker slots are reused only when no reader can still see them.
//!
//! Readers take no lock, so a table, a bitmap or a worker slot may still be in use when its owner has unlinked it. Every
//! look-up, and every writer for as long as it uses worker slots, holds a [`Pin`]: it counts itself in a counter of the
//! epoch in which it began. The epoch moves from `e` to `e + 1` only when nobody is pinned to `e - 1` any more. So a thing
//! unlinked before a stamp `s` was drawn is out of every reader's reach once the epoch is `s + 2`:
//!
//! - A reader pinned to `p <= s` blocks the step from `p + 1` to `p + 2`, and `s + 2 >= p + 2`.
//! - A reader pinned to `p > s` loaded `p` from a step made after the stamp was drawn. A chain of read-modify-writes that
//!   starts with the stamp's own leads to that step, so the reader sees the unlinking.
//!
//! A pin reads the epoch again after it has counted itself. These two accesses and those of a step (write the epoch,
//! later read the counters) are all `SeqCst`. So either the reader sees the new epoch and counts itself anew, or a later
//! step sees the reader.
//!
//! Pinning costs two atomic adds on a cache line that few threads share. Threads need not register, and leave nothing to
//! clean up. Unlinked memory waits in a list, the *limbo*; its size is bounded by what is retired while the longest pin
//! lasts, and `MemoryUse::retired` counts it.

use std::collections::VecDeque;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, relaxed, sized_for_models, thread_number};

/// Counters of an epoch, so that threads seldom share a cache line.
const STRIPES: usize = sized_for_models(32, 2);
/// From this many retired bytes on, each `retire` also frees what is safe. Below it that is left to the sweep: looking
/// reads every stripe, and the end of a worker should cost next to nothing.
const COLLECT_ABOVE_BYTES: usize = 64 << 10;

/// Numbers of pins by epoch, modulo three. Three are enough: pins are at the current epoch or the one before it. A late pin
/// may count itself in the counter of the next epoch, but it notices and takes itself out again.
#[derive(Default)]
#[repr(align(128))]
struct Stripe {
    pinned: [AtomicU64; 3],
}

type Garbage = Box<dyn Send>;

struct Retired {
    stamp: u64,
    bytes: usize,
    /// Held only to be dropped.
    _item: Garbage,
}

/// The epoch, the pins, and the retired memory of one index.
pub(crate) struct Reclaimer {
    epoch: AtomicU64,
    stripes: Box<[Stripe]>,
    limbo: Mutex<VecDeque<Retired>>,
    limbo_bytes: relaxed::AtomicUsize,
}

/// While a pin lives, nothing that its holder can reach is freed or reused.
pub(crate) struct Pin<'a> {
    counter: &'a AtomicU64,
    epoch: u64,
}

impl Pin<'_> {
    /// The epoch from which on no reader can see what is unlinked while this pin lives.
    ///
    /// Until the pin is dropped the epoch is at most one past the pin's, so what is unlinked meanwhile counts as unlinked
    /// just before a stamp of that epoch. A reader that pins a later epoch sees it unlinked, since the step there
    /// waited for this pin.
    #[inline]
    pub fn epoch_safe_after_unlink(&self) -> u64 {
        self.epoch + 1 + 2
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.counter.fetch_sub(1, Ordering::Release);
    }
}

impl Reclaimer {
    pub fn new() -> Self {
        Self {
            epoch: AtomicU64::new(1),
            stripes: (0..STRIPES).map(|_| Stripe::default()).collect(),
            limbo: Mutex::new(VecDeque::new()),
            limbo_bytes: relaxed::AtomicUsize::new(0),
        }
    }

    #[inline]
    pub fn pin(&self) -> Pin<'_> {
        let stripe = &self.stripes[stripe_of_this_thread()];
        let mut epoch = self.epoch.load(Ordering::Relaxed);
        loop {
            let counter = &stripe.pinned[(epoch % 3) as usize];
            counter.fetch_add(1, Ordering::SeqCst);
            let seen = self.epoch.load(Ordering::SeqCst);
            if seen == epoch {
                return Pin { counter, epoch };
            }
            counter.fetch_sub(1, Ordering::Release);
            epoch = seen;
        }
    }

    /// Draws a stamp for what the caller has just unlinked.
    pub fn stamp(&self) -> u64 {
        self.epoch.fetch_add(0, Ordering::SeqCst)
    }

    /// The current epoch.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Whether no reader can see any more what was unlinked before `stamp` was drawn.
    pub fn is_safe(&self, stamp: u64) -> bool {
        self.epoch.load(Ordering::SeqCst) >= stamp + 2
    }

    /// As [`Self::is_safe`], and advances the epoch if that is what is missing.
    pub fn advance_until_safe(&self, stamp: u64) -> bool {
        while !self.is_safe(stamp) {
            if !self.try_advance() {
                return false;
            }
        }
        true
    }

    /// Advances the epoch by one if nobody is pinned to the one before it.
    pub fn try_advance(&self) -> bool {
        let epoch = self.epoch.load(Ordering::SeqCst);
        let previous = ((epoch + 2) % 3) as usize;
        let idle = self
            .stripes
            .iter()
            .all(|s| s.pinned[previous].load(Ordering::SeqCst) == 0);
        idle && self
            .epoch
            .compare_exchange(epoch, epoch + 1, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    }

    /// Drops `item`, which is unlinked already, once no reader can see it. `bytes` is counted as retired until then.
    pub fn retire(&self, item: impl Send + 'static, bytes: usize) {
        let retired = Retired {
            stamp: self.stamp(),
            bytes,
            _item: Box::new(item),
        };
        let waiting = self.limbo_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.limbo.lock().push_back(retired);
        if waiting > COLLECT_ABOVE_BYTES {
            self.collect();
        }
    }

    /// Drops the retired items that no reader can see; true if some must still wait.
    pub fn collect(&self) -> bool {
        self.try_advance();
        let mut safe = Vec::new();
        let waits = {
            let mut limbo = self.limbo.lock();
            // Stamps are drawn outside the lock, so neighbours may be slightly out of order. Then one waits for the other.
            while limbo
                .front()
                .is_some_and(|oldest| self.is_safe(oldest.stamp))
            {
                safe.extend(limbo.pop_front());
            }
            !limbo.is_empty()
        };
        let bytes: usize = safe.iter().map(|item| item.bytes).sum();
        self.limbo_bytes.fetch_sub(bytes, Ordering::Relaxed);
        waits
    }

    pub fn retired_bytes(&self) -> usize {
        self.limbo_bytes.load(Ordering::Relaxed)
    }

    pub fn fixed_bytes(&self) -> usize {
        size_of_val(&*self.stripes) + self.limbo.lock().capacity() * size_of::<Retired>()
    }
}

/// Threads are dealt out over the stripes in turn. The stripe is only a hint that keeps threads off each other's cache
/// line, so all indexes of a process may share the numbering.
#[inline]
fn stripe_of_this_thread() -> usize {
    thread_number() % STRIPES
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_pin_holds_back_what_was_stamped_while_it_lived_and_nothing_else() {
        let reclaimer = Reclaimer::new();
        let pin = reclaimer.pin();
        let stamp = reclaimer.stamp();
        for _ in 0..8 {
            reclaimer.try_advance();
            assert!(!reclaimer.is_safe(stamp));
        }
        drop(pin);
        while reclaimer.try_advance() && !reclaimer.is_safe(stamp) {}
        assert!(reclaimer.is_safe(stamp));
        let late = reclaimer.pin();
        assert!(reclaimer.is_safe(stamp));
        drop(late);
    }

    #[test]
    fn retired_items_are_dropped_once_pins_are_gone() {
        let reclaimer = Reclaimer::new();
        let item = Arc::new(());
        let pin = reclaimer.pin();
        reclaimer.retire(Arc::clone(&item), 10);
        assert!((0..8).all(|_| reclaimer.collect()));
        assert_eq!(
            (Arc::strong_count(&item), reclaimer.retired_bytes()),
            (2, 10)
        );
        drop(pin);
        while reclaimer.collect() {}
        assert_eq!(
            (Arc::strong_count(&item), reclaimer.retired_bytes()),
            (1, 0)
        );
    }
}
