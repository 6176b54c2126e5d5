//! The answer: groups of equal depth, each in the order of workers, cut at the limit.
//!
//! The view knows the rank of every slot in the order of answers, so a group is ordered by small
//! integers: sorted when it is small, else by marking ranks in a bitmap and reading that off.
//! Where the limit falls within a group, the smallest hashes over (worker, rank, last matched sequence
//! hash) stay: equal on all replicas, and spread over the fleet.

use xxhash_rust::xxh3::xxh3_64;

use crate::bitmap::Ones;
use crate::find::Scratch;
use crate::gather::SetRef;
use crate::roster::View;
use crate::types::WorkerKey;

/// Groups up to this size are sorted by comparison.
const SORTED_GROUP: usize = 24;

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
    marks: Vec<u64>,
    draws: Vec<(u64, u16)>,
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
        if size <= room {
            ranks.order(view, scratch, group.set, size);
        } else {
            ranks.draw(view, scratch, group.set, room, last_hash(group.depth));
        }
        workers.extend(
            ranks
                .ranks
                .iter()
                .map(|&rank| view.order.owner[usize::from(rank)]),
        );
        depths.resize(workers.len(), group.depth);
        room -= ranks.ranks.len();
        if room == 0 {
            break;
        }
    }
}

impl Ranks {
    /// The ranks of a group of `size`, ascending.
    fn order(&mut self, view: &View, scratch: &Scratch, set: SetRef, size: usize) {
        let order = &view.order;
        let ranks = scratch
            .gathered
            .slots(set)
            .map(|slot| order.rank[usize::from(slot)]);
        self.ranks.clear();
        if size <= SORTED_GROUP {
            self.ranks.extend(ranks);
            self.ranks.sort_unstable();
            return;
        }
        self.marks.clear();
        self.marks.resize(order.owner.len().div_ceil(64), 0);
        for rank in ranks {
            self.marks[usize::from(rank / 64)] |= 1 << (rank % 64);
        }
        for (place, &marks) in self.marks.iter().enumerate() {
            self.ranks
                .extend(Ones(marks).map(|bit| (place * 64) as u16 + bit));
        }
    }

    /// The ranks of the `room` members that the tie-break keeps, ascending.
    fn draw(&mut self, view: &View, scratch: &Scratch, set: SetRef, room: usize, last_hash: u64) {
        let order = &view.order;
        self.draws.clear();
        self.draws.extend(scratch.gathered.slots(set).map(|slot| {
            let rank = order.rank[usize::from(slot)];
            (tie_break(order.owner[usize::from(rank)], last_hash), rank)
        }));
        if room < self.draws.len() {
            self.draws.select_nth_unstable(room);
            self.draws.truncate(room);
        }
        self.ranks.clear();
        self.ranks.extend(self.draws.iter().map(|&(_, rank)| rank));
        self.ranks.sort_unstable();
    }
}

fn tie_break(worker: WorkerKey, last_hash: u64) -> u64 {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&worker.worker_id.to_le_bytes());
    bytes[8..12].copy_from_slice(&worker.dp_rank.to_le_bytes());
    bytes[12..].copy_from_slice(&last_hash.to_le_bytes());
    xxh3_64(&bytes)
}
