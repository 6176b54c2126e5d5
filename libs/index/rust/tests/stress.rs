//! Readers against writers, seeded: what a look-up sees must have been possible at some moment.
//!
//! Several kinds of workers share the table, and each kind has a promise that readers can check without knowing
//! what the writers do at the moment:
//!
//! - *stable* workers hold their prompts throughout: always found, at full depth;
//! - *growing and shrinking* ones hold a head of one prompt: found no deeper than it was ever stored;
//! - the *tide* tells how far it rises or falls: found between the two depths that it moves between;
//! - *tiered* ones are cleared of one tier after another: found for what they hold on the others; *cleared* ones
//!   of all they have: found no deeper than that;
//! - *replaced* ones swap a full set for another full set: always found exactly once;
//! - *passing* ones live, store prompts of their own lap and of the ladder, die, and are swept: found with all of it from
//!   when they were published to when they were retired, not at all before and after, and never with another lap's;
//! - *crowds* join and leave shared prompts, so that bitmaps spill, widen, shrink and are used again;
//!   those among them who stay are always found;
//! - on the *ladder* several stay at each of some depths, so that limits fall among equals.
//!
//! Readers ask by worker and by slot, by chunk and by sequence hashes, one by one and many together, with a limit, a
//! least depth, a filter of workers or of lives of slots, each or several of them at a time; `stress/promise.rs`
//! says what is left of a promise then.
//!
//! Tiny tables and two shards make every kind of event happen under the readers' eyes, and the
//! test asserts that they did. `KVATLAS_STRESS_SEED` and `KVATLAS_STRESS_LAPS` make other and longer runs of it; the seed
//! is printed, past the buffer of standard output: the harness writes to that meanwhile, which the thread sanitizer, not
//! seeing the standard library's locks, takes for a race.

#[path = "stress/promise.rs"]
mod promise;
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
/// Miri takes some thousand times as long for each.
const LAPS: u64 = if cfg!(miri) { 3 } else { 100 };
const READERS: u64 = if cfg!(miri) { 1 } else { 3 };
/// A reader asks at least so often, also where writers are done first.
const CALLS: u64 = if cfg!(miri) { 60 } else { 2_000 };

/// What the environment says, in decimal, or else `usual`.
fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |value| value.parse().expect("a decimal number"))
}

#[test]
fn what_readers_see_was_possible() {
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
        // Readers are let go before a writer's panic is passed on, or they would never end.
        writing.store(false, Ordering::SeqCst);
        assert!(ended.iter().all(Result::is_ok), "a writer failed");
        // The scope would wait for them too, but by means that the thread sanitizer does not see.
        let asked = readers.into_iter().map(|reader| reader.join());
        asked.fold(Asks::default(), |sum, asked| {
            sum.with(asked.expect("a reader failed"))
        })
    });
    eprintln!("stress: {asked:?}");
    settled(&world);
    reached(&world, &asked);
}

/// With no reader left, nothing is held back.
fn settled(world: &World) {
    while world.index.sweep(1 << 14).more {}
    assert_eq!(world.index.memory_bytes().retired, 0);
}

/// The run was one in which something could have gone wrong.
fn reached(world: &World, asked: &Asks) {
    let events = world.index.events();
    for (reached, what) in [
        (asked.all, "look-ups"),
        (asked.together, "look-ups together"),
        (asked.by_slot, "look-ups by slot"),
        (asked.filtered, "filtered look-ups"),
        (asked.with_min_depth, "look-ups with a least depth"),
        (asked.cut_by_limit, "answers cut by the limit"),
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
