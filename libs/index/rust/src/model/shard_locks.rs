//! Writers' guards: an exclusive guard excludes all others, and no shard ever has two writers.
//!
//! `unsafe` here: a cell that several threads write. Sound if the guards are; else the model fails.

use super::{Arc, Orders, allocated, explore, found, settle, small, spawn, store};
use crate::sync::UnsafeCell;
use crate::table::shard_locks::Shards;

/// The promise of `Shards`: beside an exclusive guard there is no other. The cell notices two threads that meet in it.
struct Stage {
    shards: Shards,
    /// Written under an exclusive guard only.
    exclusive: UnsafeCell<u32>,
}

// SAFETY: what this model checks, at each access to the cell.
unsafe impl Sync for Stage {}

fn write(stage: &Stage, in_background: bool) {
    for _ in 0..2 {
        let mut guard = if in_background {
            stage.shards.lock_shared()
        } else {
            stage.shards.lock()
        };
        // The tables are such cells too.
        guard.with_shard(0, |_| ());
        if guard.is_exclusive() {
            // SAFETY: as above.
            stage.exclusive.with_mut(|count| unsafe { *count += 1 });
        }
    }
}

#[test]
fn two_writers_that_meet_are_never_both_exclusive() {
    explore("shard_locks::two_writers", Orders::Every, || {
        let stage = Arc::new(Stage {
            shards: Shards::new(1),
            exclusive: UnsafeCell::default(),
        });
        let other = spawn({
            let stage = Arc::clone(&stage);
            move || write(&stage, false)
        });
        write(&stage, false);
        other.join().unwrap();
        stage.shards.lock();
        assert!(
            stage.shards.lock().is_exclusive(),
            "exclusive again some time after"
        );
    });
}

#[test]
fn nor_with_a_third_in_the_background() {
    explore("shard_locks::three_writers", Orders::Preemptions(3), || {
        let stage = Arc::new(Stage {
            shards: Shards::new(1),
            exclusive: UnsafeCell::default(),
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

/// Two writers, through a growth: every block of both is there.
#[test]
fn writers_that_meet_lose_no_block() {
    explore("shard_locks::growth_by_two", Orders::Preemptions(3), || {
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
