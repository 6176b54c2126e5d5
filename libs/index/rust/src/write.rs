//! The way of changes into the tables: many blocks in flight, one after another in each.
//!
//! What a block costs is above all the miss on its cache line, and on the way to it the walk through the page tables. So
//! some tens of searches go on at a time, in a [`Ring`], whichever runs they belong to. They begin in groups, whose
//! lines are asked for at once: a request is done with only when its address is known, and only as many walks overlap as
//! requests stand close together in the program. A search goes to the back of the ring whenever it needs another line,
//! which it does only where the one before is full, so that by its turn the line is there.
//!
//! Blocks of one call may therefore take effect in another order than given. Equal ones do not overtake each other:
//! their searches read the same lines, one behind the other. Where one must begin anew, all of its shard do, and end
//! one after another; so too where it would take a slot on a line that it has passed while others for the same hash are under way, which
//! may have passed it or not.
//!
//! A writer takes the right to write for a window of blocks, at next to no cost while it is alone ([`crate::rights`]).

use crate::feed::{Feed, Left, Part};
use crate::grace::Pin;
use crate::index::Index;
use crate::membership::{Changed, Kind, Member, NOTHING, Writing};
use crate::rights::Rights;
use crate::ring::{GROUP, Ring};
use crate::shard_table::{Search, Step};
use crate::sync::tally::Ordering::Relaxed;
use crate::types::{Applied, Run, Tier};

/// Removals after which the epoch is asked to move on.
const STEP_AFTER: usize = 1024;
/// Blocks written under one right to write, so that other writers get theirs.
const WINDOW: usize = 512;
/// Runs that a window has part in at most.
const RUNS: usize = 32;

/// A window: what is under way under one right to write.
struct Window<'a, 'p> {
    writing: Writing<'p>,
    rights: Rights<'a>,
    ring: Ring<'p>,
    parts: [Part; RUNS],
    part_count: usize,
    /// Blocks that may still begin.
    room: usize,
}

impl Index {
    /// Applies runs of changes. Those of one slot take effect as if one after another, in the order given. Nothing
    /// happens for retired slots.
    ///
    /// `runs` is asked for the next one while others are kept from writing: it must not change the same index itself, nor
    /// wait for somebody who does.
    pub fn apply<'a>(&self, runs: impl IntoIterator<Item = Run<'a>>) -> Applied {
        let pin = self.shared.grace.pin();
        let applied = self.apply_pinned(&mut runs.into_iter(), &pin);
        drop(pin);
        if applied.removed > 0 {
            self.age_emptied(applied.removed);
        }
        applied
    }

    /// Moves the epoch on after every so many removals, so that their slots may soon take other keys.
    fn age_emptied(&self, removed: usize) {
        let grace = &self.shared.grace;
        let emptied = &self.shared.counters.emptied;
        if emptied.fetch_add(removed, Relaxed) + removed >= STEP_AFTER {
            emptied.store(0, Relaxed);
            grace.step();
        }
    }

    pub(crate) fn apply_pinned<'a>(
        &self,
        runs: &mut dyn Iterator<Item = Run<'a>>,
        pin: &Pin<'_>,
    ) -> Applied {
        let mut applied = Applied::default();
        let writing = Writing::new(&self.shared, &self.directories, pin);
        let Some(mut feed) = Feed::new(runs) else {
            return applied;
        };
        while feed.is_unfinished() {
            let mut window = Window::new(writing, self.shards.enter(), feed.part);
            window.run(&mut feed);
            window.account(&mut applied);
        }
        applied
    }
}

impl<'a, 'p> Window<'a, 'p> {
    fn new(writing: Writing<'p>, rights: Rights<'a>, first: Part) -> Self {
        Self {
            writing,
            rights,
            ring: Ring::new(),
            parts: [first; RUNS],
            part_count: 1,
            room: WINDOW,
        }
    }

    /// Starts as many blocks as the window has room for, and ends them all.
    #[inline(always)]
    fn run(&mut self, feed: &mut Feed<'_, '_>) {
        self.check(feed);
        loop {
            while self.ring.has_room_for_group() && self.begin_group(feed) {}
            let Some(search) = self.ring.front() else {
                return;
            };
            let part = &mut self.parts[search.run()];
            match part.step::<true>(self.writing, &mut self.rights, search) {
                Stepped::Further => self.ring.front_to_back(),
                Stepped::Done(changed) => {
                    part.count(search.hash, changed);
                    self.ring.drop_front();
                }
                Stepped::Spare => self.take_spare(),
                Stepped::Anew => {
                    let shard = search.shard();
                    self.settle(shard);
                }
            }
        }
    }

    /// Ends the search whose turn it is, which may take a slot that it has passed.
    #[inline(never)]
    fn take_spare(&mut self) {
        let has_equal = self.ring.has_equal_to_front();
        let Some(search) = self.ring.front() else {
            return;
        };
        let part = &mut self.parts[search.run()];
        if !has_equal && let Some(changed) = part.take_spare(self.writing, &mut self.rights, search)
        {
            part.count(search.hash, changed);
            self.ring.drop_front();
        } else {
            let shard = search.shard();
            self.settle(shard);
        }
    }

    /// Ends all searches in flight in a shard, one after another, in the order in which they began.
    #[cold]
    #[inline(never)]
    fn settle(&mut self, shard: usize) {
        let Writing {
            directories, pin, ..
        } = self.writing;
        for stale in self.ring.take_out(shard) {
            let part = &mut self.parts[stale.run()];
            let mut search = stale.anew(&directories[0], pin);
            let changed = loop {
                match part.step::<false>(self.writing, &mut self.rights, &mut search) {
                    Stepped::Further => {}
                    Stepped::Done(changed) => break changed,
                    Stepped::Spare => {
                        if let Some(changed) =
                            part.take_spare(self.writing, &mut self.rights, &search)
                        {
                            break changed;
                        }
                        search = stale.anew(&directories[0], pin);
                    }
                    Stepped::Anew => search = stale.anew(&directories[0], pin),
                }
            };
            part.count(search.hash, changed);
        }
    }

    /// Starts a few blocks, and fetching all their lines; false if no more can start now.
    #[inline(always)]
    fn begin_group(&mut self, feed: &mut Feed<'_, '_>) -> bool {
        let before = self.ring.pushed();
        while self.ring.pushed() - before < GROUP {
            // A run begins even where there is no more room for blocks, so that a window comes to an end with the call.
            if feed.is_between_runs() {
                if !self.begin_run(feed) {
                    break;
                }
                continue;
            }
            if self.room == 0 {
                break;
            }
            self.room -= 1;
            let Some(hash) = feed.left.next() else { break };
            let Writing {
                directories, pin, ..
            } = self.writing;
            let run = self.part_count - 1;
            self.ring
                .push(Search::start(hash, run, &directories[0], pin));
        }
        let begun = self.ring.pushed() - before;
        for search in self.ring.last(begun) {
            search.fetch();
            self.rights.prefetch(search.shard());
        }
        begun > 0
    }

    /// Takes up the next run; false if that must wait, or there is none.
    fn begin_run(&mut self, feed: &mut Feed<'_, '_>) -> bool {
        let Some(run) = feed.following() else {
            return false;
        };
        // Blocks on other tiers are changed at their turn, so they could overtake those whose searches go on.
        let overtakes = run.tier != Tier::Device && !self.ring.is_empty();
        if self.part_count == RUNS || overtakes {
            return false;
        }
        feed.advance(run);
        self.parts[self.part_count] = feed.part;
        self.part_count += 1;
        self.check(feed);
        true
    }

    /// Gives the run up if its slot's life is over. Asked while no sweep can pass the shard, see `Roster::writable`. And
    /// while pinned: so the slot cannot begin another life before what was changed is accounted for.
    fn check(&mut self, feed: &mut Feed<'_, '_>) {
        if self.rights.is_sole() && !self.writing.shared.roster.writable(feed.part.slot) {
            feed.left = Left::NOTHING;
        }
    }

    fn account(self, applied: &mut Applied) {
        for part in &self.parts[..self.part_count] {
            let Part {
                slot,
                tier,
                stores,
                change,
            } = part;
            let roster = &self.writing.shared.roster;
            roster.account(slot.slot, *tier, change, *stores);
            if *stores {
                applied.stored += change.tier_count;
            } else {
                applied.removed += change.tier_count;
            }
        }
    }
}

/// What came of a look at a search's next line, see [`Step`].
enum Stepped {
    Further,
    Spare,
    Done(Changed),
    Anew,
}

impl Part {
    /// One look of a search at a line. Compiled apart for the ring, where it must not cost a call.
    #[inline(always)]
    fn step<'p, const IN_RING: bool>(
        &self,
        writing: Writing<'p>,
        rights: &mut Rights<'_>,
        search: &mut Search<'p>,
    ) -> Stepped {
        let sole = rights.is_sole();
        rights.with(search.shard(), |tables| {
            if sole
                && self.tier == Tier::Device
                && let Some(main) = tables.main_alone()
            {
                let target = writing.target(Kind::Anywhere);
                let step = if self.stores {
                    main.insert_step(target, search, self.slot.slot)
                } else {
                    main.remove_step(target, search, self.slot.slot)
                };
                return match step {
                    Step::Further => Stepped::Further,
                    Step::Spare => Stepped::Spare,
                    Step::Done(changed) => Stepped::Done(Changed {
                        tier: changed,
                        anywhere: changed,
                    }),
                    Step::Anew => Stepped::Anew,
                };
            }
            if !sole && !writing.shared.roster.writable(self.slot) {
                return Stepped::Done(NOTHING);
            }
            let member = Member {
                hash: search.hash,
                slot: self.slot.slot,
            };
            Stepped::Done(if self.stores {
                tables.store(writing, member, self.tier)
            } else {
                tables.remove(writing, member, self.tier)
            })
        })
    }

    /// Ends a store that may take a slot which it has passed; nothing if it must begin anew.
    fn take_spare(
        &self,
        writing: Writing<'_>,
        rights: &mut Rights<'_>,
        search: &Search<'_>,
    ) -> Option<Changed> {
        rights.with(search.shard(), |tables| {
            let main = tables.main_alone()?;
            let target = writing.target(Kind::Anywhere);
            match main.take_spare(target, search, self.slot.slot) {
                Step::Done(changed) => Some(Changed {
                    tier: changed,
                    anywhere: changed,
                }),
                _ => None,
            }
        })
    }

    #[inline(always)]
    fn count(&mut self, hash: u64, changed: Changed) {
        let change = &mut self.change;
        change.tier_count += usize::from(changed.tier);
        change.blocks += usize::from(changed.anywhere);
        change.digest ^= if changed.tier { hash } else { 0 };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::types::{IndexConfig, SlotId, WorkerKey};

    fn hashes(from: u64) -> Vec<u64> {
        (from..from + 300)
            .map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .collect()
    }

    fn index_of_one_shard() -> (Index, SlotId) {
        let index = Index::new(IndexConfig {
            shard_bits: 0,
            initial_slots_per_shard: 512,
        });
        let key = WorkerKey {
            worker_id: 1,
            dp_rank: 0,
        };
        let slot = index.allocate(key).unwrap();
        (index, slot)
    }

    fn holds_all(index: &Index, slot: SlotId, hashes: &[u64]) -> usize {
        let held = hashes
            .iter()
            .filter(|&&hash| index.holds(slot, Tier::Device, hash));
        held.count()
    }

    #[test]
    fn emptied_slots_take_other_keys_once_no_reader_can_have_seen_the_old_sets() {
        let (index, slot) = index_of_one_shard();
        index.store(slot, Tier::Device, &hashes(0));
        let before = index.events();
        for round in 0..if cfg!(miri) { 3 } else { 40 } {
            let (old, new) = (hashes(round * 1000), hashes((round + 1) * 1000));
            assert_eq!(index.remove(slot, Tier::Device, &old[10..]), 290);
            for _ in 0..3 {
                assert!(index.shared.grace.step());
            }
            assert_eq!(index.store(slot, Tier::Device, &new[10..]), 290);
            assert_eq!(index.remove(slot, Tier::Device, &old[..10]), 10);
            assert_eq!(index.store(slot, Tier::Device, &new[..10]), 10);
            assert_eq!(holds_all(&index, slot, &new), 300);
            assert_eq!(holds_all(&index, slot, &old), 0);
        }
        let renewals = index.events().cleanups - before.cleanups;
        assert!(
            renewals < 20,
            "{renewals} renewals: slots were not used again"
        );
    }

    #[test]
    fn emptied_slots_keep_their_keys_while_a_reader_may_have_seen_the_old_sets() {
        let (index, slot) = index_of_one_shard();
        index.store(slot, Tier::Device, &hashes(0)[..200]);
        let reader = index.shared.grace.pin();
        index.remove(slot, Tier::Device, &hashes(0)[..200]);
        for _ in 0..9 {
            index.shared.grace.step();
        }
        let room = || {
            index.shards.enter_shared().with(0, |tables| {
                tables.table(Kind::Anywhere).map(|table| table.keyed())
            })
        };
        let keyed = room();
        index.store(slot, Tier::Device, &hashes(5000)[..50]);
        assert_eq!(room(), keyed.map(|keyed| keyed + 50));
        drop(reader);
    }
}
