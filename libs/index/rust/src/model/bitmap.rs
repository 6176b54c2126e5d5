//! Sets of many: spilling into a bitmap, widening it, and using its memory again, under readers.

use super::{Arc, Orders, allocated, explore, found, live, remove, settle, small, spawn, store};
use crate::bitmap::{self, Arena};
use crate::brief;
use crate::cells::{Cells, Own};
use crate::counters::Counters;
use crate::grace::Grace;
use crate::line::{Line, Slot};
use crate::set::{Few, Holders};
use crate::types::Tier;
use crate::zeroed::Zeroed;

/// Whoever found the workers 1 to 3 finds them also while a fourth moves the set to a cell and a fifth to a bitmap, and while
/// they leave again.
#[test]
fn spilling_and_returning_show_every_holder() {
    explore("bitmap::spill", Orders::Preemptions(3), || {
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
        assert!(index.events().spills > 0 && index.events().unspills > 0);
        reader.join().unwrap();
        settle(&index);
    });
}

struct Stage {
    grace: Grace,
    cells: Arc<Cells>,
    line: Zeroed<Line>,
}

impl Stage {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            grace: Grace::new(),
            cells: Arc::default(),
            line: Zeroed::new(1),
        })
    }

    fn slot(&self, at: usize) -> Slot<'_> {
        self.line.as_slice()[0].slot(at, &self.cells)
    }

    /// Members of the set in slot `at`, read twice under one pin.
    fn read(&self, at: usize) -> [Vec<u16>; 2] {
        let _pin = self.grace.pin();
        let set = self.slot(at).set();
        [(); 2].map(|()| match set.holders() {
            Holders::Few(few) => few.ids().collect(),
            Holders::Many(bits) => bitmap::slots(bits).collect(),
        })
    }
}

/// One set moves to a wider bitmap; what it leaves behind becomes another's as soon as that is allowed.
#[test]
fn a_bitmap_is_not_used_again_while_it_may_be_read() {
    explore("bitmap::widen_and_reuse", Orders::Preemptions(3), || {
        let stage = Stage::new();
        let counters = Counters::default();
        let mut arena = Arena::default();
        let mut make = |width, members: &[u16]| {
            let members = members.iter().copied();
            arena.make(width, members, &stage.grace, &counters)
        };
        let narrow = make(1, &[1, 2]);
        let wide = make(2, &[1, 2, 65]);
        let mut own = Own::default();
        let cell = own.put(&stage.cells, narrow, &stage.grace);
        stage.slot(0).claim(7, brief::in_cell(cell));
        let reader = spawn({
            let stage = Arc::clone(&stage);
            move || {
                for members in stage.read(0) {
                    let was = [&[1, 2][..], &[1, 2, 65], &[2, 65]].contains(&&members[..]);
                    assert!(was, "{members:?}");
                }
            }
        });
        own.replace(&stage.cells, cell, wide);
        arena.retire(narrow, &stage.grace);
        if let Holders::Many(bits) = stage.slot(0).set().holders() {
            bitmap::assign(bits, 1, false);
        }
        let other = own.put(&stage.cells, wide, &stage.grace);
        for at in 9..11 {
            let word = arena.make(1, [at].into_iter(), &stage.grace, &counters);
            own.replace(&stage.cells, other, word);
        }
        stage.slot(1).claim(8, brief::in_cell(other));
        reader.join().unwrap();
        assert_eq!(stage.read(0)[0], [2, 65]);
        assert_eq!(stage.read(1)[0], [10]);
    });
}

/// A set of three leaves its cell for the slot; its cell becomes another's as soon as that is allowed.
#[test]
fn a_cell_is_not_used_again_while_it_may_be_read() {
    explore("bitmap::cell", Orders::Preemptions(3), || {
        let stage = Stage::new();
        let mut own = Own::default();
        let few = |ids: &[u16]| {
            ids.iter()
                .fold(Few::EMPTY, |few, &id| few.with(id).unwrap())
        };
        let cell = own.put(&stage.cells, few(&[1, 2, 3, 4]).word(), &stage.grace);
        stage.slot(0).claim(7, brief::in_cell(cell));
        let reader = spawn({
            let stage = Arc::clone(&stage);
            move || {
                for members in stage.read(0) {
                    let was = [&[1, 2, 3, 4][..], &[1, 2, 3]].contains(&&members[..]);
                    assert!(was, "{members:?}");
                }
            }
        });
        let three = brief::of_word(few(&[1, 2, 3]).word());
        stage.slot(0).publish(three.unwrap());
        own.retire(cell, &stage.grace);
        let mut cells = Vec::new();
        for id in 9..11 {
            cells.push(own.put(&stage.cells, few(&[5, 6, 7, id]).word(), &stage.grace));
        }
        stage.slot(1).claim(8, brief::in_cell(cells[1]));
        reader.join().unwrap();
        assert_eq!(stage.read(0)[0], [1, 2, 3]);
        assert_eq!(stage.read(1)[0], [5, 6, 7, 10]);
    });
}

/// The same in an index: the second of two crowds spills into what the first one left.
#[test]
fn crowds_that_take_turns_do_not_mix() {
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
        index.shared.grace.step();
        index.shared.grace.step();
        store(&index, members[4], &[2]);
        remove(&index, members[4], &[2]);
        reader.join().unwrap();
        assert_eq!(found(&index, &[1]), [(3, 1), (4, 1), (5, 1)]);
        assert_eq!(found(&index, &[2]), [(1, 1), (2, 1), (3, 1), (4, 1)]);
        settle(&index);
    });
}

/// The 65th worker slot needs a second word in the bitmaps of those it joins.
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
        assert_eq!(index.events().widenings, 1);
        reader.join().unwrap();
        assert!(index.holds(early[4], Tier::Device, 1) && index.holds(last, Tier::Device, 1));
        settle(&index);
    });
}
