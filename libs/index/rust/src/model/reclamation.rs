//! Reclamation by itself: an unlinked object stays while a pin may reach it, and is freed afterwards.
//!
//! `unsafe` here: reading an object through a published pointer. Sound because the model keeps all memory to the end of its
//! run.

use std::sync::atomic::{AtomicUsize as Count, Ordering::Relaxed};

use super::{Arc, Orders, explore, spawn};
use crate::memory::reclamation::Reclaimer;
use crate::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use crate::sync::{HasTracker, Tracker, track_retired};

/// An object that readers reach by a pointer; counts how many were freed.
struct Published {
    tracker: Tracker,
    freed: Arc<Count>,
}

impl HasTracker for Published {
    fn tracker(&self) -> &Tracker {
        // Asked only when the object is dropped.
        self.freed.fetch_add(1, Relaxed);
        &self.tracker
    }
}

struct Stage {
    reclaimer: Reclaimer,
    current: AtomicPtr<Published>,
    freed: Arc<Count>,
}

impl Stage {
    fn new() -> Arc<Self> {
        let freed = Arc::new(Count::new(0));
        Arc::new(Self {
            reclaimer: Reclaimer::new(),
            current: AtomicPtr::new(Self::object(&freed)),
            freed,
        })
    }

    fn object(freed: &Arc<Count>) -> *mut Published {
        let object = Published {
            tracker: Tracker::default(),
            freed: Arc::clone(freed),
        };
        Arc::into_raw(Arc::new(object)).cast_mut()
    }

    fn read(&self) {
        let _pin = self.reclaimer.pin();
        // SAFETY: what this model checks; the memory itself is kept to the end of the run.
        let current = unsafe { &*self.current.load(Ordering::Acquire) };
        current.tracker.read();
    }

    fn replace(&self) {
        let next = Self::object(&self.freed);
        let old = self.current.swap(next, Ordering::AcqRel);
        // SAFETY: from `object`, and taken over by the swap.
        let old = unsafe { Arc::from_raw(old) };
        self.reclaimer.retire(track_retired(old), 1);
    }

    fn close(&self, replaced: usize) {
        while self.reclaimer.collect() {}
        assert_eq!(self.freed.load(Relaxed), replaced, "all retired are freed");
        assert_eq!(self.reclaimer.retired_bytes(), 0);
    }
}

#[test]
fn an_object_that_a_reader_reaches_is_not_freed() {
    explore("reclamation::reader", Orders::Preemptions(4), || {
        let stage = Stage::new();
        let reader = spawn({
            let stage = Arc::clone(&stage);
            move || stage.read()
        });
        stage.replace();
        // Each step advances the epoch by one: past the third, counters are used again.
        for _ in 0..4 {
            stage.reclaimer.collect();
        }
        reader.join().unwrap();
        stage.close(1);
    });
}

#[test]
fn nor_if_others_advance_and_free_meanwhile() {
    explore(
        "reclamation::two_collectors",
        Orders::Preemptions(3),
        || {
            let stage = Stage::new();
            let reader = spawn({
                let stage = Arc::clone(&stage);
                move || {
                    stage.read();
                    stage.read();
                }
            });
            let collector = spawn({
                let stage = Arc::clone(&stage);
                move || {
                    stage.reclaimer.collect();
                    stage.reclaimer.collect();
                }
            });
            stage.replace();
            stage.reclaimer.collect();
            stage.reclaimer.collect();
            reader.join().unwrap();
            collector.join().unwrap();
            stage.close(1);
        },
    );
}

#[test]
fn an_object_unlinked_under_a_pin_is_safe_three_epochs_after_it() {
    explore("reclamation::unlinked", Orders::Preemptions(4), || {
        let reclaimer = Arc::new(Reclaimer::new());
        let linked = Arc::new(AtomicU64::new(1));
        let object = Arc::new(Tracker::default());
        let reader = spawn({
            let (reclaimer, linked) = (Arc::clone(&reclaimer), Arc::clone(&linked));
            let object = Arc::clone(&object);
            move || {
                let _pin = reclaimer.pin();
                if linked.load(Ordering::Acquire) == 1 {
                    object.read();
                }
            }
        });
        let safe_from = {
            let pin = reclaimer.pin();
            reclaimer.try_advance();
            linked.store(0, Ordering::Release);
            pin.epoch_safe_after_unlink()
        };
        for _ in 0..3 {
            reclaimer.try_advance();
        }
        if reclaimer.epoch() >= safe_from {
            object.mark_freed();
        }
        reader.join().unwrap();
        while reclaimer.epoch() < safe_from {
            assert!(reclaimer.try_advance(), "nobody is pinned");
        }
    });
}
