//! The sweep: removes the memberships of retired slots, all of them in one pass, in bounded slices.
//!
//! A pass takes every slot that was retired so far, once no look-up can still see it as live, and goes through every table
//! of every shard. A table that is resized meanwhile drops those slots in the copy, so the pass goes on behind it. When the
//! pass has reached the end, no table has a membership of its slots. None can come either: a store asks under the shard's
//! lock whether its slot is retired. So the slots are free at once. A look-up that has one of them as live took its view
//! after the slot's next owner came, hence after the pass, and finds nothing of the owner before.

use crate::bits;
use crate::counters::{count, count_many};
use crate::table::context::SharedState;
use crate::table::shard_locks::Shards;
use crate::table::tier_tables::{Directories, TableKind, TierTables, WriteContext};
use crate::types::{Sweep, WorkerSlot};

/// Table entries visited under one hold of a shard's lock.
const SLICE: usize = 1024;

/// The tables that a sweep goes through.
#[derive(Clone, Copy)]
pub(crate) struct Swept<'a> {
    pub shared: &'a SharedState,
    pub directories: &'a Directories,
    pub shards: &'a Shards,
}

#[derive(Default)]
pub(crate) struct Sweeper {
    pass: Option<Pass>,
}

struct Pass {
    slots: Vec<WorkerSlot>,
    /// One bit for each of them.
    removed: Vec<u64>,
    shard: usize,
    kind: usize,
    entry: usize,
    /// The number of arrays that the table had had when `entry` was reached. Another number means that the table was
    /// resized, and so is clean.
    resizes: Option<u64>,
}

impl Pass {
    fn over(slots: Vec<WorkerSlot>) -> Self {
        let mut removed = Vec::new();
        for &slot in &slots {
            bits::insert(&mut removed, slot);
        }
        Self {
            slots,
            removed,
            shard: 0,
            kind: 0,
            entry: 0,
            resizes: None,
        }
    }

    /// Visits up to `budget` entries of the table at hand; goes on to the next one at its end. Returns how many entries
    /// were visited and how many memberships removed.
    fn slice(&mut self, swept: Swept<'_>, budget: usize) -> (usize, usize) {
        let mut guard = swept.shards.lock_shared();
        guard.with_shard(self.shard, |tables| self.slice_of(tables, swept, budget))
    }

    fn slice_of(
        &mut self,
        tables: &mut TierTables,
        swept: Swept<'_>,
        budget: usize,
    ) -> (usize, usize) {
        let pin = swept.shared.reclaimer.pin();
        let context = WriteContext::new(swept.shared, swept.directories, &pin);
        let context = context.table(TableKind::ALL[self.kind]);
        let (mut visited, mut count, mut ends) = (0, 0, true);
        if let Some(table) = tables.table_mut(TableKind::ALL[self.kind]) {
            let is_same = self.resizes.is_none_or(|before| before == table.resizes());
            if is_same && !table.is_unused() {
                self.resizes = Some(table.resizes());
                (visited, count, ends) =
                    table.remove_slots(context, self.entry, budget, &self.removed);
                self.entry += visited;
                if ends {
                    table.shrink_if_sparse(context, self.shard);
                }
            }
        }
        if ends {
            (self.entry, self.resizes) = (0, None);
            self.kind = (self.kind + 1) % TableKind::ALL.len();
            self.shard += usize::from(self.kind == 0);
        }
        (visited, count)
    }
}

impl Sweeper {
    /// Sweeps about `budget` table entries.
    pub fn run(&mut self, swept: Swept<'_>, budget: usize) -> Sweep {
        let shared = swept.shared;
        let mut done = Sweep::default();
        self.start_pass(shared);
        // A table costs at least one, so that empty ones use up the budget as well.
        let mut spent = 0;
        while spent < budget.max(1) {
            let Some(pass) = &mut self.pass else { break };
            let (visited, removed) = pass.slice(swept, SLICE.min(budget.max(1) - spent));
            spent += visited.max(1);
            done.visited += visited;
            done.removed += removed;
            if pass.shard == swept.shards.len() {
                let slots = self.pass.take().map_or_else(Vec::new, |pass| pass.slots);
                shared.workers.free(&slots);
                done.freed += slots.len();
                count(&shared.counters.events.sweeps);
                break;
            }
        }
        count_many(&shared.counters.events.swept_memberships, done.removed);
        let limbo_waits = shared.reclaimer.collect();
        done.more = limbo_waits || self.pass.is_some() || shared.workers.has_retired();
        done
    }

    fn start_pass(&mut self, shared: &SharedState) {
        if self.pass.is_none() {
            let slots = shared.workers.take_sweepable(&shared.reclaimer);
            if !slots.is_empty() {
                self.pass = Some(Pass::over(slots));
            }
        }
    }
}
