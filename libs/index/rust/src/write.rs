//! The way of a change into the tables: many blocks in flight, one after another in each.
//!
//! What a block costs is above all the miss on its cache line. So up to [`IN_FLIGHT`] searches go on at a time, in a
//! ring: each starts fetching the line it reads next and goes to the back, so that by its turn the line is there. A
//! search reads further lines only where the one before is full. Blocks of one call may therefore take effect in
//! another order than given; equal ones do not overtake each other, since their searches read the same lines.
//!
//! A writer takes the right to write for a window of blocks, at next to no cost while it is alone ([`crate::rights`]).

use crate::grace::Pin;
use crate::index::Index;
use crate::membership::{Changed, Kind, Member, Writing};
use crate::rights::Rights;
use crate::roster::Change;
use crate::shard_table::Search;
use crate::sync::tally::Ordering::Relaxed;
use crate::types::{SlotId, Tier};

/// Searches that wait for memory at a time: more than a core has outstanding misses.
const IN_FLIGHT: usize = 32;
/// Removals after which the epoch is asked to move on.
const STEP_AFTER: usize = 1024;
/// Blocks written under one right to write, so that other writers get theirs.
const WINDOW: usize = 512;

/// Searches under way, first in first out.
struct Ring<'p> {
    searches: [Search<'p>; IN_FLIGHT],
    first: usize,
    end: usize,
}

impl<'p> Ring<'p> {
    fn new() -> Self {
        Self {
            searches: [Search::default(); IN_FLIGHT],
            first: 0,
            end: 0,
        }
    }

    #[inline(always)]
    fn has_room(&self) -> bool {
        self.end - self.first < IN_FLIGHT
    }

    #[inline(always)]
    fn push(&mut self, search: Search<'p>) {
        self.searches[self.end % IN_FLIGHT] = search;
        self.end += 1;
    }

    /// The search whose turn it is.
    #[inline(always)]
    fn front(&mut self) -> Option<&mut Search<'p>> {
        (self.first < self.end).then(|| &mut self.searches[self.first % IN_FLIGHT])
    }

    #[inline(always)]
    fn drop_front(&mut self) {
        self.first += 1;
    }

    #[inline(always)]
    fn front_to_back(&mut self) {
        self.searches[self.end % IN_FLIGHT] = self.searches[self.first % IN_FLIGHT];
        self.first += 1;
        self.end += 1;
    }
}

/// Whose blocks are changed, and where.
#[derive(Clone, Copy)]
struct Run<'a> {
    writing: Writing<'a>,
    slot: SlotId,
    tier: Tier,
}

impl Index {
    /// Stores (`STORES`) or removes blocks of a slot on a tier; returns on how many that changed something.
    pub(crate) fn change<const STORES: bool>(
        &self,
        slot: SlotId,
        tier: Tier,
        hashes: impl Iterator<Item = u64>,
    ) -> usize {
        let pin = self.shared.grace.pin();
        let changed = self.change_pinned::<STORES>(slot, tier, hashes, &pin);
        drop(pin);
        if !STORES {
            self.age_emptied(changed);
        }
        changed
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

    pub(crate) fn change_pinned<const STORES: bool>(
        &self,
        slot: SlotId,
        tier: Tier,
        hashes: impl Iterator<Item = u64>,
        pin: &Pin<'_>,
    ) -> usize {
        let run = Run {
            writing: Writing::new(&self.shared, &self.directories, pin),
            slot,
            tier,
        };
        let mut hashes = hashes.peekable();
        let mut change = Change::default();
        while hashes.peek().is_some() {
            if !self.change_window::<STORES>(run, hashes.by_ref().take(WINDOW), &mut change) {
                break;
            }
        }
        self.shared.roster.account(slot.slot, tier, &change, STORES);
        change.tier_count
    }

    /// One window under one right to write; false if the slot's life is over.
    #[inline(always)]
    fn change_window<const STORES: bool>(
        &self,
        run: Run<'_>,
        mut hashes: impl Iterator<Item = u64>,
        change: &mut Change,
    ) -> bool {
        let mut rights = self.shards.enter();
        // Asked while no sweep can pass the shard, see `Roster::writable`. And while pinned: so the slot
        // cannot begin another life before what was changed is accounted for.
        if rights.is_sole() && !self.shared.roster.writable(run.slot) {
            return false;
        }
        let Writing {
            directories, pin, ..
        } = run.writing;
        let mut ring = Ring::new();
        loop {
            while ring.has_room()
                && let Some(hash) = hashes.next()
            {
                let search = Search::start(hash, &directories[0], pin);
                rights.prefetch(search.shard());
                ring.push(search);
            }
            let Some(search) = ring.front() else {
                return true;
            };
            match run.step::<STORES>(&mut rights, search) {
                Step::Further => ring.front_to_back(),
                Step::Done(changed) => {
                    change.tier_count += usize::from(changed.tier);
                    change.blocks += usize::from(changed.anywhere);
                    change.digest ^= if changed.tier { search.hash } else { 0 };
                    ring.drop_front();
                }
                Step::Over => return false,
            }
        }
    }
}

enum Step {
    /// The search reads another line.
    Further,
    Done(Changed),
    /// The slot's life is over.
    Over,
}

impl<'p> Run<'p> {
    #[inline(always)]
    fn step<const STORES: bool>(self, rights: &mut Rights<'_>, search: &mut Search<'p>) -> Step {
        let sole = rights.is_sole();
        rights.with(search.shard(), |tables| {
            if sole
                && self.tier == Tier::Device
                && let Some(main) = tables.main_alone()
            {
                let target = self.writing.target(Kind::Anywhere);
                let done = if STORES {
                    main.insert_step(target, search, self.slot.slot)
                } else {
                    main.remove_step(target, search, self.slot.slot)
                };
                return done.map_or(Step::Further, |changed| {
                    Step::Done(Changed {
                        tier: changed,
                        anywhere: changed,
                    })
                });
            }
            if !sole && !self.writing.shared.roster.writable(self.slot) {
                return Step::Over;
            }
            let member = Member {
                hash: search.hash,
                slot: self.slot.slot,
            };
            Step::Done(if STORES {
                tables.store(self.writing, member, self.tier)
            } else {
                tables.remove(self.writing, member, self.tier)
            })
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::types::{IndexConfig, WorkerKey};

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
        for round in 0..40 {
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
