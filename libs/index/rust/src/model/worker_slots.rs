//! Worker slots that are retired and allocated again: an answer never credits a slot's next owner with blocks of the one
//! before.

use super::{Arc, Orders, allocated, explore, found, live, settle, small, spawn, store};

/// Worker 1 is retired, its slot is swept and becomes worker 2's, while a reader looks up `asked`.
fn reuse(name: &str, asked: &'static [u64], possible: &'static [(u64, u32)]) {
    explore(name, Orders::Preemptions(3), move || {
        let index = small();
        let one = live(&index, 1, &[1, 2]);
        let reader = spawn({
            let index = Arc::clone(&index);
            move || {
                let answer = found(&index, asked);
                assert!(answer.is_empty() || answer == possible, "{answer:?}");
            }
        });
        index.retire(one);
        for _ in 0..3 {
            let _ = index.sweep(64);
        }
        let two = live(&index, 2, &[3]);
        assert_eq!(store(&index, one, &[4]), 0, "that slot is retired");
        assert_eq!(index.summary(two).blocks, 1);
        reader.join().unwrap();
        assert_eq!(found(&index, &[1]), []);
        assert_eq!(found(&index, &[3]), [(2, 1)]);
        settle(&index);
    });
}

/// A set stays whole until no reader can see its slot as live.
#[test]
fn a_retired_slot_is_found_with_all_it_had_or_not_at_all() {
    reuse("worker_slots::reuse_of_the_old", &[1, 2], &[(1, 2)]);
}

#[test]
fn a_reused_slot_is_not_credited_to_the_owner_before() {
    reuse("worker_slots::reuse_by_the_new", &[3], &[(2, 1)]);
}

/// A store in progress when its slot is retired leaves nothing to the slot's next owner.
#[test]
fn a_late_store_does_not_reach_the_next_owner() {
    explore("worker_slots::late_store", Orders::Preemptions(2), || {
        let index = small();
        let one = live(&index, 1, &[]);
        let writer = spawn({
            let index = Arc::clone(&index);
            move || {
                store(&index, one, &[1]);
            }
        });
        index.retire(one);
        for _ in 0..3 {
            let _ = index.sweep(64);
        }
        let two = live(&index, 2, &[2]);
        writer.join().unwrap();
        if two.slot == one.slot {
            assert_eq!(found(&index, &[1]), []);
            assert_eq!(
                index.memberships(),
                1,
                "only the second owner's blocks count"
            );
        }
        settle(&index);
        assert_eq!(found(&index, &[1]), []);
        assert_eq!(found(&index, &[2]), [(2, 1)]);
        assert_eq!(index.summary(two).blocks, 1);
    });
}

/// A worker's fresh slot replaces the old one in one step.
#[test]
fn a_replacement_shows_one_or_the_other() {
    explore("worker_slots::replace", Orders::Preemptions(3), || {
        let index = small();
        let old = live(&index, 1, &[1, 2]);
        let new = allocated(&index, 1);
        store(&index, new, &[1]);
        let reader = spawn({
            let index = Arc::clone(&index);
            move || {
                let answer = found(&index, &[1, 2]);
                assert!(answer == [(1, 2)] || answer == [(1, 1)], "{answer:?}");
            }
        });
        index.replace(old, new);
        for _ in 0..3 {
            let _ = index.sweep(64);
        }
        reader.join().unwrap();
        assert_eq!(found(&index, &[1, 2]), [(1, 1)]);
        settle(&index);
    });
}
