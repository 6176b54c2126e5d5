//! The table under readers: keys beside their words, a generation after another, keys replaced in place.

use std::collections::BTreeSet;

use super::{
    Arc, IndexConfig, Orders, allocated, explore, found, live, remove, settle, small, spawn, store,
};
use crate::brief;
use crate::cells::Cells;
use crate::index::Index;
use crate::line::{Line, SLOTS_PER_LINE};
use crate::renewal::most_keys;
use crate::set::Few;
use crate::table::{Directory, Slots};
use crate::zeroed::Zeroed;

#[test]
fn a_reader_that_sees_a_word_has_its_key() {
    explore("table::claim", Orders::Every, || {
        let array = Arc::new(Zeroed::<Line>::new(1));
        let cells = Arc::<Cells>::default();
        let reader = spawn({
            let (array, cells) = (Arc::clone(&array), Arc::clone(&cells));
            move || {
                let slots = Slots::of(&array);
                // A word beside a key that is not there yet would be the word of key 0, which is a hash like any other.
                let set = slots.locate(0, 0, &cells);
                assert!(set.is_empty(), "nobody ever held that");
                let set = slots.locate(7, 0, &cells);
                assert!(set.is_empty() || set.word() == Few::one(1).word());
            }
        });
        array.as_slice()[0].slot(0, &cells).claim(7, brief::one(1));
        // No more: a search ends at a vacant slot, of which the one writer always keeps one.
        reader.join().unwrap();
        let set = Slots::of(&array).locate(7, 0, &cells);
        assert_eq!(set.word(), Few::one(1).word());
    });
}

/// A reader that looks for `stable`, twice, and must find it.
fn sees(index: &Arc<Index>, stable: u64) -> super::JoinHandle<()> {
    let index = Arc::clone(index);
    spawn(move || {
        for _ in 0..2 {
            assert_eq!(found(&index, &[stable]), [(1, 1)]);
        }
    })
}

#[test]
fn growth_loses_nothing_and_frees_nothing_too_soon() {
    explore("table::growth", Orders::Preemptions(3), || {
        let index = small();
        let one = live(&index, 1, &[1, 2, 3, 4]);
        let reader = sees(&index, 1);
        store(&index, one, &[5]);
        assert_eq!(index.events().growths, 1);
        let _ = index.sweep(4);
        let _ = index.sweep(4);
        reader.join().unwrap();
        assert_eq!(found(&index, &[1, 2, 3, 4, 5]), [(1, 5)]);
        settle(&index);
    });
}

/// Hashes whose search begins at the first of up to eight lines, each of another kind as `Line::was_passed` tells them apart.
fn of_the_first_line(count: usize) -> Vec<u64> {
    let directory = Directory::new(0, Arc::default());
    let mut kinds = BTreeSet::new();
    let starts_there = |&hash: &u64| {
        let scaled = directory.place(hash).scaled;
        scaled < 1 << 61 && kinds.insert(scaled >> 32 & 31)
    };
    (1..).filter(starts_there).take(count).collect()
}

/// A full line sends readers on to a block that is beyond it, also while another one goes past.
#[test]
fn what_went_past_a_line_is_not_forgotten_there() {
    explore("table::passed", Orders::Preemptions(3), || {
        let index = Arc::new(Index::new(IndexConfig {
            shard_bits: 0,
            initial_slots_per_shard: SLOTS_PER_LINE + 1,
        }));
        let hashes = of_the_first_line(SLOTS_PER_LINE + 3);
        let (line, beyond) = hashes.split_at(SLOTS_PER_LINE);
        let one = live(&index, 1, line);
        store(&index, one, &beyond[..1]);
        let reader = sees(&index, beyond[0]);
        store(&index, one, &beyond[1..2]);
        reader.join().unwrap();
        assert_eq!(index.events().growths, 0, "it was about one table");
        assert_eq!(found(&index, &beyond[..2]), [(1, 2)]);
        // Nothing says that this one ever went past.
        assert_eq!(found(&index, &beyond[2..]), []);
        settle(&index);
    });
}

/// The same of the lines of a new generation.
#[test]
fn what_a_copy_lets_past_a_line_is_found() {
    explore("table::passed_in_copy", Orders::Preemptions(2), || {
        let index = Arc::new(Index::new(IndexConfig {
            shard_bits: 0,
            initial_slots_per_shard: SLOTS_PER_LINE + 1,
        }));
        let hashes = of_the_first_line(most_keys(2 * SLOTS_PER_LINE) + 1);
        let (last, first) = hashes.split_last().unwrap();
        let one = live(&index, 1, first);
        let reader = sees(&index, hashes[SLOTS_PER_LINE]);
        store(&index, one, &[*last]);
        assert_eq!(index.events().growths, 1);
        reader.join().unwrap();
        assert_eq!(found(&index, &hashes), [(1, hashes.len() as u32)]);
        settle(&index);
    });
}

#[test]
fn a_block_that_is_stored_is_found_whole_or_not_at_all() {
    explore("table::first_block", Orders::Every, || {
        let index = small();
        let one = live(&index, 1, &[]);
        let reader = spawn({
            let index = Arc::clone(&index);
            move || {
                let answer = found(&index, &[1]);
                assert!(answer.is_empty() || answer == [(1, 1)], "{answer:?}");
            }
        });
        store(&index, one, &[1]);
        reader.join().unwrap();
        assert_eq!(found(&index, &[1]), [(1, 1)]);
    });
}

#[test]
fn giving_up_a_table_frees_nothing_too_soon() {
    explore("table::given_up", Orders::Preemptions(3), || {
        let index = small();
        let one = live(&index, 1, &[1, 2]);
        let reader = spawn({
            let index = Arc::clone(&index);
            move || {
                let answer = found(&index, &[1]);
                assert!(answer.is_empty() || answer == [(1, 1)], "{answer:?}");
            }
        });
        remove(&index, one, &[2, 1]);
        let _ = index.sweep(4);
        let _ = index.sweep(4);
        reader.join().unwrap();
        assert_eq!(index.memory_bytes().tables, 0, "nothing is held");
        settle(&index);
    });
}

/// Keys 2 and 3 each take the place of the one before, once nobody can see that one there.
#[test]
fn a_key_replaced_in_place_brings_no_holder_of_the_old_one() {
    explore("table::replaced_key", Orders::Preemptions(3), || {
        let index = small();
        live(&index, 1, &[1]);
        let two = live(&index, 2, &[2]);
        let three = allocated(&index, 3);
        index.publish(three);
        let reader = spawn({
            let index = Arc::clone(&index);
            move || {
                let answers = [found(&index, &[2]), found(&index, &[3])];
                assert!(
                    answers[0].is_empty() || answers[0] == [(2, 1)],
                    "{answers:?}"
                );
                assert!(
                    answers[1].is_empty() || answers[1] == [(3, 1)],
                    "{answers:?}"
                );
            }
        });
        remove(&index, two, &[2]);
        for _ in 0..3 {
            index.shared.grace.step();
        }
        store(&index, three, &[3]);
        reader.join().unwrap();
        assert_eq!(found(&index, &[1]), [(1, 1)]);
        assert_eq!(found(&index, &[2]), []);
        assert_eq!(found(&index, &[3]), [(3, 1)]);
        settle(&index);
    });
}
