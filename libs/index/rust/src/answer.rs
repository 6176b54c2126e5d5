//! The answer: groups of equal depth, each in the order of workers, cut at the limit.
//!
//! The view knows the rank of every slot in the order of answers. The ranks of a small group are sorted; a larger one
//! becomes one bit a rank, of the members or, where fewer, from those who are missing, and runs of ones are
//! copied from the order as they are. `draw.rs` says who stays where the limit falls within a group.
//!
//! [`Pairs`] is the same answer without the order and the owners: worker slots as they lie in the sets.

use crate::bitmap::Ones;
use crate::draw::{Draws, Tie};
use crate::find::{Group, Search};
use crate::gather::SetRef;
use crate::ones;
use crate::roster::{Order, View};
use crate::types::WorkerKey;

/// Groups up to this size are sorted by comparison.
const SORTED_GROUP: usize = 16;
/// Words of ranks with fewer ones than this are copied one by one; others in runs between those who are missing.
const DENSE_WORD: u32 = 40;

/// The answer to a look-up: two parallel columns, deepest first, equal depths by worker and rank.
/// Keep it and hand it to the next look-up: its buffers are used again.
#[derive(Default)]
pub struct Matches {
    /// Who matches.
    pub workers: Vec<WorkerKey>,
    /// How many leading blocks each holds; never 0.
    pub depths: Vec<u32>,
    search: Search,
    ranks: Ranks,
}

/// The answer to a look-up by worker slot, which costs less to give: two parallel columns, deepest first, equal depths
/// in no order. Keep it and hand it to the next look-up: its buffers are used again.
#[derive(Default)]
pub struct Pairs {
    /// Who matches: [`crate::SlotId::number`] of the slot.
    pub slots: Vec<u16>,
    /// How many leading blocks each holds; never 0.
    pub depths: Vec<u32>,
    search: Search,
    ranks: Ranks,
}

/// Where a look-up puts what it found.
pub(crate) trait Answer {
    /// Empties the columns.
    fn clear(&mut self);

    fn search(&mut self) -> &mut Search;

    /// Writes the groups of the search to the columns; `last_hash` is the sequence hash of a depth's last block.
    fn report(&mut self, view: &View, limit: usize, last_hash: impl Fn(u32) -> u64);
}

impl Answer for Matches {
    fn clear(&mut self) {
        self.workers.clear();
        self.depths.clear();
    }

    fn search(&mut self) -> &mut Search {
        &mut self.search
    }

    fn report(&mut self, view: &View, limit: usize, last_hash: impl Fn(u32) -> u64) {
        let Self {
            workers,
            depths,
            search,
            ranks,
        } = self;
        let order = &*view.order;
        for (group, size, stay) in cut(search, limit) {
            if stay < size {
                ranks.spread(order, search, group.set);
                let (draws, tie) = ranks.tie(order, size, stay, last_hash(group.depth));
                extend_with_owners(workers, order, draws.ranks(tie));
            } else if size <= SORTED_GROUP {
                ranks.sort(order, search, group.set);
                extend_with_owners(workers, order, &ranks.sorted);
            } else {
                ranks.mark(order, search, group.set, size);
                workers.reserve(size);
                ranks.copy(order, workers);
            }
            depths.resize(workers.len(), group.depth);
        }
    }
}

impl Answer for Pairs {
    fn clear(&mut self) {
        self.slots.clear();
        self.depths.clear();
    }

    fn search(&mut self) -> &mut Search {
        &mut self.search
    }

    fn report(&mut self, view: &View, limit: usize, last_hash: impl Fn(u32) -> u64) {
        let Self {
            slots,
            depths,
            search,
            ranks,
        } = self;
        let order = &*view.order;
        for (group, size, stay) in cut(search, limit) {
            if stay < size {
                ranks.spread(order, search, group.set);
                let (draws, tie) = ranks.tie(order, size, stay, last_hash(group.depth));
                draws.slots(tie, slots);
            } else {
                match group.set {
                    SetRef::Few(few) => slots.extend(few.ids()),
                    SetRef::Wide(at) => {
                        ones::append(search.gathered.placed_words(at), size, slots);
                    }
                }
            }
            depths.resize(slots.len(), group.depth);
        }
    }
}

/// The groups that the limit leaves, with their sizes and how many of each stay.
fn cut(search: &Search, limit: usize) -> impl Iterator<Item = (Group, usize, usize)> {
    let mut room = if limit == 0 { usize::MAX } else { limit };
    search.groups.iter().map_while(move |&group| {
        if room == 0 {
            return None;
        }
        let size = search.gathered.len(group.set);
        let stay = size.min(room);
        room -= stay;
        Some((group, size, stay))
    })
}

/// Buffers for ordering one group.
#[derive(Default)]
struct Ranks {
    /// The group as one bit a worker slot.
    dense: Vec<u64>,
    /// The group as one bit a rank.
    marked: Vec<u64>,
    /// The ranks of a small group.
    sorted: Vec<u16>,
    draws: Draws,
}

fn extend_with_owners(workers: &mut Vec<WorkerKey>, order: &Order, ranks: &[u16]) {
    workers.extend(ranks.iter().map(|&rank| order.owner[usize::from(rank)]));
}

impl Ranks {
    /// The ranks of a small group, ascending.
    fn sort(&mut self, order: &Order, search: &Search, set: SetRef) {
        let ranks = &mut self.sorted;
        ranks.clear();
        let rank = |slot: u16| order.rank[usize::from(slot)];
        match set {
            SetRef::Few(few) => ranks.extend(few.ids().map(rank)),
            SetRef::Wide(at) => {
                for (place, word) in search.gathered.placed_words(at) {
                    ranks.extend(Ones(word).map(|bit| rank(place * 64 + bit)));
                }
            }
        }
        ranks.sort_unstable();
    }

    /// Spreads a group's words out, so that any slot's bit is found by its place.
    fn spread(&mut self, order: &Order, search: &Search, set: SetRef) {
        self.dense.resize(order.owned.len(), 0);
        search.gathered.spread(set, &mut self.dense);
    }

    /// Between the members of the group that was spread out.
    fn tie<'a>(
        &'a mut self,
        order: &'a Order,
        size: usize,
        room: usize,
        last_hash: u64,
    ) -> (&'a mut Draws, Tie<'a>) {
        let tie = Tie {
            order,
            dense: &self.dense,
            size,
            room,
            last_hash,
        };
        (&mut self.draws, tie)
    }

    /// Marks the ranks of a group.
    fn mark(&mut self, order: &Order, search: &Search, set: SetRef, size: usize) {
        self.spread(order, search, set);
        let count = order.owner.len();
        let most = size * 2 > count;
        self.marked.clear();
        self.marked
            .resize(count.div_ceil(64), if most { u64::MAX } else { 0 });
        if let (true, Some(last)) = (most && count % 64 > 0, self.marked.last_mut()) {
            *last = (1 << (count % 64)) - 1;
        }
        for (place, (&owned, &word)) in order.owned.iter().zip(&self.dense).enumerate() {
            for bit in Ones(if most { owned & !word } else { word }) {
                let rank = order.rank[place * 64 + usize::from(bit)];
                self.marked[usize::from(rank / 64)] ^= 1 << (rank % 64);
            }
        }
    }

    /// Appends the owners of the marked ranks, runs of them at once.
    fn copy(&self, order: &Order, workers: &mut Vec<WorkerKey>) {
        let owners = &*order.owner;
        // Where the run begins that the words so far end with, if they end with one.
        let mut run = 0;
        for (place, &word) in self.marked.iter().enumerate() {
            if word == u64::MAX {
                continue;
            }
            let here = place * 64;
            if word.count_ones() < DENSE_WORD {
                workers.extend_from_slice(&owners[run.min(here)..here]);
                workers.extend(Ones(word).map(|bit| owners[here + usize::from(bit)]));
                run = here + 64;
                continue;
            }
            // Up to each rank that is missing.
            for bit in Ones(!word) {
                let missing = (here + usize::from(bit)).min(owners.len());
                workers.extend_from_slice(&owners[run.min(missing)..missing]);
                run = missing + 1;
            }
        }
        workers.extend_from_slice(&owners[run.min(owners.len())..]);
    }
}
