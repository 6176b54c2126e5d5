//! Readers against writers, seeded: what a look-up sees must have been possible at some moment.
//!
//! Several kinds of workers share the table, and each kind has a promise that readers can check without knowing
//! how far the writers are:
//!
//! - *stable* workers hold their prompts throughout: always found, at full depth;
//! - *growing and shrinking* ones hold a head of one prompt: found no deeper than it was ever stored;
//! - *replaced* ones swap a full set for another full set: always found exactly once;
//! - *passing* ones live, store prompts of their own lap, retire: never credited with another lap's;
//! - *crowds* join and leave shared prompts, so that bitmaps spill, widen, shrink and are used again;
//!   those among them who stay are always found.
//!
//! Tiny tables and two shards make every kind of event happen under the readers' eyes, and the
//! test asserts that they did. `KVATLAS_STRESS_SEED` and `KVATLAS_STRESS_LAPS` make other and longer runs of it; the seed
//! is printed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use kvatlas_hashing::sequence_step;
use kvatlas_index::{FindOptions, Index, IndexConfig, Matches, Query, SlotId, Tier, WorkerKey};

const SEED: u64 = 0x5eed_0001;
/// Miri takes some thousand times as long for each.
const LAPS: u64 = if cfg!(miri) { 3 } else { 100 };
const READERS: u64 = if cfg!(miri) { 1 } else { 3 };
const BLOCKS: usize = 90;
const CROWD: u64 = 80;

const STABLE: u64 = 1_000;
const GROWING: u64 = 2_000;
const REPLACED: u64 = 3_000;
const PASSING: u64 = 4_000;
const CROWDED: u64 = 5_000;
const TOGGLED: u64 = 6_000;
const TOGGLED_BLOCKS: usize = 12;

/// What the environment says, in decimal, or else `usual`.
fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |value| value.parse().expect("a decimal number"))
}

struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// The sequence hashes of the prompt that stands for `who`.
fn prompt(who: u64) -> Vec<u64> {
    let mut hashes = vec![who.wrapping_mul(0x2545_f491_4f6c_dd1d)];
    for block in 1..BLOCKS as u64 {
        hashes.push(sequence_step(hashes[hashes.len() - 1], who << 16 | block));
    }
    hashes
}

fn slot(index: &Index, worker_id: u64) -> SlotId {
    index
        .allocate(WorkerKey {
            worker_id,
            dp_rank: 0,
        })
        .unwrap()
}

fn live(index: &Index, worker_id: u64, hashes: &[u64]) -> SlotId {
    let slot = slot(index, worker_id);
    assert_eq!(index.store(slot, Tier::Device, hashes), hashes.len());
    index.publish(slot);
    slot
}

struct Reader<'a> {
    index: &'a Index,
    out: Matches,
}

impl Reader<'_> {
    fn ask(&mut self, hashes: &[u64], exact: bool) -> Vec<(u64, usize)> {
        let options = FindOptions {
            exact,
            ..FindOptions::default()
        };
        self.index
            .find(Query::SequenceHashes(hashes), &options, &mut self.out);
        let Matches {
            workers, depths, ..
        } = &self.out;
        let found: Vec<_> = workers
            .iter()
            .zip(depths)
            .map(|(w, &d)| (w.worker_id, d as usize))
            .collect();
        let in_order = |pair: &[(u64, usize)]| {
            let ((a, deep), (b, shallow)) = (pair[0], pair[1]);
            deep > shallow || deep == shallow && a < b
        };
        assert!(
            found.windows(2).all(in_order),
            "out of order, or twice: {found:?}"
        );
        found
    }

    /// One random question, and whether its answer was possible.
    fn check(&mut self, random: &mut Random, lap: &AtomicU64, highest: &AtomicU64) {
        let exact = random.next(2) == 0;
        match random.next(8) {
            0 => {
                let who = STABLE + random.next(8);
                assert_eq!(self.ask(&prompt(who), exact), vec![(who, BLOCKS)]);
            }
            1 => {
                let found = self.ask(&prompt(GROWING), exact);
                let ever = highest.load(Ordering::SeqCst) as usize;
                let possible = |&(who, depth): &(u64, usize)| who == GROWING && depth <= ever;
                assert!(
                    found.len() <= 1 && found.iter().all(possible),
                    "{found:?}, at most {ever}"
                );
            }
            2 | 6 => assert_eq!(self.ask(&prompt(REPLACED), exact), vec![(REPLACED, BLOCKS)]),
            3 => {
                let now = lap.load(Ordering::SeqCst);
                let lap = now.saturating_sub(2) + random.next(4);
                for (who, _) in self.ask(&prompt(PASSING + lap), exact) {
                    assert_eq!(
                        who,
                        PASSING + lap,
                        "a slot was credited with an earlier owner's blocks"
                    );
                }
            }
            4 => {
                let found = self.ask(&prompt(CROWDED), exact);
                let stable = found.iter().filter(|&&(who, _)| who == CROWDED);
                assert_eq!(stable.copied().collect::<Vec<_>>(), vec![(CROWDED, BLOCKS)]);
                let member = |&(who, _): &(u64, usize)| (CROWDED..=CROWDED + CROWD).contains(&who);
                assert!(found.iter().all(member), "{found:?}");
            }
            5 => {
                let first = TOGGLED + 10 * random.next(2);
                let found = self.ask(&prompt(first), false);
                let staying: Vec<_> = found
                    .iter()
                    .copied()
                    .filter(|&(who, _)| who < first + 3)
                    .collect();
                assert_eq!(staying, [0, 1, 2].map(|n| (first + n, TOGGLED_BLOCKS)));
                let possible = |&(who, depth): &(u64, usize)| {
                    (first..first + 6).contains(&who) && depth <= TOGGLED_BLOCKS
                };
                assert!(found.iter().all(possible), "{found:?}");
            }
            _ => assert!(
                self.ask(&prompt(1 << 40 | random.next(1 << 20)), exact)
                    .is_empty()
            ),
        }
    }
}

/// Stores deeper and deeper heads and takes them away again, tail first.
fn grow_and_shrink(index: &Index, highest: &AtomicU64, laps: u64) {
    let hashes = prompt(GROWING);
    let slot = live(index, GROWING, &[]);
    for round in 0..laps as usize * 4 {
        let depth = 1 + round * 7 % BLOCKS;
        highest.fetch_max(depth as u64, Ordering::SeqCst);
        index.store(slot, Tier::Device, &hashes[..depth]);
        let tail: Vec<u64> = hashes[depth / 3..depth].iter().rev().copied().collect();
        index.remove(slot, Tier::Device, &tail);
    }
}

/// Loads whole new sets into fresh slots and swaps them in.
fn replace_again_and_again(index: &Index, mut current: SlotId, laps: u64) {
    let hashes = prompt(REPLACED);
    for _ in 0..laps * 10 {
        let next = slot(index, REPLACED);
        index.store(next, Tier::Device, &hashes);
        index.replace(current, next);
        current = next;
        let _ = index.sweep(700);
    }
}

/// Workers that come, fill the table with prompts of their lap, and go; the sweep hands on their slots.
fn pass_by(index: &Index, lap: &AtomicU64, laps: u64) {
    for now in 0..laps {
        lap.store(now, Ordering::SeqCst);
        let passing = live(index, PASSING + now, &prompt(PASSING + now));
        for filler in 0..6 {
            index.store(passing, Tier::Host, &prompt(1 << 30 | now << 8 | filler));
        }
        index.suspend(passing);
        index.publish(passing);
        index.retire(passing);
        // Until slots were given back, so that later laps use them again; readers decide when.
        loop {
            let done = index.sweep(1 << 12);
            if done.freed > 0 || !done.more {
                break;
            }
            thread::yield_now();
        }
    }
}

/// The crowd comes, each member after the one before it has joined: the bitmaps of the first few are
/// there, one word wide, before the slots of the last need more.
fn assemble(index: &Index) -> Vec<SlotId> {
    let head = &prompt(CROWDED)[..3];
    let join = |n| {
        let member = live(index, CROWDED + n, &[]);
        index.store(member, Tier::Device, head);
        member
    };
    (1..=CROWD).map(join).collect()
}

/// It joins more of the prompt and leaves it, in a new order of depths each time.
fn come_and_go(index: &Index, members: &[SlotId], random: &mut Random, laps: u64) {
    let hashes = prompt(CROWDED);
    let tail_first: Vec<u64> = hashes.iter().rev().copied().collect();
    for _ in 0..laps.div_ceil(6) {
        for &member in members {
            index.store(
                member,
                Tier::Device,
                &hashes[..=random.next(BLOCKS as u64 - 1) as usize],
            );
        }
        for &member in members {
            index.remove(member, Tier::Device, &tail_first);
        }
    }
}

/// Two prompts with three holders each: three more join the one and leave it, then the other. So the
/// memory of one prompt's bitmaps becomes the other's, whose holders are all different.
fn toggle(index: &Index) {
    let side = |side: u64| -> Vec<SlotId> {
        (3..6)
            .map(|n| live(index, TOGGLED + 10 * side + n, &[]))
            .collect()
    };
    let members = [side(0), side(1)];
    let prompts = [0, 1].map(|side| prompt(TOGGLED + 10 * side)[..TOGGLED_BLOCKS].to_vec());
    for round in 0..100_000 {
        if round > 20_000 && index.events().bitmap_reuses > 200 {
            return;
        }
        for (members, hashes) in members.iter().zip(&prompts) {
            for &member in members {
                index.store(member, Tier::Device, hashes);
            }
            for &member in members {
                index.remove(member, Tier::Device, hashes);
            }
        }
    }
}

#[test]
fn what_readers_see_was_possible() {
    let (seed, laps) = (
        setting("KVATLAS_STRESS_SEED", SEED).max(1),
        setting("KVATLAS_STRESS_LAPS", LAPS),
    );
    println!("stress: seed {seed}, {laps} laps");
    let index = Index::new(IndexConfig {
        shard_bits: 1,
        initial_slots_per_shard: 1,
    });
    let (lap, highest) = (AtomicU64::new(0), AtomicU64::new(0));
    let asked = AtomicU64::new(0);
    let writing = AtomicBool::new(true);
    for who in STABLE..STABLE + 8 {
        live(&index, who, &prompt(who));
    }
    live(&index, CROWDED, &prompt(CROWDED));
    for first in [TOGGLED, TOGGLED + 10] {
        for n in 0..3 {
            live(&index, first + n, &prompt(first)[..TOGGLED_BLOCKS]);
        }
    }
    let replaced = live(&index, REPLACED, &prompt(REPLACED));

    thread::scope(|scope| {
        let readers = (0..READERS).map(|reader| {
            let (index, lap, highest, writing, asked) = (&index, &lap, &highest, &writing, &asked);
            scope.spawn(move || {
                let mut random = Random(seed + reader);
                let mut reader = Reader {
                    index,
                    out: Matches::default(),
                };
                while writing.load(Ordering::SeqCst) {
                    reader.check(&mut random, lap, highest);
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let readers: Vec<_> = readers.collect();
        let shared = &index;
        let members = assemble(shared);
        let writers = [
            scope.spawn(|| grow_and_shrink(&index, &highest, laps)),
            scope.spawn(|| replace_again_and_again(&index, replaced, laps)),
            scope.spawn(|| pass_by(&index, &lap, laps)),
            scope.spawn(|| toggle(&index)),
            scope.spawn(move || come_and_go(shared, &members, &mut Random(seed), laps)),
        ];
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        // Readers are let go before a writer's panic is passed on, or they would never end.
        writing.store(false, Ordering::SeqCst);
        assert!(ended.iter().all(Result::is_ok), "a writer failed");
        // The scope would wait for them too, but by means that the thread sanitizer does not see.
        for reader in readers {
            assert!(reader.join().is_ok(), "a reader failed");
        }
    });

    while index.sweep(1 << 14).more {}
    assert_eq!(
        index.memory_bytes().retired,
        0,
        "with no reader left, nothing is held back"
    );
    let events = index.events();
    for (reached, what) in [
        (asked.into_inner(), "look-ups"),
        (events.growths + events.cleanups, "new generations"),
        (events.shrinks, "shrinking"),
        (events.spills, "spills"),
        (events.unspills, "returns from a bitmap"),
        (events.widenings, "widenings"),
        (events.bitmap_reuses, "reuses of a bitmap"),
        (events.slot_reuses, "reuses of a worker slot"),
        (events.swept_memberships, "swept memberships"),
    ] {
        assert!(reached > 0, "the run never reached: {what} ({events:?})");
    }
}
