//! The writers: each changes the table while readers look up, and notes its progress in the world.

use std::thread;

use kvatlas_index::{SlotId, Tier};

use crate::random::Random;
use crate::world::{
    BLOCKS, CLEARED, CROWD, CROWDED, GROWING, LADDER, PASSING, PASSING_ON_LADDER, Passing,
    REPLACED, TIDE, TIERED, TOGGLED, TOGGLED_BLOCKS, World, allocated, live, prompt,
};

/// Stores prefixes of different lengths and removes parts of them again, tail first.
pub fn grow_and_shrink(world: &World, laps: u64) {
    let (index, slot, hashes) = (&world.index, world.slot(GROWING), prompt(GROWING));
    for round in 0..laps as usize * 4 {
        let depth = 1 + round * 7 % BLOCKS;
        world.note_growing(depth);
        index.store(slot, Tier::Device, &hashes[..depth]);
        let tail: Vec<u64> = hashes[depth / 3..depth].iter().rev().copied().collect();
        index.remove(slot, Tier::Device, &tail);
    }
}

/// Goes up and down by any number of blocks: stores from the head, removes from the tail.
pub fn rise_and_fall(world: &World, random: &mut Random, laps: u64) {
    let (index, slot, hashes) = (&world.index, world.slot(TIDE), prompt(TIDE));
    let mut depth = 0;
    for _ in 0..laps * 20 {
        let next = random.below(BLOCKS as u64 + 1) as usize;
        world.note_tide(depth.min(next), depth.max(next));
        if next > depth {
            index.store(slot, Tier::Device, &hashes[depth..next]);
        } else {
            let tail: Vec<u64> = hashes[next..depth].iter().rev().copied().collect();
            index.remove(slot, Tier::Device, &tail);
        }
        depth = next;
        world.note_tide(depth, depth);
    }
}

/// One worker always holds its prompt on some tier, while the tiers are cleared in turn; another is cleared of all it has.
pub fn clear_again_and_again(world: &World, laps: u64) {
    let (tiered, cleared) = (prompt(TIERED), prompt(CLEARED));
    let index = &world.index;
    for _ in 0..laps {
        let slot = world.slot(TIERED);
        index.store(slot, Tier::Host, &tiered);
        index.clear(slot, Tier::Device);
        index.store(slot, Tier::Device, &tiered);
        index.clear(slot, Tier::Host);
        let slot = world.slot(CLEARED);
        index.store(slot, Tier::Device, &cleared);
        index.clear(slot, Tier::Device);
    }
}

/// Loads whole new sets into fresh slots and swaps them in.
pub fn replace_again_and_again(world: &World, laps: u64) {
    let (index, hashes) = (&world.index, prompt(REPLACED));
    let mut current = world.replaced;
    for _ in 0..laps * 10 {
        let next = allocated(index, REPLACED);
        index.store(next, Tier::Device, &hashes);
        index.replace(current, next);
        current = next;
        let _ = index.sweep(700);
    }
}

/// Workers that join, fill the table with prompts of their lap, and leave; the sweep frees their slots.
pub fn pass_by(world: &World, laps: u64) {
    let (index, ladder) = (&world.index, prompt(LADDER));
    for now in 0..laps {
        world.note_passing(now, Passing::Joining);
        let passing = allocated(index, PASSING + now);
        world.note_passing_slot(now, passing);
        index.store(passing, Tier::Device, &prompt(PASSING + now));
        index.store(passing, Tier::Device, &ladder[..PASSING_ON_LADDER]);
        index.publish(passing);
        world.note_passing(now, Passing::Present);
        for filler in 0..6 {
            index.store(passing, Tier::Host, &prompt(1 << 30 | now << 8 | filler));
        }
        world.note_passing(now, Passing::Leaving);
        index.suspend(passing);
        index.publish(passing);
        index.retire(passing);
        world.note_passing(now, Passing::Left);
        // Until slots are freed, so that later laps reuse them; readers decide when.
        loop {
            let done = index.sweep(1 << 12);
            if done.freed > 0 || !done.more {
                break;
            }
            thread::yield_now();
        }
    }
}

/// The members of the crowd join one after another. So bitmaps, one word wide, are there before the slots of the last
/// members need more.
pub fn assemble(world: &World) -> Vec<SlotId> {
    let prefix = &prompt(CROWDED)[..3];
    let join = |n| {
        let member = live(&world.index, CROWDED + n, &[]);
        world.index.store(member, Tier::Device, prefix);
        member
    };
    (1..=CROWD).map(join).collect()
}

/// The crowd stores more of the prompt and removes it, with other depths each time.
pub fn come_and_go(world: &World, members: &[SlotId], random: &mut Random, laps: u64) {
    let hashes = prompt(CROWDED);
    let tail_first: Vec<u64> = hashes.iter().rev().copied().collect();
    for _ in 0..laps.div_ceil(6) {
        for &member in members {
            let last = random.below(BLOCKS as u64 - 1) as usize;
            world.index.store(member, Tier::Device, &hashes[..=last]);
        }
        for &member in members {
            world.index.remove(member, Tier::Device, &tail_first);
        }
    }
}

/// Two prompts with three holders each. Three more store the one and remove it, then the other. So the memory of one
/// prompt's bitmaps becomes the other's, whose holders are all different.
pub fn toggle(world: &World) {
    const ROUNDS: usize = if cfg!(miri) { 10 } else { 20_000 };
    const REUSES: u64 = if cfg!(miri) { 0 } else { 200 };
    let firsts = [TOGGLED, TOGGLED + 10];
    let members = firsts.map(|first| [3, 4, 5].map(|n| world.slot(first + n)));
    let prompts = firsts.map(|first| prompt(first)[..TOGGLED_BLOCKS].to_vec());
    for round in 0..100_000 {
        if round > ROUNDS && world.index.events().bitmap_reuses > REUSES {
            return;
        }
        for (members, hashes) in members.iter().zip(&prompts) {
            for &member in members {
                world.index.store(member, Tier::Device, hashes);
            }
            for &member in members {
                world.index.remove(member, Tier::Device, hashes);
            }
        }
    }
}
