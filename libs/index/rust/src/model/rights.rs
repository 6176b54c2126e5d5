//! The right to write: whoever has it sole has it alone, and no shard ever has two writers.
//!
//! `unsafe` here: a cell that several threads write. Sound if the rights are, and else the model says so.

use super::{Arc, Orders, allocated, explore, found, settle, small, spawn, store};
use crate::rights::Shards;
use crate::sync::UnsafeCell;

/// What `Shards` vouches for: under sole rights no other rights exist. The cell sees two that meet in it.
struct Stage {
    shards: Shards,
    /// Written under sole rights only.
    alone: UnsafeCell<u32>,
}

// SAFETY: what this model is about; the model checks each access to the cell.
unsafe impl Sync for Stage {}

fn write(stage: &Stage, in_background: bool) {
    for _ in 0..2 {
        let mut rights = if in_background {
            stage.shards.enter_shared()
        } else {
            stage.shards.enter()
        };
        // The tables are such cells too.
        rights.with(0, |_| ());
        if rights.is_sole() {
            // SAFETY: as above.
            stage.alone.with_mut(|alone| unsafe { *alone += 1 });
        }
    }
}

#[test]
fn two_who_meet_are_never_both_sole() {
    explore("rights::two_writers", Orders::Every, || {
        let stage = Arc::new(Stage {
            shards: Shards::new(1),
            alone: UnsafeCell::default(),
        });
        let other = spawn({
            let stage = Arc::clone(&stage);
            move || write(&stage, false)
        });
        write(&stage, false);
        other.join().unwrap();
        stage.shards.enter();
        assert!(stage.shards.enter().is_sole(), "sole again some time after");
    });
}

#[test]
fn nor_with_one_in_the_background() {
    explore("rights::three_writers", Orders::Preemptions(3), || {
        let stage = Arc::new(Stage {
            shards: Shards::new(1),
            alone: UnsafeCell::default(),
        });
        let others = [false, true].map(|in_background| {
            let stage = Arc::clone(&stage);
            spawn(move || write(&stage, in_background))
        });
        write(&stage, false);
        for other in others {
            other.join().unwrap();
        }
    });
}

/// Two writers, past a growth: every block of both is there.
#[test]
fn writers_who_meet_lose_no_block() {
    explore("rights::growth_by_two", Orders::Preemptions(3), || {
        let index = small();
        let (one, two) = (allocated(&index, 1), allocated(&index, 2));
        index.publish(one);
        index.publish(two);
        let other = spawn({
            let index = Arc::clone(&index);
            move || store(&index, two, &[1, 2])
        });
        assert_eq!(store(&index, one, &[1, 3, 4]), 3);
        assert_eq!(other.join().unwrap(), 2);
        assert_eq!(found(&index, &[1]), [(1, 1), (2, 1)]);
        assert_eq!(found(&index, &[2]), [(2, 1)]);
        assert_eq!(found(&index, &[3, 4]), [(1, 2)]);
        settle(&index);
    });
}
