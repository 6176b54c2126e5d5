//! Removal of dead workers' memberships, all of them in one pass, in bounded slices.
//!
//! A pass takes every slot that has died so far, once no look-up can still take it for alive, and goes
//! through every table of every shard. A table that is published anew meanwhile was purged of those
//! slots by that very copy, so the pass goes on behind it. When it has reached the end, no table has a
//! membership of its slots, nor can one come: a store asks under the shard's lock whether its slot is
//! alive. So the slots are free at once. A look-up that has one of them as alive took its picture after
//! the slot's next owner came, hence after the pass, and finds nothing of the one before.

use crate::counters::{count, count_many};
use crate::index::Index;
use crate::membership::{Kind, Tables, Writing};
use crate::types::Sweep;

/// Table slots visited under one hold of a shard's lock.
const SLICE: usize = 1024;

#[derive(Default)]
pub(crate) struct Sweeper {
    pass: Option<Pass>,
}

struct Pass {
    slots: Vec<u16>,
    gone: Vec<u64>,
    shard: usize,
    kind: usize,
    at: usize,
    /// The table's generation when `at` was reached; another one means that the table is clean.
    generation: Option<u64>,
}

impl Pass {
    fn over(slots: Vec<u16>) -> Self {
        let mut gone = Vec::new();
        for &slot in &slots {
            let place = usize::from(slot / 64);
            if gone.len() <= place {
                gone.resize(place + 1, 0);
            }
            gone[place] |= 1u64 << (slot % 64);
        }
        Self {
            slots,
            gone,
            shard: 0,
            kind: 0,
            at: 0,
            generation: None,
        }
    }

    /// Visits up to `budget` slots of the table at hand; goes on to the next one at its end.
    fn slice(&mut self, index: &Index, budget: usize) -> (usize, usize) {
        let shard = self.shard;
        index
            .shards
            .enter_shared()
            .with(shard, |tables| self.slice_of(tables, index, budget))
    }

    fn slice_of(&mut self, tables: &mut Tables, index: &Index, budget: usize) -> (usize, usize) {
        let pin = index.shared.grace.pin();
        let writing = Writing::new(&index.shared, &index.directories, &pin);
        let target = writing.target(Kind::ALL[self.kind]);
        let (mut visited, mut removed, mut ends) = (0, 0, true);
        if let Some(table) = tables.table_mut(Kind::ALL[self.kind]) {
            let same = self
                .generation
                .is_none_or(|before| before == table.generation());
            if same && !table.is_unused() {
                self.generation = Some(table.generation());
                (visited, removed, ends) = table.purge(target, self.at, budget, &self.gone);
                self.at += visited;
                if ends {
                    table.shrink(target, self.shard);
                }
            }
        }
        if ends {
            (self.at, self.generation) = (0, None);
            self.kind = (self.kind + 1) % Kind::ALL.len();
            self.shard += usize::from(self.kind == 0);
        }
        (visited, removed)
    }
}

impl Sweeper {
    /// One slice of about `budget` table slots.
    pub fn run(&mut self, index: &Index, budget: usize) -> Sweep {
        let shared = &index.shared;
        let mut done = Sweep::default();
        self.start_pass(index);
        // A table costs at least one, so that empty ones use up the budget as well.
        let mut spent = 0;
        while spent < budget.max(1) {
            let Some(pass) = &mut self.pass else { break };
            let (visited, removed) = pass.slice(index, SLICE.min(budget.max(1) - spent));
            spent += visited.max(1);
            done.visited += visited;
            done.removed += removed;
            if pass.shard == index.shards.len() {
                let slots = self.pass.take().map_or_else(Vec::new, |pass| pass.slots);
                shared.roster.free(&slots);
                done.freed += slots.len();
                count(&shared.counters.events.sweeps);
                break;
            }
        }
        count_many(&shared.counters.events.swept_memberships, done.removed);
        let limbo_waits = shared.grace.collect();
        done.more = limbo_waits || self.pass.is_some() || shared.roster.has_retired();
        done
    }

    fn start_pass(&mut self, index: &Index) {
        if self.pass.is_none() {
            let dead = index.shared.roster.take_dead(&index.shared.grace);
            if !dead.is_empty() {
                self.pass = Some(Pass::over(dead));
            }
        }
    }
}
