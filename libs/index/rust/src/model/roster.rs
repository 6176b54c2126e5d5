//! The lives of worker slots: an answer never credits a slot's next owner with what the one before held.

use super::{Arc, Orders, allocated, explore, found, live, settle, small, spawn, store};

/// Worker 1 dies, its slot is swept and becomes worker 2's, while somebody looks for what `asked` says.
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
        assert_eq!(store(&index, one, &[4]), 0, "that life is over");
        assert_eq!(index.summary(two).blocks, 1);
        reader.join().unwrap();
        assert_eq!(found(&index, &[1]), []);
        assert_eq!(found(&index, &[3]), [(2, 1)]);
        settle(&index);
    });
}

/// A set stays whole until nobody can take its slot for alive.
#[test]
fn a_dying_slot_is_found_with_all_it_had_or_not_at_all() {
    reuse("roster::reuse_of_the_old", &[1, 2], &[(1, 2)]);
}

#[test]
fn a_slot_used_again_is_not_credited_to_the_one_before() {
    reuse("roster::reuse_by_the_new", &[3], &[(2, 1)]);
}

/// A store that was under way when its slot died leaves nothing to the slot's next owner.
#[test]
fn a_store_that_comes_late_reaches_no_later_life() {
    explore("roster::late_store", Orders::Preemptions(2), || {
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
                "the sum is of the second life alone"
            );
        }
        settle(&index);
        assert_eq!(found(&index, &[1]), []);
        assert_eq!(found(&index, &[2]), [(2, 1)]);
        assert_eq!(index.summary(two).blocks, 1);
    });
}

/// A worker's fresh slot takes the place of the old one in one step.
#[test]
fn a_replacement_shows_one_or_the_other() {
    explore("roster::replace", Orders::Preemptions(3), || {
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
