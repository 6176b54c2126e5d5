//! When may memory that readers could hold be used again? After a grace period.
//!
//! Epochs, counted: a reader (and a writer, for as long as it uses worker slots) is pinned to the
//! epoch it began in, by a counter of that epoch. The epoch moves from `e` to `e + 1` only when
//! nobody is pinned to `e - 1` any more. So what was unlinked before a stamp `s` was drawn can be
//! held by nobody once the epoch has reached `s + 2`:
//!
//! - pinned to `p <= s`: the step from `p + 1` to `p + 2` waits for it, and `s + 2 >= p + 2`;
//! - pinned to `p > s`: the load that gave `p` read a step made after the stamp was drawn, by a
//!   chain of read-modify-writes that starts with the stamp's own, so it sees the unlinking.
//!
//! The pin re-reads the epoch after counting itself. Those two accesses and the step's (write the
//! epoch, later read the counters) are all `SeqCst`, so either the reader sees the new epoch and
//! counts itself anew, or a later step sees the reader. Pinning costs two atomic adds, on a line that
//! few threads share; there is nothing to register and nothing to clean up when a thread ends.

use std::collections::VecDeque;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, sized, tally, thread_number};

const STRIPES: usize = sized(32, 2);
/// Retired bytes from which on whoever retires more also looks for what has passed. Below it that is
/// left to the sweep: looking touches every stripe, and a worker's end should cost next to nothing.
const COLLECT_ABOVE_BYTES: usize = 64 << 10;

/// Three generations suffice: pins are at the current epoch or the one before it, and a late one
/// that counts itself where the next will be takes itself out again.
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

pub(crate) struct Grace {
    now: AtomicU64,
    stripes: Box<[Stripe]>,
    limbo: Mutex<VecDeque<Retired>>,
    limbo_bytes: tally::AtomicUsize,
}

/// While it lives, nothing that its holder can reach is freed or used again.
pub(crate) struct Pin<'a> {
    counter: &'a AtomicU64,
    epoch: u64,
}

impl Pin<'_> {
    /// The epoch from which on nobody can hold what is unlinked while this pin lives.
    ///
    /// The epoch is at most one past the pin's until the pin is dropped, so what is unlinked meanwhile counts as
    /// unlinked just before a stamp of that epoch; and whoever pins a later one sees it unlinked, since the step there
    /// waited for this pin.
    #[inline]
    pub fn unlinked_passes(&self) -> u64 {
        self.epoch + 1 + 2
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.counter.fetch_sub(1, Ordering::Release);
    }
}

impl Grace {
    pub fn new() -> Self {
        Self {
            now: AtomicU64::new(1),
            stripes: (0..STRIPES).map(|_| Stripe::default()).collect(),
            limbo: Mutex::new(VecDeque::new()),
            limbo_bytes: tally::AtomicUsize::new(0),
        }
    }

    #[inline]
    pub fn pin(&self) -> Pin<'_> {
        let stripe = &self.stripes[stripe_of_this_thread()];
        let mut epoch = self.now.load(Ordering::Relaxed);
        loop {
            let counter = &stripe.pinned[(epoch % 3) as usize];
            counter.fetch_add(1, Ordering::SeqCst);
            let seen = self.now.load(Ordering::SeqCst);
            if seen == epoch {
                return Pin { counter, epoch };
            }
            counter.fetch_sub(1, Ordering::Release);
            epoch = seen;
        }
    }

    /// Draws a stamp for what the caller has just unlinked.
    pub fn stamp(&self) -> u64 {
        self.now.fetch_add(0, Ordering::SeqCst)
    }

    #[inline]
    pub fn now(&self) -> u64 {
        self.now.load(Ordering::SeqCst)
    }

    /// Whether nobody can hold any more what was unlinked before `stamp` was drawn.
    pub fn passed(&self, stamp: u64) -> bool {
        self.now.load(Ordering::SeqCst) >= stamp + 2
    }

    /// As [`Self::passed`], after moving the epoch on if that is what is missing.
    pub fn passed_or_steps(&self, stamp: u64) -> bool {
        while !self.passed(stamp) {
            if !self.step() {
                return false;
            }
        }
        true
    }

    /// Moves the epoch on by one step if nobody is pinned to the one before it.
    pub fn step(&self) -> bool {
        let epoch = self.now.load(Ordering::SeqCst);
        let before = ((epoch + 2) % 3) as usize;
        let idle = self
            .stripes
            .iter()
            .all(|s| s.pinned[before].load(Ordering::SeqCst) == 0);
        idle && self
            .now
            .compare_exchange(epoch, epoch + 1, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    }

    /// Drops `item`, already unlinked, once nobody can hold it; `bytes` is for the accounts.
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

    /// Drops what has passed its grace period; true if something still waits.
    pub fn collect(&self) -> bool {
        self.step();
        let mut passed = Vec::new();
        let waits = {
            let mut limbo = self.limbo.lock();
            // Stamps are drawn outside the lock, so neighbours may be out of order by a little:
            // that only makes one wait for the other.
            while limbo
                .front()
                .is_some_and(|oldest| self.passed(oldest.stamp))
            {
                passed.extend(limbo.pop_front());
            }
            !limbo.is_empty()
        };
        let bytes: usize = passed.iter().map(|item| item.bytes).sum();
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

/// Threads are dealt out over the stripes in turn; which one a thread got is only a hint that keeps
/// threads off each other's cache line, so it may be shared by all indexes of a process.
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
        let grace = Grace::new();
        let pin = grace.pin();
        let stamp = grace.stamp();
        for _ in 0..8 {
            grace.step();
            assert!(!grace.passed(stamp));
        }
        drop(pin);
        while grace.step() && !grace.passed(stamp) {}
        assert!(grace.passed(stamp));
        let late = grace.pin();
        assert!(grace.passed(stamp));
        drop(late);
    }

    #[test]
    fn retired_items_are_dropped_once_pins_are_gone() {
        let grace = Grace::new();
        let item = Arc::new(());
        let pin = grace.pin();
        grace.retire(Arc::clone(&item), 10);
        assert!((0..8).all(|_| grace.collect()));
        assert_eq!((Arc::strong_count(&item), grace.retired_bytes()), (2, 10));
        drop(pin);
        while grace.collect() {}
        assert_eq!((Arc::strong_count(&item), grace.retired_bytes()), (1, 0));
    }
}
