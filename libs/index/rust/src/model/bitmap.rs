//! Larger sets under readers: a bitmap made and widened, and its memory reused.

use super::{Arc, Orders, allocated, explore, found, live, remove, settle, small, spawn, store};
use crate::counters::Counters;
use crate::memory::reclamation::Reclaimer;
use crate::memory::zeroed_array::ZeroedArray;
use crate::table::bitmap;
use crate::table::bitmap_arena::BitmapArena;
use crate::table::compact_set::CompactSet;
use crate::table::entry::Entry;
use crate::table::line::Line;
use crate::table::set_word::{Holders, InlineSet};
use crate::table::spilled_sets::{SpilledSetArena, SpilledSets};
use crate::types::{Tier, WorkerSlot};

/// A reader finds the workers 1 to 3 also while a fourth makes the set spill and a fifth makes it a bitmap, and while they
/// leave again.
#[test]
fn a_set_that_changes_form_shows_every_holder() {
    explore("bitmap::forms", Orders::Preemptions(3), || {
        let index = small();
        for id in 1..=3 {
            live(&index, id, &[1]);
        }
        let four = live(&index, 4, &[]);
        let five = live(&index, 5, &[]);
        let reader = spawn({
            let index = Arc::clone(&index);
            move || {
                let mut answer = found(&index, &[1]);
                answer.retain(|&(id, _)| id < 4);
                assert_eq!(answer, [(1, 1), (2, 1), (3, 1)]);
            }
        });
        store(&index, four, &[1]);
        store(&index, five, &[1]);
        remove(&index, four, &[1]);
        remove(&index, five, &[1]);
        assert!(index.events().bitmaps_made > 0 && index.events().bitmaps_inlined > 0);
        reader.join().unwrap();
        settle(&index);
    });
}

struct Stage {
    reclaimer: Reclaimer,
    spilled: Arc<SpilledSets>,
    line: ZeroedArray<Line>,
}

impl Stage {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            reclaimer: Reclaimer::new(),
            spilled: Arc::default(),
            line: ZeroedArray::new(1),
        })
    }

    fn entry(&self, at: usize) -> Entry<'_> {
        self.line.as_slice()[0].entry(at, &self.spilled)
    }

    /// Members of the set of entry `at`, read twice under one pin.
    fn read(&self, at: usize) -> [Vec<u16>; 2] {
        let _pin = self.reclaimer.pin();
        let set = self.entry(at).set();
        [(); 2].map(|()| match set.holders() {
            Holders::Inline(inline) => inline.slots().map(WorkerSlot::number).collect(),
            Holders::Bitmap(words) => bitmap::slots(words).map(WorkerSlot::number).collect(),
        })
    }
}

/// One set moves to a wider bitmap; the memory that it leaves becomes another's as soon as that is allowed.
#[test]
fn a_bitmap_is_not_reused_while_it_may_be_read() {
    explore("bitmap::widen_and_reuse", Orders::Preemptions(3), || {
        let stage = Stage::new();
        let counters = Counters::default();
        let mut arena = BitmapArena::default();
        let mut make = |width, members: &[u16]| {
            let members = members.iter().copied().map(WorkerSlot::new);
            arena.make(width, members, &stage.reclaimer, &counters)
        };
        let narrow = make(1, &[1, 2]);
        let wide = make(2, &[1, 2, 65]);
        let mut spilled = SpilledSetArena::default();
        let number = spilled.add(&stage.spilled, narrow, &stage.reclaimer);
        stage.entry(0).claim(7, CompactSet::spilled(number));
        let reader = spawn({
            let stage = Arc::clone(&stage);
            move || {
                for members in stage.read(0) {
                    let was = [&[1, 2][..], &[1, 2, 65], &[2, 65]].contains(&&members[..]);
                    assert!(was, "{members:?}");
                }
            }
        });
        spilled.replace(&stage.spilled, number, wide);
        arena.retire(narrow, &stage.reclaimer);
        if let Holders::Bitmap(words) = stage.entry(0).set().holders() {
            bitmap::assign(words, WorkerSlot::new(1), false);
        }
        let other = spilled.add(&stage.spilled, wide, &stage.reclaimer);
        for at in 9..11 {
            let members = [WorkerSlot::new(at)].into_iter();
            let word = arena.make(1, members, &stage.reclaimer, &counters);
            spilled.replace(&stage.spilled, other, word);
        }
        stage.entry(1).claim(8, CompactSet::spilled(other));
        reader.join().unwrap();
        assert_eq!(stage.read(0)[0], [2, 65]);
        assert_eq!(stage.read(1)[0], [10]);
    });
}

/// A spilled set becomes compact; its number becomes another's as soon as that is allowed.
#[test]
fn a_spilled_set_s_number_is_not_reused_while_it_may_be_read() {
    explore("bitmap::spilled", Orders::Preemptions(3), || {
        let stage = Stage::new();
        let mut spilled = SpilledSetArena::default();
        let word = |numbers: &[u16]| {
            InlineSet::collected(numbers.iter().copied().map(WorkerSlot::new)).word()
        };
        let number = spilled.add(&stage.spilled, word(&[1, 2, 3, 4]), &stage.reclaimer);
        stage.entry(0).claim(7, CompactSet::spilled(number));
        let reader = spawn({
            let stage = Arc::clone(&stage);
            move || {
                for members in stage.read(0) {
                    let was = [&[1, 2, 3, 4][..], &[1, 2, 3]].contains(&&members[..]);
                    assert!(was, "{members:?}");
                }
            }
        });
        let three = CompactSet::of_word(word(&[1, 2, 3]));
        stage.entry(0).store_set(three.unwrap());
        spilled.retire(number, &stage.reclaimer);
        let mut numbers = Vec::new();
        for id in 9..11 {
            numbers.push(spilled.add(&stage.spilled, word(&[5, 6, 7, id]), &stage.reclaimer));
        }
        stage.entry(1).claim(8, CompactSet::spilled(numbers[1]));
        reader.join().unwrap();
        assert_eq!(stage.read(0)[0], [1, 2, 3]);
        assert_eq!(stage.read(1)[0], [5, 6, 7, 10]);
    });
}

/// The same in an index: the second of two large sets takes the memory that the first one left.
#[test]
fn large_sets_that_take_turns_do_not_mix() {
    explore("bitmap::turns", Orders::Preemptions(3), || {
        let index = small();
        let members: Vec<_> = (1..=5).map(|id| allocated(&index, id)).collect();
        for &member in &members {
            index.publish(member);
            store(&index, member, &[1]);
        }
        for &member in &members[..4] {
            store(&index, member, &[2]);
        }
        let reader = spawn({
            let index = Arc::clone(&index);
            move || {
                let one = found(&index, &[1]);
                assert!(one.iter().any(|&(id, _)| id == 5), "{one:?}");
            }
        });
        for &member in &members[..2] {
            remove(&index, member, &[1]);
        }
        index.shared.reclaimer.try_advance();
        index.shared.reclaimer.try_advance();
        store(&index, members[4], &[2]);
        remove(&index, members[4], &[2]);
        reader.join().unwrap();
        assert_eq!(found(&index, &[1]), [(3, 1), (4, 1), (5, 1)]);
        assert_eq!(found(&index, &[2]), [(1, 1), (2, 1), (3, 1), (4, 1)]);
        settle(&index);
    });
}

/// The 65th worker slot needs a second word in the bitmaps to which it is added.
#[test]
fn widening_shows_every_holder() {
    explore("bitmap::widen", Orders::Preemptions(2), || {
        let index = small();
        let early: Vec<_> = (0..5).map(|id| live(&index, id, &[1])).collect();
        let late: Vec<_> = (5..65).map(|id| allocated(&index, id)).collect();
        let last = late[late.len() - 1];
        index.publish(last);
        let reader = spawn({
            let index = Arc::clone(&index);
            move || {
                let answer = found(&index, &[1]);
                let ids: Vec<u64> = answer.iter().map(|&(id, _)| id).collect();
                let was = ids == [0, 1, 2, 3, 4] || ids == [0, 1, 2, 3, 4, 64];
                assert!(was, "{answer:?}");
            }
        });
        store(&index, last, &[1]);
        assert_eq!(index.events().bitmaps_widened, 1);
        reader.join().unwrap();
        assert!(index.holds(early[4], Tier::Device, 1) && index.holds(last, Tier::Device, 1));
        settle(&index);
    });
}
