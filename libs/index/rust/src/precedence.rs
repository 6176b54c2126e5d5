//! Whom the tie-break prefers after one hash, of the whole fleet, kept for hashes that come again.
//!
//! A head that many prompts share ends many matches, and most of the fleet holds it. Then the first few of the fleet
//! in the order of the tie-break say who is drawn, and whoever walks them past those who do not hold the head hashes
//! nobody. A fleet has some tens of such heads at a time; a hash that comes once must not drive one of them out, so a
//! head that is of use again and again keeps its place (a clock with a hand that counts down).

use crate::roster::Order;

/// Heads kept: so many sets of so many.
const SETS: usize = 16;
const WAYS: usize = 4;
/// Turns of the hand that a head survives at most.
const MOST_WORTH: u32 = 8;
/// An order is kept so many times as far as the limit that it is asked with, and at least so far.
const LIMITS: usize = 8;
const AT_LEAST: usize = 64;
/// Of those kept, the share that is kept in the order of answers, too: most of a head's holders hold no more than it.
const SORTED_SHARE: usize = 4;

/// The first workers in the order in which the tie-break after one hash prefers them.
#[derive(Default)]
pub(crate) struct Precedence {
    last_hash: u64,
    /// Which order of slots it is for; 0: none.
    edition: u64,
    worth: u32,
    /// Their slots, the preferred one first. Empty until the hash is asked for a second time.
    pub slots: Vec<u16>,
    /// Rank and place in `slots` of the first of them, by rank.
    pub sorted: Vec<(u16, u16)>,
}

impl Precedence {
    fn is_of(&self, last_hash: u64, order: &Order) -> bool {
        (self.last_hash, self.edition) == (last_hash, order.edition)
    }

    /// Whether walking this order is likely to end in drawing `room` of a group of `size`: whether the group is a
    /// large enough part of the fleet.
    pub fn suits(size: usize, room: usize, order: &Order) -> bool {
        // On average every so many of the fleet is in the group; a quarter more is rarely needed.
        let steps = room * order.owner.len() / size.max(1);
        steps + steps / 4 <= far(room)
    }

    fn fill(&mut self, order: &Order, by_preference: &[(u64, u16)]) {
        let ranks = by_preference.iter().map(|&(_, rank)| rank);
        self.slots.clear();
        self.slots
            .extend(ranks.clone().map(|rank| order.slot[usize::from(rank)]));
        self.sorted.clear();
        let count = by_preference.len() / SORTED_SHARE;
        self.sorted.extend(ranks.zip(0..).take(count));
        self.sorted.sort_unstable();
    }
}

/// How far an order goes that is asked for with such a limit.
fn far(room: usize) -> usize {
    (LIMITS * room).max(AT_LEAST)
}

/// The orders kept; keep them with the buffers of look-ups.
#[derive(Default)]
pub(crate) struct Precedences {
    kept: Vec<Precedence>,
    /// Of each set, the way whose worth was taken from last.
    hands: [usize; SETS],
}

impl Precedences {
    /// The order after `last_hash`, as far as `room` wants it, if it was asked for before. `first` says who the first
    /// so many are, each with the hash that makes it so.
    pub fn after<'a>(
        &mut self,
        last_hash: u64,
        order: &Order,
        room: usize,
        first: impl FnOnce(usize) -> &'a [(u64, u16)],
    ) -> Option<&Precedence> {
        let kept = self.find(last_hash, order)?;
        if kept.slots.len() < far(room).min(order.slot.len()) {
            kept.fill(order, first(far(room)));
        }
        Some(kept)
    }

    /// The place of a hash that has one; else takes from the worth of another, or its place, if it has none left.
    fn find(&mut self, last_hash: u64, order: &Order) -> Option<&mut Precedence> {
        self.kept.resize_with(SETS * WAYS, Precedence::default);
        let set = last_hash as usize % SETS;
        let ways = &mut self.kept[set * WAYS..][..WAYS];
        if let Some(at) = ways.iter().position(|kept| kept.is_of(last_hash, order)) {
            let kept = &mut ways[at];
            kept.worth = (kept.worth + 2).min(MOST_WORTH);
            return Some(kept);
        }
        self.hands[set] = (self.hands[set] + 1) % WAYS;
        let kept = &mut ways[self.hands[set]];
        if kept.edition != order.edition || kept.worth == 0 {
            (kept.last_hash, kept.edition, kept.worth) = (last_hash, order.edition, 1);
            kept.slots.clear();
        } else {
            kept.worth -= 1;
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::types::WorkerKey;

    fn order(edition: u64) -> Order {
        let owner = (0..200).map(|worker_id| WorkerKey {
            worker_id,
            dp_rank: 0,
        });
        Order {
            rank: (0..200).collect(),
            owner: owner.collect(),
            slot: (0..200).collect(),
            owned: [u64::MAX; 4].into(),
            edition,
        }
    }

    /// Whether the order after `hash` is at hand, and whether it had to be made for that.
    fn ask(kept: &mut Precedences, hash: u64, order: &Order, room: usize) -> (bool, bool) {
        let all: Vec<(u64, u16)> = (0..200).map(|rank| (u64::from(rank), rank)).collect();
        let mut made = false;
        let found = kept.after(hash, order, room, |far| {
            made = true;
            &all[..far.min(all.len())]
        });
        if let Some(found) = found {
            assert!(found.slots.len() >= (LIMITS * room).min(all.len()));
            assert!(found.sorted.is_sorted());
        }
        (found.is_some(), made)
    }

    #[test]
    fn an_order_is_made_when_its_hash_comes_again_and_once() {
        let (mut kept, order) = (Precedences::default(), order(1));
        assert_eq!(ask(&mut kept, 7, &order, 10), (false, false));
        assert_eq!(ask(&mut kept, 7, &order, 10), (true, true));
        assert_eq!(ask(&mut kept, 7, &order, 10), (true, false));
        // Further than it goes, and back.
        assert_eq!(ask(&mut kept, 7, &order, 20), (true, true));
        assert_eq!(ask(&mut kept, 7, &order, 10), (true, false));
        // As far as there is anyone.
        assert_eq!(ask(&mut kept, 7, &order, 100), (true, true));
        assert_eq!(ask(&mut kept, 7, &order, 190), (true, false));
    }

    #[test]
    fn another_edition_of_the_fleet_has_another_order() {
        let mut kept = Precedences::default();
        ask(&mut kept, 7, &order(1), 10);
        ask(&mut kept, 7, &order(1), 10);
        assert_eq!(ask(&mut kept, 7, &order(2), 10), (false, false));
        assert_eq!(ask(&mut kept, 7, &order(2), 10), (true, true));
    }

    #[test]
    fn hashes_that_come_once_do_not_drive_out_one_that_comes_often() {
        let (mut kept, order) = (Precedences::default(), order(1));
        let heads = if cfg!(miri) {
            4
        } else {
            (SETS * WAYS / 2) as u64
        };
        let mut passing = 1_000_000;
        for round in 0..if cfg!(miri) { 12 } else { 50 } {
            for head in 0..heads {
                let asked = ask(&mut kept, head, &order, 10);
                // They find their places among the passing ones in a few rounds.
                assert!(round < 10 || asked == (true, false), "{round}, {head}");
                ask(&mut kept, passing, &order, 10);
                passing += 1;
            }
        }
        // Heads that are no longer asked for make room.
        let newcomers = [1 << 40, 1 << 41, 1 << 42, 1 << 43];
        for _ in 0..100 {
            for newcomer in newcomers {
                ask(&mut kept, newcomer, &order, 10);
            }
        }
        for newcomer in newcomers {
            assert_eq!(ask(&mut kept, newcomer, &order, 10), (true, false));
        }
    }
}
