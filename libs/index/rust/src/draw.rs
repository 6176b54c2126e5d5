//! Who stays where the limit falls within a group of equal depth.
//!
//! The smallest hashes over (worker, rank, last matched sequence hash) do: equal on all replicas, and spread over
//! the fleet. After a hash that comes again, as the last of a head that many prompts share does, the first
//! so many of all worker slots in this order are kept. Drawing is then walking them past those who are
//! not in the group; and since they are kept in the order of answers too, what was drawn need not be sorted.

use crate::roster::Order;
use crate::types::WorkerKey;

/// Orders kept, by last matched hash: those of the heads that many prompts share.
const KEPT_DRAWS: usize = 8;
/// An order is kept so many times as far as the limit that it was first asked with, and at least this far.
const KEPT_LIMITS: usize = 4;
const KEPT_AT_LEAST: usize = 64;
/// Of those kept, the ones in the order of answers; so many times the limit, since few of a head's
/// holders are in no group but this.
const SORTED_LIMITS: usize = 2;

/// Buffers for drawing, and what is kept between draws.
#[derive(Default)]
pub(crate) struct Draws {
    /// The ranks drawn, ascending.
    pub ranks: Vec<u16>,
    /// Hash and rank of each candidate.
    hashed: Vec<(u64, u16)>,
    kept: [Kept; KEPT_DRAWS],
}

/// The first worker slots in the order in which the tie-break after one hash prefers them.
#[derive(Default)]
struct Kept {
    last_hash: u64,
    /// Which order of slots it is for; 0: none.
    edition: u64,
    /// Empty until the hash is asked for a second time.
    slots: Vec<u16>,
    /// Rank and place in `slots` of the first of them, by rank.
    sorted: Vec<(u16, u16)>,
}

impl Draws {
    /// Draws `room` of a group, given as one bit a slot, which has more than that.
    pub fn draw(&mut self, order: &Order, dense: &[u64], room: usize, last_hash: u64) {
        if self.keeps(order, last_hash, room) && self.walk(order, dense, room, last_hash) {
            return;
        }
        self.hash(order, last_hash, |slot| has(dense, slot));
        if room < self.hashed.len() {
            self.hashed.select_nth_unstable(room);
            self.hashed.truncate(room);
        }
        self.ranks.clear();
        self.ranks.extend(self.hashed.iter().map(|&(_, rank)| rank));
        self.ranks.sort_unstable();
    }

    /// Whether the order after `last_hash` is at hand; it is made when asked for again.
    fn keeps(&mut self, order: &Order, last_hash: u64, room: usize) -> bool {
        let at = last_hash as usize % KEPT_DRAWS;
        let kept = &mut self.kept[at];
        if (kept.last_hash, kept.edition) != (last_hash, order.edition) {
            (kept.last_hash, kept.edition) = (last_hash, order.edition);
            kept.slots.clear();
            return false;
        }
        if kept.slots.is_empty() {
            self.keep(order, at, room);
        }
        true
    }

    fn keep(&mut self, order: &Order, at: usize, room: usize) {
        let last_hash = self.kept[at].last_hash;
        self.hash(order, last_hash, |_| true);
        let far = (KEPT_LIMITS * room).max(KEPT_AT_LEAST);
        if far < self.hashed.len() {
            self.hashed.select_nth_unstable(far);
            self.hashed.truncate(far);
        }
        self.hashed.sort_unstable();
        let Kept { slots, sorted, .. } = &mut self.kept[at];
        let drawn = self.hashed.iter().map(|&(_, rank)| rank);
        slots.extend(drawn.clone().map(|rank| order.slot[usize::from(rank)]));
        sorted.clear();
        sorted.extend(drawn.zip(0..).take(SORTED_LIMITS * room));
        sorted.sort_unstable();
    }

    /// Draws from the order that is kept; false if it does not go far enough.
    fn walk(&mut self, order: &Order, dense: &[u64], room: usize, last_hash: u64) -> bool {
        let Kept { slots, sorted, .. } = &self.kept[last_hash as usize % KEPT_DRAWS];
        let mut left = room;
        let end = slots.iter().position(|&slot| {
            left -= usize::from(has(dense, slot));
            left == 0
        });
        let Some(end) = end else { return false };
        self.ranks.clear();
        if end < sorted.len() {
            // Each is written, and the place moves on if it was wanted: no branch to guess.
            self.ranks.resize(room + 1, 0);
            let mut at = 0;
            for &(rank, turn) in sorted {
                self.ranks[at] = rank;
                let slot = order.slot[usize::from(rank)];
                at += usize::from((usize::from(turn) <= end) & has(dense, slot));
            }
            self.ranks.truncate(room);
        } else {
            let drawn = slots[..=end].iter().filter(|&&slot| has(dense, slot));
            let ranks = drawn.map(|&slot| order.rank[usize::from(slot)]);
            self.ranks.extend(ranks);
            self.ranks.sort_unstable();
        }
        true
    }

    /// Hashes all slots that have an owner and are `wanted`.
    fn hash(&mut self, order: &Order, last_hash: u64, wanted: impl Fn(u16) -> bool) {
        self.hashed.clear();
        let candidates = order.slot.iter().zip(&order.owner).zip(0..);
        self.hashed.extend(
            candidates
                .filter(|((slot, _), _)| wanted(**slot))
                .map(|((_, &owner), rank)| (tie_break(owner, last_hash), rank)),
        );
    }
}

fn has(dense: &[u64], slot: u16) -> bool {
    dense[usize::from(slot / 64)] >> (slot % 64) & 1 == 1
}

/// XXH3-64 over worker, rank and last matched sequence hash, 20 bytes little-endian: the definition
/// for inputs of 17 to 32 bytes, spelt out, since a thousand of them are wanted at a time.
fn tie_break(worker: WorkerKey, last_hash: u64) -> u64 {
    const SECRET: [u64; 4] = [
        0xbe4b_a423_396c_feb8,
        0x1cad_21f7_2c81_017c,
        0xdb97_9083_e96d_d4de,
        0x1f67_b3b7_a4a4_4072,
    ];
    const PRIME: u64 = 0x9e37_79b1_85eb_ca87;
    const AVALANCHE: u64 = 0x1656_6791_9e37_79f9;
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    let rank = u64::from(worker.dp_rank);
    let head = fold(
        worker.worker_id ^ SECRET[0],
        (rank | last_hash << 32) ^ SECRET[1],
    );
    let tail = fold(
        (worker.worker_id >> 32 | rank << 32) ^ SECRET[2],
        last_hash ^ SECRET[3],
    );
    let mixed = PRIME.wrapping_mul(20).wrapping_add(head).wrapping_add(tail);
    let mixed = (mixed ^ mixed >> 37).wrapping_mul(AVALANCHE);
    mixed ^ mixed >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_tie_break_is_the_stated_hash(worker_id: u64, dp_rank: u32, last_hash: u64) {
            let mut bytes = worker_id.to_le_bytes().to_vec();
            bytes.extend(dp_rank.to_le_bytes());
            bytes.extend(last_hash.to_le_bytes());
            let worker = WorkerKey { worker_id, dp_rank };
            prop_assert_eq!(tie_break(worker, last_hash), xxhash_rust::xxh3::xxh3_64(&bytes));
        }
    }
}
