//! The answer: groups of equal depth, each in the order of workers, cut at the limit.
//!
//! The view knows the rank of every slot in the order of answers. A small group's ranks are sorted; of a
//! large one the members are picked out of all slots in order, or, where few are missing, all are copied
//! but those.
//! Where the limit falls within a group, the smallest hashes over (worker, rank, last matched sequence
//! hash) stay: equal on all replicas, and spread over the fleet. After a hash that comes again, as
//! the last of a shared head does, the order of these is kept, so that drawing is walking it.

use crate::bitmap::Ones;
use crate::find::Scratch;
use crate::gather::SetRef;
use crate::roster::{Order, View};
use crate::types::WorkerKey;

/// Groups up to this size are sorted by comparison.
const SORTED_GROUP: usize = 24;
/// A group that lacks at most so many of all worker slots is copied from their order, in spans between those.
const FEW_MISSING: usize = 24;
/// Orders of tie-breaks kept, by last matched hash: those of the heads that many prompts share.
const KEPT_DRAWS: usize = 8;

/// The answer to a look-up: two parallel columns, deepest first, equal depths by worker and rank.
/// Keep it and hand it to the next look-up: its buffers are used again.
#[derive(Default)]
pub struct Matches {
    /// Who matches.
    pub workers: Vec<WorkerKey>,
    /// How many leading blocks each holds; never 0.
    pub depths: Vec<u32>,
    pub(crate) scratch: Scratch,
    ranks: Ranks,
}

impl Matches {
    pub(crate) fn clear(&mut self) {
        self.workers.clear();
        self.depths.clear();
    }
}

/// Buffers for ordering one group.
#[derive(Default)]
struct Ranks {
    ranks: Vec<u16>,
    /// The group as one bit a worker slot.
    dense: Vec<u64>,
    draws: Vec<(u64, u16)>,
    kept: [KeptDraw; KEPT_DRAWS],
}

/// All worker slots in the order in which the tie-break after one hash prefers them.
#[derive(Default)]
struct KeptDraw {
    last_hash: u64,
    /// Which order of slots it is for; 0: none.
    edition: u64,
    /// Empty until the hash is asked for a second time.
    slots: Vec<u16>,
}

/// Writes the groups of `out.scratch` to the columns of `out`; `last_hash` is the sequence hash of a
/// depth's last block.
pub(crate) fn report(view: &View, limit: usize, last_hash: impl Fn(u32) -> u64, out: &mut Matches) {
    let Matches {
        workers,
        depths,
        scratch,
        ranks,
    } = out;
    let mut room = if limit == 0 { usize::MAX } else { limit };
    for group in &scratch.groups {
        let size = scratch.gathered.len(group.set);
        let order = &*view.order;
        if size <= room && size > SORTED_GROUP {
            ranks.expand(order, scratch, group.set);
            ranks.copy(order, size, workers);
        } else {
            if size <= room {
                ranks.order(order, scratch, group.set);
            } else {
                ranks.draw(order, scratch, group.set, room, last_hash(group.depth));
            }
            let owners = ranks
                .ranks
                .iter()
                .map(|&rank| order.owner[usize::from(rank)]);
            workers.extend(owners);
        }
        depths.resize(workers.len(), group.depth);
        room -= size.min(room);
        if room == 0 {
            break;
        }
    }
}

impl Ranks {
    /// The ranks of a small group, ascending.
    fn order(&mut self, order: &Order, scratch: &Scratch, set: SetRef) {
        let slots = scratch.gathered.slots(set);
        self.ranks.clear();
        self.ranks
            .extend(slots.map(|slot| order.rank[usize::from(slot)]));
        self.ranks.sort_unstable();
    }

    /// Spreads a group's words out, so that any slot's bit is found by its place.
    fn expand(&mut self, order: &Order, scratch: &Scratch, set: SetRef) {
        self.dense.clear();
        self.dense.resize(order.owned.len(), 0);
        for (place, word) in scratch.gathered.placed_words(set) {
            self.dense[place] = word;
        }
    }

    /// Appends the owners of the expanded group, of `size`, in order.
    fn copy(&mut self, order: &Order, size: usize, workers: &mut Vec<WorkerKey>) {
        if size + FEW_MISSING >= order.owner.len() {
            self.ranks.clear();
            for (place, (&owned, &word)) in order.owned.iter().zip(&self.dense).enumerate() {
                let missing = Ones(owned & !word).map(|bit| (place * 64) as u16 + bit);
                self.ranks
                    .extend(missing.map(|slot| order.rank[usize::from(slot)]));
            }
            self.ranks.sort_unstable();
            let mut from = 0;
            for &rank in &self.ranks {
                workers.extend_from_slice(&order.owner[from..usize::from(rank)]);
                from = usize::from(rank) + 1;
            }
            workers.extend_from_slice(&order.owner[from..]);
            return;
        }
        // Every slot in order is written, and the place moves on if it was wanted: no branch to guess.
        let mut at = workers.len();
        let end = at + size;
        let filler = WorkerKey {
            worker_id: 0,
            dp_rank: 0,
        };
        workers.resize(end + 1, filler);
        for (&slot, &owner) in order.slot.iter().zip(&order.owner) {
            workers[at] = owner;
            at += usize::from(has(&self.dense, slot));
        }
        workers.truncate(end);
    }

    /// The ranks of the `room` members that the tie-break keeps, ascending.
    fn draw(&mut self, order: &Order, scratch: &Scratch, set: SetRef, room: usize, last_hash: u64) {
        self.ranks.clear();
        if self.keeps(order, last_hash) {
            self.expand(order, scratch, set);
            let kept = &self.kept[last_hash as usize % KEPT_DRAWS].slots;
            let drawn = kept
                .iter()
                .filter(|&&slot| has(&self.dense, slot))
                .take(room);
            let ranks = drawn.map(|&slot| order.rank[usize::from(slot)]);
            self.ranks.extend(ranks);
        } else {
            self.draws.clear();
            self.draws.extend(scratch.gathered.slots(set).map(|slot| {
                let rank = order.rank[usize::from(slot)];
                (tie_break(order.owner[usize::from(rank)], last_hash), rank)
            }));
            if room < self.draws.len() {
                self.draws.select_nth_unstable(room);
                self.draws.truncate(room);
            }
            self.ranks.extend(self.draws.iter().map(|&(_, rank)| rank));
        }
        self.ranks.sort_unstable();
    }

    /// Whether the order of draws after `last_hash` is at hand; it is made when asked for again.
    fn keeps(&mut self, order: &Order, last_hash: u64) -> bool {
        let kept = &mut self.kept[last_hash as usize % KEPT_DRAWS];
        if (kept.last_hash, kept.edition) != (last_hash, order.edition) {
            (kept.last_hash, kept.edition) = (last_hash, order.edition);
            kept.slots.clear();
            return false;
        }
        if kept.slots.is_empty() {
            kept.slots.extend_from_slice(&order.slot);
            kept.slots.sort_by_cached_key(|&slot| {
                let rank = order.rank[usize::from(slot)];
                (tie_break(order.owner[usize::from(rank)], last_hash), rank)
            });
        }
        true
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
