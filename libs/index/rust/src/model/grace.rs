//! The grace period by itself: whatever is unlinked stays while a pin may reach it, and goes afterwards.
//!
//! `unsafe` here: reading what a pointer shows. Sound because the model keeps all memory to the end of its run.

use std::sync::atomic::{AtomicUsize as Count, Ordering::Relaxed};

use super::{Arc, Orders, explore, spawn};
use crate::grace::Grace;
use crate::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use crate::sync::{Guarded, HasGuard, leaving};

/// What readers reach by a pointer; counts its end.
struct Shown {
    guard: Guarded,
    ended: Arc<Count>,
}

impl HasGuard for Shown {
    fn guard(&self) -> &Guarded {
        // Asked only when it is dropped.
        self.ended.fetch_add(1, Relaxed);
        &self.guard
    }
}

struct Stage {
    grace: Grace,
    shown: AtomicPtr<Shown>,
    ended: Arc<Count>,
}

impl Stage {
    fn new() -> Arc<Self> {
        let ended = Arc::new(Count::new(0));
        Arc::new(Self {
            grace: Grace::new(),
            shown: AtomicPtr::new(Self::actor(&ended)),
            ended,
        })
    }

    fn actor(ended: &Arc<Count>) -> *mut Shown {
        let shown = Shown {
            guard: Guarded::default(),
            ended: Arc::clone(ended),
        };
        Arc::into_raw(Arc::new(shown)).cast_mut()
    }

    fn read(&self) {
        let _pin = self.grace.pin();
        // SAFETY: what this model is about; the memory itself is kept to the end of the run.
        let shown = unsafe { &*self.shown.load(Ordering::Acquire) };
        shown.guard.read();
    }

    fn replace(&self) {
        let next = Self::actor(&self.ended);
        let old = self.shown.swap(next, Ordering::AcqRel);
        // SAFETY: from `actor`, and taken over by the swap.
        self.grace.retire(leaving(unsafe { Arc::from_raw(old) }), 1);
    }

    fn close(&self, replaced: usize) {
        while self.grace.collect() {}
        assert_eq!(self.ended.load(Relaxed), replaced, "all retired are freed");
        assert_eq!(self.grace.retired_bytes(), 0);
    }
}

#[test]
fn what_a_reader_reaches_is_not_freed() {
    explore("grace::reader", Orders::Preemptions(4), || {
        let stage = Stage::new();
        let reader = spawn({
            let stage = Arc::clone(&stage);
            move || stage.read()
        });
        stage.replace();
        // Each step moves the epoch by one: past the third, counters are used anew.
        for _ in 0..4 {
            stage.grace.collect();
        }
        reader.join().unwrap();
        stage.close(1);
    });
}

#[test]
fn nor_if_others_step_and_free_meanwhile() {
    explore("grace::two_collectors", Orders::Preemptions(3), || {
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
                stage.grace.collect();
                stage.grace.collect();
            }
        });
        stage.replace();
        stage.grace.collect();
        stage.grace.collect();
        reader.join().unwrap();
        collector.join().unwrap();
        stage.close(1);
    });
}

#[test]
fn what_is_unlinked_under_a_pin_passes_three_epochs_after_it() {
    explore("grace::unlinked", Orders::Preemptions(4), || {
        let grace = Arc::new(Grace::new());
        let linked = Arc::new(AtomicU64::new(1));
        let reached = Arc::new(Guarded::default());
        let reader = spawn({
            let (grace, linked) = (Arc::clone(&grace), Arc::clone(&linked));
            let reached = Arc::clone(&reached);
            move || {
                let _pin = grace.pin();
                if linked.load(Ordering::Acquire) == 1 {
                    reached.read();
                }
            }
        });
        let passes = {
            let pin = grace.pin();
            grace.step();
            linked.store(0, Ordering::Release);
            pin.unlinked_passes()
        };
        for _ in 0..3 {
            grace.step();
        }
        if grace.now() >= passes {
            reached.end();
        }
        reader.join().unwrap();
        while grace.now() < passes {
            assert!(grace.step(), "nobody is pinned");
        }
    });
}
