//! A window: some blocks, written under one lock, with many probes in flight.
//!
//! The cost of a block is mostly the cache miss on its line, and the walk through the page tables on the way to it. So some
//! tens of probes go on at a time, in a [`ProbeRing`], whichever changes they belong to. They begin in groups, whose lines
//! are requested together: page walks overlap only for requests that stand close together in the program. A probe that
//! finds its line full goes to the back of the ring; by its turn the next line is there.
//!
//! Blocks of one call may therefore take effect in another order than given. Equal ones do not overtake each other: their
//! probes read the same lines, one behind the other. Two cases need care. Where a probe must restart, all of its shard do,
//! and end one after another. They do so too where a probe would take a tombstone that it has passed while others for the
//! same hash are in flight: those may have passed the tombstone or not.
//!
//! A window is bounded in blocks and changes, so that other writers get their turn.

use crate::apply::change_reader::{ChangeInWindow, ChangeReader, HashesLeft};
use crate::apply::probe_ring::{GROUP, ProbeRing};
use crate::table::probe::{Probe, ProbeStep};
use crate::table::shard_locks::WriteGuard;
use crate::table::tier_tables::{Changed, Membership, TableKind, WriteContext};
use crate::types::{Applied, Tier};

/// Blocks that a window writes at most.
const MAX_BLOCKS: usize = 512;
/// Changes that a window has part in at most.
const MAX_CHANGES: usize = 32;

/// The state of a window.
pub(crate) struct Window<'a, 'p> {
    context: WriteContext<'p>,
    guard: WriteGuard<'a>,
    ring: ProbeRing<'p>,
    changes: [ChangeInWindow; MAX_CHANGES],
    change_count: usize,
    /// Blocks that may still begin.
    blocks_left: usize,
}

impl<'a, 'p> Window<'a, 'p> {
    pub fn new(context: WriteContext<'p>, guard: WriteGuard<'a>, first: ChangeInWindow) -> Self {
        Self {
            context,
            guard,
            ring: ProbeRing::new(),
            changes: [first; MAX_CHANGES],
            change_count: 1,
            blocks_left: MAX_BLOCKS,
        }
    }

    /// Begins as many blocks as the window has room for, and ends them all.
    #[inline(always)]
    pub fn run(&mut self, reader: &mut ChangeReader<'_, '_>) {
        self.skip_if_retired(reader);
        loop {
            while self.ring.has_room_for_group() && self.begin_group(reader) {}
            let Some(probe) = self.ring.front() else {
                return;
            };
            let change = &mut self.changes[probe.change()];
            match change.step::<true>(self.context, &mut self.guard, probe) {
                ProbeStep::NextLine => self.ring.front_to_back(),
                ProbeStep::Done(changed) => {
                    change.count(probe.hash, changed);
                    self.ring.drop_front();
                }
                ProbeStep::ReuseTombstone => self.reuse_tombstone(),
                ProbeStep::Restart => {
                    let shard = probe.shard();
                    self.finish_shard(shard);
                }
            }
        }
    }

    /// Ends the probe whose turn it is, which may take a tombstone that it has passed.
    #[inline(never)]
    fn reuse_tombstone(&mut self) {
        let has_equal = self.ring.has_equal_to_front();
        let Some(probe) = self.ring.front() else {
            return;
        };
        let change = &mut self.changes[probe.change()];
        if !has_equal
            && let Some(changed) = change.reuse_tombstone(self.context, &mut self.guard, probe)
        {
            change.count(probe.hash, changed);
            self.ring.drop_front();
        } else {
            let shard = probe.shard();
            self.finish_shard(shard);
        }
    }

    /// Ends all probes in flight in a shard, one after another, in the order in which they began.
    #[cold]
    #[inline(never)]
    fn finish_shard(&mut self, shard: usize) {
        let WriteContext {
            directories, pin, ..
        } = self.context;
        for stale in self.ring.take_shard(shard) {
            let change = &mut self.changes[stale.change()];
            let mut probe = stale.restarted(&directories[0], pin);
            let changed = loop {
                match change.step::<false>(self.context, &mut self.guard, &mut probe) {
                    ProbeStep::NextLine => {}
                    ProbeStep::Done(changed) => break changed,
                    ProbeStep::ReuseTombstone => {
                        if let Some(changed) =
                            change.reuse_tombstone(self.context, &mut self.guard, &probe)
                        {
                            break changed;
                        }
                        probe = stale.restarted(&directories[0], pin);
                    }
                    ProbeStep::Restart => probe = stale.restarted(&directories[0], pin),
                }
            };
            change.count(probe.hash, changed);
        }
    }

    /// Begins a few blocks, and starts fetching all their lines; false if no more can begin now.
    #[inline(always)]
    fn begin_group(&mut self, reader: &mut ChangeReader<'_, '_>) -> bool {
        let before = self.ring.pushed();
        while self.ring.pushed() - before < GROUP {
            // A change begins even where there is no more room for blocks, so that a window comes to an end with the call.
            if reader.is_between_changes() {
                if !self.begin_change(reader) {
                    break;
                }
                continue;
            }
            if self.blocks_left == 0 {
                break;
            }
            self.blocks_left -= 1;
            let Some(hash) = reader.left.next() else {
                break;
            };
            let WriteContext {
                directories, pin, ..
            } = self.context;
            let change = self.change_count - 1;
            self.ring
                .push(Probe::start(hash, change, &directories[0], pin));
        }
        let begun = self.ring.pushed() - before;
        for probe in self.ring.last(begun) {
            probe.fetch();
            self.guard.prefetch(probe.shard());
        }
        begun > 0
    }

    /// Begins the next change; false if that must wait, or there is none.
    fn begin_change(&mut self, reader: &mut ChangeReader<'_, '_>) -> bool {
        let Some(change) = reader.following() else {
            return false;
        };
        // Blocks on other tiers are changed at their turn, so they could overtake those whose probes go on.
        let overtakes = change.tier != Tier::Device && !self.ring.is_empty();
        if self.change_count == MAX_CHANGES || overtakes {
            return false;
        }
        reader.advance(change);
        self.changes[self.change_count] = reader.current;
        self.change_count += 1;
        self.skip_if_retired(reader);
        true
    }

    /// Skips the current change if its slot is retired. Asked while no sweep can pass the shard, see
    /// `WorkerSlots::is_writable`; and while pinned, so that the slot cannot be allocated again before the change is counted.
    fn skip_if_retired(&mut self, reader: &mut ChangeReader<'_, '_>) {
        let workers = &self.context.shared.workers;
        if self.guard.is_exclusive() && !workers.is_writable(reader.current.slot) {
            reader.left = HashesLeft::NONE;
        }
    }

    /// Adds what the window changed to the counts of the slots, and to `applied`.
    pub fn count_changes(self, applied: &mut Applied) {
        for change in &self.changes[..self.change_count] {
            let ChangeInWindow {
                slot,
                tier,
                stores,
                delta,
            } = change;
            let workers = &self.context.shared.workers;
            workers.add_delta(slot.slot, *tier, delta, *stores);
            if *stores {
                applied.stored += delta.tier_count;
            } else {
                applied.removed += delta.tier_count;
            }
        }
    }
}

impl ChangeInWindow {
    /// One look of a probe at a line. Compiled apart for the ring, where it must not cost a call.
    #[inline(always)]
    fn step<'p, const IN_RING: bool>(
        &self,
        context: WriteContext<'p>,
        guard: &mut WriteGuard<'_>,
        probe: &mut Probe<'p>,
    ) -> ProbeStep<Changed> {
        let is_exclusive = guard.is_exclusive();
        guard.with_shard(probe.shard(), |tables| {
            if is_exclusive
                && self.tier == Tier::Device
                && let Some(main) = tables.main_only()
            {
                let context = context.table(TableKind::Main);
                let step = if self.stores {
                    main.insert_step(context, probe, self.slot.slot)
                } else {
                    main.remove_step(context, probe, self.slot.slot)
                };
                return step.map(Changed::both);
            }
            if !is_exclusive && !context.shared.workers.is_writable(self.slot) {
                return ProbeStep::Done(Changed::NOTHING);
            }
            let membership = Membership {
                hash: probe.hash,
                slot: self.slot.slot,
            };
            ProbeStep::Done(if self.stores {
                tables.store(context, membership, self.tier)
            } else {
                tables.remove(context, membership, self.tier)
            })
        })
    }

    /// Ends a store that may take a tombstone which it has passed; none if it must restart.
    fn reuse_tombstone(
        &self,
        context: WriteContext<'_>,
        guard: &mut WriteGuard<'_>,
        probe: &Probe<'_>,
    ) -> Option<Changed> {
        guard.with_shard(probe.shard(), |tables| {
            let main = tables.main_only()?;
            let context = context.table(TableKind::Main);
            match main.reuse_tombstone(context, probe, self.slot.slot) {
                ProbeStep::Done(changed) => Some(Changed::both(changed)),
                _ => None,
            }
        })
    }

    #[inline(always)]
    fn count(&mut self, hash: u64, changed: Changed) {
        let delta = &mut self.delta;
        delta.tier_count += usize::from(changed.tier);
        delta.blocks += usize::from(changed.any_tier);
        delta.digest ^= if changed.tier { hash } else { 0 };
    }
}
