//! The tie break: who stays where the limit falls within a group of equal depth.
//!
//! The members with the smallest hashes over (worker id, rank, last matched sequence hash) stay. So all replicas keep the
//! same ones, and different prompts spread over the fleet. Where the group is a large part of the fleet, the order of
//! preference is cached ([`crate::lookup::tie_break_cache`]); else the members are hashed.
//!
//! Positions are those in the order of answers.

use crate::bits;
use crate::lookup::tie_break_cache::{Preference, TieBreakCache};
use crate::types::{WorkerKey, WorkerSlot};
use crate::workers::view::AnswerOrder;

/// A group of which not all can stay.
#[derive(Clone, Copy)]
pub(crate) struct Tie<'a> {
    pub order: &'a AnswerOrder,
    /// The members, one bit a slot.
    pub members: &'a [u64],
    /// Number of members.
    pub size: usize,
    /// Number of members that stay; fewer than there are.
    pub stay: usize,
    /// Sequence hash of the last block that they hold.
    pub last_hash: u64,
}

/// Buffers for breaking ties, and the cache.
#[derive(Default)]
pub(crate) struct TieBreaker {
    /// Positions of those who stay, ascending.
    positions: Vec<u16>,
    /// Hash and position of each candidate.
    hashed: Vec<(u64, u16)>,
    cache: TieBreakCache,
}

impl TieBreaker {
    /// The positions of those who stay, ascending.
    pub fn positions(&mut self, tie: Tie<'_>) -> &[u16] {
        let Self {
            positions,
            hashed,
            cache,
        } = self;
        positions.clear();
        let is_cached = cached(cache, hashed, tie)
            .is_some_and(|preference| walk_positions(preference, tie, positions));
        if !is_cached {
            let stay = hash_members(hashed, tie);
            positions.extend(stay.iter().map(|&(_, position)| position));
            positions.sort_unstable();
        }
        positions
    }

    /// Appends the slots of those who stay, in no order.
    pub fn append_slots(&mut self, tie: Tie<'_>, out: &mut Vec<WorkerSlot>) {
        let Self { hashed, cache, .. } = self;
        let is_cached =
            cached(cache, hashed, tie).is_some_and(|preference| walk_slots(preference, tie, out));
        if !is_cached {
            let slot = |&(_, position): &(u64, u16)| tie.order.slot[usize::from(position)];
            out.extend(hash_members(hashed, tie).iter().map(slot));
        }
    }
}

/// The cached order of preference after the tie's hash, if it is likely to be of use.
fn cached<'a>(
    cache: &'a mut TieBreakCache,
    hashed: &mut Vec<(u64, u16)>,
    tie: Tie<'_>,
) -> Option<&'a Preference> {
    if cfg!(feature = "without-tie-break-cache")
        || !Preference::suits(tie.size, tie.stay, tie.order)
    {
        return None;
    }
    cache.get(tie.last_hash, tie.order, tie.stay, |count| {
        hashed.clear();
        let owners = tie.order.owner.iter().zip(0..);
        hashed.extend(owners.map(|(&owner, at)| (tie_break_hash(owner, tie.last_hash), at)));
        keep_smallest(hashed, count);
        hashed.sort_unstable();
        hashed
    })
}

/// Appends the slots of the members that are preferred; false, and none, if the order does not go far enough.
fn walk_slots(preference: &Preference, tie: Tie<'_>, out: &mut Vec<WorkerSlot>) -> bool {
    let begun = out.len();
    // Each is written, and the place moves on if it is a member: no branch to predict.
    out.resize(begun + tie.stay + 1, WorkerSlot::default());
    let mut at = begun;
    for &slot in &preference.slots {
        if at == begun + tie.stay {
            break;
        }
        out[at] = slot;
        at += usize::from(is_member(tie, slot));
    }
    let is_enough = at == begun + tie.stay;
    out.truncate(if is_enough { at } else { begun });
    is_enough
}

/// Writes the positions of the members that are preferred, ascending, to the empty `positions`; false, and none, if the
/// order does not go far enough.
fn walk_positions(preference: &Preference, tie: Tie<'_>, positions: &mut Vec<u16>) -> bool {
    let Tie { order, stay, .. } = tie;
    let mut left = stay;
    let end = preference.slots.iter().position(|&slot| {
        left -= usize::from(is_member(tie, slot));
        left == 0
    });
    let Some(end) = end else { return false };
    if end < preference.sorted.len() {
        positions.resize(stay + 1, 0);
        let mut at = 0;
        for &(position, turn) in &preference.sorted {
            positions[at] = position;
            let slot = order.slot[usize::from(position)];
            at += usize::from((usize::from(turn) <= end) & is_member(tie, slot));
        }
        positions.truncate(stay);
    } else {
        let staying = preference.slots[..=end]
            .iter()
            .filter(|&&slot| is_member(tie, slot));
        positions.extend(staying.map(|&slot| order.position[slot.index()]));
        positions.sort_unstable();
    }
    true
}

/// The members who stay, each after its hash.
fn hash_members<'a>(hashed: &'a mut Vec<(u64, u16)>, tie: Tie<'_>) -> &'a [(u64, u16)] {
    hashed.clear();
    for (place, &word) in (0..).zip(tie.members) {
        hashed.extend(bits::slots_of_word(place, word).map(|slot| {
            let position = tie.order.position[slot.index()];
            let owner = tie.order.owner[usize::from(position)];
            (tie_break_hash(owner, tie.last_hash), position)
        }));
    }
    keep_smallest(hashed, tie.stay);
    hashed
}

/// Leaves the `count` smallest, if there are more.
fn keep_smallest(hashed: &mut Vec<(u64, u16)>, count: usize) {
    if count < hashed.len() {
        hashed.select_nth_unstable(count);
        hashed.truncate(count);
    }
}

fn is_member(tie: Tie<'_>, slot: WorkerSlot) -> bool {
    tie.members[slot.word()] & slot.bit() != 0
}

/// XXH3-64 over worker id, rank and last matched sequence hash, 20 bytes little-endian. This is the definition for inputs
/// of 17 to 32 bytes, spelt out, since a thousand of them are needed at a time.
fn tie_break_hash(worker: WorkerKey, last_hash: u64) -> u64 {
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
        fn the_tie_break_hash_is_the_stated_one(worker_id: u64, dp_rank: u32, last_hash: u64) {
            let mut bytes = worker_id.to_le_bytes().to_vec();
            bytes.extend(dp_rank.to_le_bytes());
            bytes.extend(last_hash.to_le_bytes());
            let worker = WorkerKey { worker_id, dp_rank };
            prop_assert_eq!(tie_break_hash(worker, last_hash), xxhash_rust::xxh3::xxh3_64(&bytes));
        }
    }
}
