//! Who stays where the limit falls within a group of equal depth.
//!
//! The smallest hashes over (worker, rank, last matched sequence hash) do: equal on all replicas, and spread over
//! the fleet. Of a group that is a large part of the fleet, whom that order prefers is kept from draw to draw
//! (`precedence.rs`); the members of others are hashed.

use crate::bitmap::Ones;
use crate::precedence::{Precedence, Precedences};
use crate::roster::Order;
use crate::types::WorkerKey;

/// A group of which not all can stay.
#[derive(Clone, Copy)]
pub(crate) struct Tie<'a> {
    pub order: &'a Order,
    /// The group as one bit a slot.
    pub dense: &'a [u64],
    /// How many they are.
    pub size: usize,
    /// How many of them stay; fewer than there are.
    pub room: usize,
    /// Sequence hash of the last block that they hold.
    pub last_hash: u64,
}

/// Buffers for drawing, and what is kept between draws.
#[derive(Default)]
pub(crate) struct Draws {
    /// The ranks drawn, ascending.
    ranks: Vec<u16>,
    /// Hash and rank of each candidate.
    hashed: Vec<(u64, u16)>,
    precedences: Precedences,
}

impl Draws {
    /// The ranks of those who stay, ascending.
    pub fn ranks(&mut self, tie: Tie<'_>) -> &[u16] {
        let Self {
            ranks,
            hashed,
            precedences,
        } = self;
        ranks.clear();
        let walked =
            kept(precedences, hashed, tie).is_some_and(|kept| walk_ranks(kept, tie, ranks));
        if !walked {
            ranks.extend(hash(hashed, tie).iter().map(|&(_, rank)| rank));
            ranks.sort_unstable();
        }
        ranks
    }

    /// Appends the slots of those who stay, in no order.
    pub fn slots(&mut self, tie: Tie<'_>, out: &mut Vec<u16>) {
        let Self {
            hashed,
            precedences,
            ..
        } = self;
        let walked = kept(precedences, hashed, tie).is_some_and(|kept| walk_slots(kept, tie, out));
        if !walked {
            let slot = |&(_, rank): &(u64, u16)| tie.order.slot[usize::from(rank)];
            out.extend(hash(hashed, tie).iter().map(slot));
        }
    }
}

/// The order that is kept after the tie's hash, if it is likely to be of use.
fn kept<'a>(
    precedences: &'a mut Precedences,
    hashed: &mut Vec<(u64, u16)>,
    tie: Tie<'_>,
) -> Option<&'a Precedence> {
    let Tie {
        order,
        size,
        room,
        last_hash,
        ..
    } = tie;
    if !Precedence::suits(size, room, order) {
        return None;
    }
    precedences.after(last_hash, order, room, |count| {
        hashed.clear();
        let owners = order.owner.iter().zip(0..);
        hashed.extend(owners.map(|(&owner, rank)| (tie_break(owner, last_hash), rank)));
        keep_smallest(hashed, count);
        hashed.sort_unstable();
        hashed
    })
}

/// Appends the slots that the order prefers; false, and none, if it does not go far enough.
fn walk_slots(kept: &Precedence, tie: Tie<'_>, out: &mut Vec<u16>) -> bool {
    let begun = out.len();
    // Each is written, and the place moves on if it was wanted: no branch to guess.
    out.resize(begun + tie.room + 1, 0);
    let mut at = begun;
    for &slot in &kept.slots {
        if at == begun + tie.room {
            break;
        }
        out[at] = slot;
        at += usize::from(has(tie.dense, slot));
    }
    let is_enough = at == begun + tie.room;
    out.truncate(if is_enough { at } else { begun });
    is_enough
}

/// Writes the ranks that the order prefers, ascending, to the empty `ranks`; false, and none, if it does not go far
/// enough.
fn walk_ranks(kept: &Precedence, tie: Tie<'_>, ranks: &mut Vec<u16>) -> bool {
    let Tie {
        order, dense, room, ..
    } = tie;
    let mut left = room;
    let end = kept.slots.iter().position(|&slot| {
        left -= usize::from(has(dense, slot));
        left == 0
    });
    let Some(end) = end else { return false };
    if end < kept.sorted.len() {
        ranks.resize(room + 1, 0);
        let mut at = 0;
        for &(rank, turn) in &kept.sorted {
            ranks[at] = rank;
            let slot = order.slot[usize::from(rank)];
            at += usize::from((usize::from(turn) <= end) & has(dense, slot));
        }
        ranks.truncate(room);
    } else {
        let drawn = kept.slots[..=end].iter().filter(|&&slot| has(dense, slot));
        ranks.extend(drawn.map(|&slot| order.rank[usize::from(slot)]));
        ranks.sort_unstable();
    }
    true
}

/// Those of the members who stay, each after its hash.
fn hash<'a>(hashed: &'a mut Vec<(u64, u16)>, tie: Tie<'_>) -> &'a [(u64, u16)] {
    hashed.clear();
    for (place, &word) in tie.dense.iter().enumerate() {
        hashed.extend(Ones(word).map(|bit| {
            let rank = tie.order.rank[place * 64 + usize::from(bit)];
            let owner = tie.order.owner[usize::from(rank)];
            (tie_break(owner, tie.last_hash), rank)
        }));
    }
    keep_smallest(hashed, tie.room);
    hashed
}

/// Leaves the `count` smallest, if there are more.
fn keep_smallest(hashed: &mut Vec<(u64, u16)>, count: usize) {
    if count < hashed.len() {
        hashed.select_nth_unstable(count);
        hashed.truncate(count);
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
