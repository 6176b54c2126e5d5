//! The table under readers: keys beside their sets, one array after another, keys replaced in place.

use std::collections::BTreeSet;

use super::{
    Arc, IndexConfig, Orders, allocated, explore, found, live, remove, settle, small, spawn, store,
};
use crate::index::Index;
use crate::memory::zeroed_array::ZeroedArray;
use crate::table::capacity::max_keys;
use crate::table::compact_set::CompactSet;
use crate::table::directory::Directory;
use crate::table::line::{ENTRIES_PER_LINE, Line};
use crate::table::lines::Lines;
use crate::table::probe_filter::bit_number;
use crate::table::set_word::InlineSet;
use crate::table::spilled_sets::SpilledSets;
use crate::types::WorkerSlot;

#[test]
fn a_reader_that_sees_a_set_has_its_key() {
    explore("table::claim", Orders::Every, || {
        let array = Arc::new(ZeroedArray::<Line>::new(1));
        let one = WorkerSlot::new(1);
        let spilled = Arc::<SpilledSets>::default();
        let reader = spawn({
            let (array, spilled) = (Arc::clone(&array), Arc::clone(&spilled));
            move || {
                let lines = Lines::of(&array);
                // A set beside a key that is not there yet would be the set of key 0, which is a hash like any other.
                let set = lines.find(0, 0, &spilled);
                assert!(set.is_empty(), "nobody ever held that");
                let set = lines.find(7, 0, &spilled);
                assert!(set.is_empty() || set.word() == InlineSet::one(one).word());
            }
        });
        array.as_slice()[0]
            .entry(0, &spilled)
            .claim(7, CompactSet::one(one));
        // No more: a search ends at a vacant entry, of which the one writer always keeps one.
        reader.join().unwrap();
        let set = Lines::of(&array).find(7, 0, &spilled);
        assert_eq!(set.word(), InlineSet::one(one).word());
    });
}

/// A reader that looks up `stable`, twice, and must find it.
fn reader_of(index: &Arc<Index>, stable: u64) -> super::JoinHandle<()> {
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
        let reader = reader_of(&index, 1);
        store(&index, one, &[5]);
        assert_eq!(index.events().growths, 1);
        let _ = index.sweep(4);
        let _ = index.sweep(4);
        reader.join().unwrap();
        assert_eq!(found(&index, &[1, 2, 3, 4, 5]), [(1, 5)]);
        settle(&index);
    });
}

/// Hashes whose home is the first of up to eight lines, each with another bit in the probe filter.
fn hashes_of_first_line(count: usize) -> Vec<u64> {
    let directory = Directory::new(0, Arc::default());
    let mut bits = BTreeSet::new();
    let starts_there = |&hash: &u64| {
        let fraction = directory.home_of(hash).fraction;
        fraction < 1 << 61 && bits.insert(bit_number(fraction))
    };
    (1..).filter(starts_there).take(count).collect()
}

/// A full line sends readers on to a block that is beyond it, also while another key goes past.
#[test]
fn a_line_does_not_forget_the_keys_that_went_past() {
    explore("table::probe_filter", Orders::Preemptions(3), || {
        let index = Arc::new(Index::new(IndexConfig {
            shard_bits: 0,
            initial_entries_per_shard: ENTRIES_PER_LINE + 1,
        }));
        let hashes = hashes_of_first_line(ENTRIES_PER_LINE + 3);
        let (line, beyond) = hashes.split_at(ENTRIES_PER_LINE);
        let one = live(&index, 1, line);
        store(&index, one, &beyond[..1]);
        let reader = reader_of(&index, beyond[0]);
        store(&index, one, &beyond[1..2]);
        reader.join().unwrap();
        assert_eq!(index.events().growths, 0, "it was one array throughout");
        assert_eq!(found(&index, &beyond[..2]), [(1, 2)]);
        // No filter has the bit of this one.
        assert_eq!(found(&index, &beyond[2..]), []);
        settle(&index);
    });
}

/// The same of the lines of a new array.
#[test]
fn keys_that_go_past_a_line_in_a_copy_are_found() {
    explore("table::copied_filter", Orders::Preemptions(2), || {
        let index = Arc::new(Index::new(IndexConfig {
            shard_bits: 0,
            initial_entries_per_shard: ENTRIES_PER_LINE + 1,
        }));
        let hashes = hashes_of_first_line(max_keys(2 * ENTRIES_PER_LINE) + 1);
        let (last, first) = hashes.split_last().unwrap();
        let one = live(&index, 1, first);
        let reader = reader_of(&index, hashes[ENTRIES_PER_LINE]);
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

/// Keys 2 and 3 each replace the one before, once no reader can see that one there.
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
            index.shared.reclaimer.try_advance();
        }
        store(&index, three, &[3]);
        reader.join().unwrap();
        assert_eq!(found(&index, &[1]), [(1, 1)]);
        assert_eq!(found(&index, &[2]), []);
        assert_eq!(found(&index, &[3]), [(3, 1)]);
        settle(&index);
    });
}
