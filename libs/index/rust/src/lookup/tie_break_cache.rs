//! A cache of tie breaks: after one hash, the workers of the whole fleet in the order in which the tie break prefers them.
//!
//! A prefix that many prompts share ends many matches, and most of the fleet holds it. Then the first few of the fleet in
//! the order of the tie break say who stays, and a walk past those who do not hold the prefix hashes nobody. A fleet has
//! some tens of such prefixes at a time, and a hash that comes once must not evict one of them. So the cache is
//! set-associative and each set is a clock with counters (GCLOCK): an entry that is used again and again keeps its place.
//!
//! Bounded by 64 entries of some hundreds of workers, kept with the buffers of look-ups.

use crate::types::WorkerSlot;
use crate::workers::view::AnswerOrder;

/// Sets of the cache, and entries of a set.
const SETS: usize = 16;
const WAYS: usize = 4;
/// Turns of the clock's hand that an entry survives at most.
const MAX_USES: u32 = 8;
/// An order is cached this many times as far as the limit with which it is asked for, and at least so far.
const LIMITS: usize = 8;
const AT_LEAST: usize = 64;
/// The share of an order that is also cached by position: most holders of a shared prefix hold no more than it.
const SORTED_SHARE: usize = 4;

/// The first workers in the order in which the tie break after one hash prefers them.
#[derive(Default)]
pub(crate) struct Preference {
    last_hash: u64,
    /// Version of the answer order that it is for; 0: none.
    version: u64,
    /// Turns of the hand that it still survives.
    uses: u32,
    /// Their slots, the preferred one first. Empty until the hash is asked for a second time.
    pub slots: Vec<WorkerSlot>,
    /// Position, and place in `slots`, of the first of them; by position.
    pub sorted: Vec<(u16, u16)>,
}

impl Preference {
    fn is_of(&self, last_hash: u64, order: &AnswerOrder) -> bool {
        (self.last_hash, self.version) == (last_hash, order.version)
    }

    /// Whether a walk along the order is likely to find `stay` members of a group of `size`: whether the group is a large
    /// enough part of the fleet.
    pub fn suits(size: usize, stay: usize, order: &AnswerOrder) -> bool {
        // On average every so many of the fleet is in the group; a quarter more is rarely needed.
        let steps = stay * order.owner.len() / size.max(1);
        steps + steps / 4 <= cached_length(stay)
    }

    fn fill(&mut self, order: &AnswerOrder, by_preference: &[(u64, u16)]) {
        let positions = by_preference.iter().map(|&(_, position)| position);
        self.slots.clear();
        self.slots.extend(
            positions
                .clone()
                .map(|position| order.slot[usize::from(position)]),
        );
        self.sorted.clear();
        let count = if cfg!(feature = "without-sorted-positions") {
            0
        } else {
            by_preference.len() / SORTED_SHARE
        };
        self.sorted.extend(positions.zip(0..).take(count));
        self.sorted.sort_unstable();
    }
}

/// Length of an order that is asked for with such a limit.
fn cached_length(stay: usize) -> usize {
    (LIMITS * stay).max(AT_LEAST)
}

#[derive(Default)]
pub(crate) struct TieBreakCache {
    entries: Vec<Preference>,
    /// By set: the entry at which the clock's hand is.
    hands: [usize; SETS],
}

impl TieBreakCache {
    /// The order after `last_hash`, as far as `stay` needs it, if it was asked for before. `first` gives the first so many,
    /// each with its hash.
    pub fn get<'a>(
        &mut self,
        last_hash: u64,
        order: &AnswerOrder,
        stay: usize,
        first: impl FnOnce(usize) -> &'a [(u64, u16)],
    ) -> Option<&Preference> {
        let entry = self.find(last_hash, order)?;
        if entry.slots.len() < cached_length(stay).min(order.slot.len()) {
            entry.fill(order, first(cached_length(stay)));
        }
        Some(entry)
    }

    /// The entry of a hash that has one. Else moves the hand of its set: the entry there loses one use, or its place, if it
    /// has none left.
    fn find(&mut self, last_hash: u64, order: &AnswerOrder) -> Option<&mut Preference> {
        self.entries.resize_with(SETS * WAYS, Preference::default);
        let set = last_hash as usize % SETS;
        let ways = &mut self.entries[set * WAYS..][..WAYS];
        if let Some(at) = ways.iter().position(|entry| entry.is_of(last_hash, order)) {
            let entry = &mut ways[at];
            entry.uses = (entry.uses + 2).min(MAX_USES);
            return Some(entry);
        }
        self.hands[set] = (self.hands[set] + 1) % WAYS;
        let entry = &mut ways[self.hands[set]];
        if entry.version != order.version || entry.uses == 0 {
            (entry.last_hash, entry.version, entry.uses) = (last_hash, order.version, 1);
            entry.slots.clear();
        } else {
            entry.uses -= 1;
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::types::WorkerKey;

    fn order(version: u64) -> AnswerOrder {
        let owner = (0..200).map(|worker_id| WorkerKey {
            worker_id,
            dp_rank: 0,
        });
        AnswerOrder {
            position: (0..200).collect(),
            owner: owner.collect(),
            slot: (0..200).map(WorkerSlot::new).collect(),
            owned: [u64::MAX; 4].into(),
            version,
        }
    }

    /// Whether the order after `hash` is at hand, and whether it had to be made for that.
    fn ask(cache: &mut TieBreakCache, hash: u64, order: &AnswerOrder, stay: usize) -> (bool, bool) {
        let all: Vec<(u64, u16)> = (0..200).map(|at| (u64::from(at), at)).collect();
        let mut made = false;
        let found = cache.get(hash, order, stay, |far| {
            made = true;
            &all[..far.min(all.len())]
        });
        if let Some(found) = found {
            assert!(found.slots.len() >= (LIMITS * stay).min(all.len()));
            assert!(found.sorted.is_sorted());
        }
        (found.is_some(), made)
    }

    #[test]
    fn an_order_is_made_once_and_only_when_its_hash_comes_again() {
        let (mut cache, order) = (TieBreakCache::default(), order(1));
        assert_eq!(ask(&mut cache, 7, &order, 10), (false, false));
        assert_eq!(ask(&mut cache, 7, &order, 10), (true, true));
        assert_eq!(ask(&mut cache, 7, &order, 10), (true, false));
        // Further than it goes, and back.
        assert_eq!(ask(&mut cache, 7, &order, 20), (true, true));
        assert_eq!(ask(&mut cache, 7, &order, 10), (true, false));
        // As far as there is anyone.
        assert_eq!(ask(&mut cache, 7, &order, 100), (true, true));
        assert_eq!(ask(&mut cache, 7, &order, 190), (true, false));
    }

    #[test]
    fn another_version_of_the_answer_order_has_another_preference() {
        let mut cache = TieBreakCache::default();
        ask(&mut cache, 7, &order(1), 10);
        ask(&mut cache, 7, &order(1), 10);
        assert_eq!(ask(&mut cache, 7, &order(2), 10), (false, false));
        assert_eq!(ask(&mut cache, 7, &order(2), 10), (true, true));
    }

    #[test]
    fn hashes_that_come_once_do_not_evict_one_that_comes_often() {
        let (mut cache, order) = (TieBreakCache::default(), order(1));
        let prefixes = if cfg!(miri) {
            4
        } else {
            (SETS * WAYS / 2) as u64
        };
        let mut once = 1_000_000;
        for round in 0..if cfg!(miri) { 12 } else { 50 } {
            for prefix in 0..prefixes {
                let asked = ask(&mut cache, prefix, &order, 10);
                // They find their places among the others in a few rounds.
                assert!(round < 10 || asked == (true, false), "{round}, {prefix}");
                ask(&mut cache, once, &order, 10);
                once += 1;
            }
        }
        // Prefixes that are no longer asked for make room.
        let newcomers = [1 << 40, 1 << 41, 1 << 42, 1 << 43];
        for _ in 0..100 {
            for newcomer in newcomers {
                ask(&mut cache, newcomer, &order, 10);
            }
        }
        for newcomer in newcomers {
            assert_eq!(ask(&mut cache, newcomer, &order, 10), (true, false));
        }
    }
}
