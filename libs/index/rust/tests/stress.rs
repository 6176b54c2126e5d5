//! Readers against writers, seeded: each answer must have been possible at some moment of the look-up.
//!
//! Several kinds of workers share the table. The answers for each kind have bounds that readers can check without knowing
//! what the writers do at the moment:
//!
//! - *stable* workers hold their prompts throughout: always found, at full depth;
//! - *growing and shrinking* ones hold a prefix of one prompt: found no deeper than it was ever stored;
//! - the *tide* notes how far it rises or falls: found between these two depths;
//! - *tiered* ones are cleared of one tier after another: found at the depth that they hold on the others; *cleared* ones
//!   are cleared of all they have: found no deeper than that;
//! - *replaced* ones swap a full set for another full set: always found exactly once;
//! - *passing* ones join, store prompts of their own lap and of the ladder, are retired, and swept: found at full depth
//!   while they are published, not at all before and after, and never with another lap's blocks;
//! - *crowds* store and remove shared prompts, so that bitmaps are made, widened, given up and reused; members that stay
//!   are always found;
//! - on the *ladder* several stay at each of some depths, so that limits fall among equals.
//!
//! Readers ask by worker and by slot, by chunk and by sequence hashes, one by one and many together, with any of a limit, a
//! minimal depth, and a filter of workers or of slots; `stress/bounds.rs` has the bounds that remain then.
//!
//! With tiny tables and two shards every kind of event happens while readers look up, and the test asserts that it did.
//! `KVATLAS_STRESS_SEED` and `KVATLAS_STRESS_LAPS` make other and longer runs. The seed is printed to standard error: the
//! harness writes to standard output meanwhile, which the thread sanitizer, not seeing the standard library's locks, takes
//! for a race.

#[path = "stress/bounds.rs"]
mod bounds;
#[path = "stress/random.rs"]
mod random;
#[path = "stress/reader.rs"]
mod reader;
#[path = "stress/world.rs"]
mod world;
#[path = "stress/writers.rs"]
mod writers;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use random::Random;
use reader::{Asks, Reader};
use world::World;

const SEED: u64 = 0x5eed_0001;
/// A lap takes some thousand times as long under Miri.
const LAPS: u64 = if cfg!(miri) { 3 } else { 100 };
const READERS: u64 = if cfg!(miri) { 1 } else { 3 };
/// Calls that a reader makes at least, also if writers are done first.
const CALLS: u64 = if cfg!(miri) { 60 } else { 2_000 };

/// A setting from the environment, in decimal; else `usual`.
fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |value| value.parse().expect("a decimal number"))
}

#[test]
fn every_answer_was_possible() {
    let (seed, laps) = (
        setting("KVATLAS_STRESS_SEED", SEED),
        setting("KVATLAS_STRESS_LAPS", LAPS),
    );
    eprintln!("stress: seed {seed}, {laps} laps");
    let world = World::new(laps);
    let writing = AtomicBool::new(true);
    let asked = thread::scope(|scope| {
        let (world, writing) = (&world, &writing);
        let readers = (0..READERS).map(|number| {
            scope.spawn(move || {
                let mut reader = Reader::new(world, seed.wrapping_add(number));
                let mut calls = 0;
                while writing.load(Ordering::SeqCst) || calls < CALLS {
                    reader.ask();
                    calls += 1;
                }
                reader.asked
            })
        });
        let readers: Vec<_> = readers.collect();
        let members = writers::assemble(world);
        let writers = [
            scope.spawn(move || writers::grow_and_shrink(world, laps)),
            scope.spawn(move || writers::rise_and_fall(world, &mut Random::new(seed), laps)),
            scope.spawn(move || writers::clear_again_and_again(world, laps)),
            scope.spawn(move || writers::replace_again_and_again(world, laps)),
            scope.spawn(move || writers::pass_by(world, laps)),
            scope.spawn(move || writers::toggle(world)),
            scope.spawn(move || {
                writers::come_and_go(world, &members, &mut Random::new(seed), laps);
            }),
        ];
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        // Readers are stopped before a writer's panic is passed on, or they would never end.
        writing.store(false, Ordering::SeqCst);
        assert!(ended.iter().all(Result::is_ok), "a writer failed");
        // The scope would wait for them too, but in a way that the thread sanitizer does not see.
        let asked = readers.into_iter().map(|reader| reader.join());
        asked.fold(Asks::default(), |sum, asked| {
            sum.with(asked.expect("a reader failed"))
        })
    });
    eprintln!("stress: {asked:?}");
    settled(&world);
    reached(&world, &asked);
}

/// With no reader left, no retired memory waits.
fn settled(world: &World) {
    while world.index.sweep(1 << 14).more {}
    assert_eq!(world.index.memory_bytes().retired, 0);
}

/// Every kind of look-up and event happened.
fn reached(world: &World, asked: &Asks) {
    let events = world.index.events();
    for (reached, what) in [
        (asked.all, "look-ups"),
        (asked.together, "look-ups together"),
        (asked.by_slot, "look-ups by slot"),
        (asked.filtered, "filtered look-ups"),
        (asked.with_min_depth, "look-ups with a minimal depth"),
        (asked.cut_by_limit, "answers cut by the limit"),
        (events.growths + events.cleanups, "resized tables"),
        (events.shrinks, "shrinking"),
        (events.bitmaps_made, "bitmaps made"),
        (events.bitmaps_inlined, "returns from a bitmap"),
        (events.bitmaps_widened, "bitmaps widened"),
        (events.bitmap_reuses, "reuses of a bitmap"),
        (events.slot_reuses, "reuses of a worker slot"),
        (events.swept_memberships, "swept memberships"),
    ] {
        assert!(reached > 0, "the run never reached: {what} ({events:?})");
    }
}
