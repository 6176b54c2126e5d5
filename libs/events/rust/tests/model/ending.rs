//! Checks on the whole graph of states that every recovery ends.
//!
//! `stateright` checks `eventually` only along the paths that its search happens to walk, and misses
//! cycles and paths that join. So this check walks the protocol's own steps as a graph: from every reachable
//! state they must lead to a healed quiet state, and they must not form a cycle. Then every run ends healed
//! once the faults stop, whatever the order of its steps.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use stateright::Model;

use crate::world::{Bounds, World};

/// Properties of the graph of the protocol's steps.
#[derive(Debug)]
pub struct Ending {
    pub states: usize,
    pub quiet: usize,
    /// The most steps that can be taken without a fault; None: some run never ends.
    pub longest_run: Option<usize>,
    /// States from which no run of the protocol leads to a healed quiet one.
    pub hopeless: usize,
}

pub fn examine(bounds: &Bounds) -> Ending {
    let (after, healed) = walk(bounds);
    let mut before = vec![Vec::new(); after.len()];
    for (from, targets) in after.iter().enumerate() {
        for &to in targets {
            before[to as usize].push(from as u32);
        }
    }
    let mut hopeful = healed.clone();
    let mut waiting: Vec<usize> = (0..after.len()).filter(|&at| healed[at]).collect();
    while let Some(at) = waiting.pop() {
        for &from in &before[at] {
            if !std::mem::replace(&mut hopeful[from as usize], true) {
                waiting.push(from as usize);
            }
        }
    }
    Ending {
        states: after.len(),
        quiet: after.iter().filter(|targets| targets.is_empty()).count(),
        longest_run: longest_run(&after, &before),
        hopeless: hopeful.iter().filter(|&&hopeful| !hopeful).count(),
    }
}

/// All states, by number: where the protocol's steps lead from each, and whether it is healed and quiet.
fn walk(bounds: &Bounds) -> (Vec<Vec<u32>>, Vec<bool>) {
    let mut numbers = HashMap::new();
    let (mut after, mut healed) = (Vec::<Vec<u32>>::new(), Vec::new());
    let mut waiting: VecDeque<World> = VecDeque::new();
    let mut number = |world: World, waiting: &mut VecDeque<World>| {
        let next = numbers.len() as u32;
        let at = *numbers.entry(key(&world)).or_insert(next);
        if at == next {
            waiting.push_back(world);
        }
        at
    };
    for world in bounds.init_states() {
        number(world, &mut waiting);
    }
    let mut actions = Vec::new();
    // States are numbered in the order in which they are taken out again.
    while let Some(world) = waiting.pop_front() {
        actions.clear();
        bounds.actions(&world, &mut actions);
        let mut targets = Vec::new();
        for &action in &actions {
            if let Some(next) = bounds.next_state(&world, action) {
                let at = number(next, &mut waiting);
                if !action.is_fault() {
                    targets.push(at);
                }
            }
        }
        healed.push(targets.is_empty() && world.is_healed(bounds));
        after.push(targets);
    }
    (after, healed)
}

/// A state's hash identifies it, as in `stateright`: a collision among 10⁶ states is less likely than 10⁻⁷.
fn key(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// Removes states without incoming steps one by one (topological sort); states that remain form a cycle.
fn longest_run(after: &[Vec<u32>], before: &[Vec<u32>]) -> Option<usize> {
    let mut entries: Vec<usize> = before.iter().map(Vec::len).collect();
    let mut steps = vec![0; after.len()];
    let mut waiting: Vec<usize> = (0..after.len()).filter(|&at| entries[at] == 0).collect();
    let mut peeled = 0;
    while let Some(at) = waiting.pop() {
        peeled += 1;
        for &to in &after[at] {
            let to = to as usize;
            steps[to] = steps[to].max(steps[at] + 1);
            entries[to] -= 1;
            if entries[to] == 0 {
                waiting.push(to);
            }
        }
    }
    (peeled == after.len()).then(|| steps.into_iter().max().unwrap_or(0))
}
