//! The answer of a look-up: groups of equal depth, each in the order of workers, cut at the limit.
//!
//! The view knows the position of every slot in the order of answers. The positions of a small group are sorted. A larger
//! group becomes one bit a position: members set bits, or, if they are the majority, missing workers clear them. Runs of set
//! bits are then copied from the order as they are. [`crate::lookup::tie_break`] says who stays where the limit falls
//! within a group.
//!
//! [`Pairs`] is the same answer without the order and the owners: worker slots as they lie in the sets.

use crate::bits::{self, SetBits};
use crate::lookup::holders::HolderSet;
use crate::lookup::prefix_search::{DepthGroup, PrefixSearch};
use crate::lookup::tie_break::{Tie, TieBreaker};
use crate::types::{WorkerKey, WorkerSlot};
use crate::workers::view::{AnswerOrder, WorkerView};

/// Groups up to this size are sorted by comparison.
const MAX_SORTED_GROUP: usize = 16;
/// Words of positions with fewer bits than this are copied one by one; others in runs between the missing ones.
const DENSE_WORD: u32 = 40;

/// The answer to a look-up: two parallel columns, deepest first, equal depths by worker and rank. Keep it and pass it to the
/// next look-up, which reuses its buffers.
#[derive(Default)]
pub struct Matches {
    /// Workers that match.
    pub workers: Vec<WorkerKey>,
    /// Number of leading blocks that each holds; never 0.
    pub depths: Vec<u32>,
    search: PrefixSearch,
    positions: Positions,
}

/// The answer to a look-up by worker slot, which costs less: two parallel columns, deepest first, equal depths in no order.
/// Keep it and pass it to the next look-up, which reuses its buffers.
#[derive(Default)]
pub struct Pairs {
    /// Slots of the workers that match, see [`crate::SlotId::slot`].
    pub slots: Vec<WorkerSlot>,
    /// Number of leading blocks that each holds; never 0.
    pub depths: Vec<u32>,
    search: PrefixSearch,
    positions: Positions,
}

/// The form in which a look-up gives its result.
pub(crate) trait Answer {
    /// Empties the columns.
    fn clear(&mut self);

    fn search(&mut self) -> &mut PrefixSearch;

    /// Writes the groups of the search to the columns; `last_hash` is the sequence hash of a depth's last block.
    fn write(&mut self, view: &WorkerView, limit: usize, last_hash: impl Fn(u32) -> u64);
}

impl Answer for Matches {
    fn clear(&mut self) {
        self.workers.clear();
        self.depths.clear();
    }

    fn search(&mut self) -> &mut PrefixSearch {
        &mut self.search
    }

    fn write(&mut self, view: &WorkerView, limit: usize, last_hash: impl Fn(u32) -> u64) {
        let Self {
            workers,
            depths,
            search,
            positions,
        } = self;
        let order = &*view.order;
        for (group, size, stay) in cut(search, limit) {
            if stay < size {
                positions.write_bitmap(order, search, group.set);
                let (breaker, tie) = positions.tie(order, size, stay, last_hash(group.depth));
                extend_with_owners(workers, order, breaker.positions(tie));
            } else if size <= MAX_SORTED_GROUP {
                positions.sort(order, search, group.set);
                extend_with_owners(workers, order, &positions.sorted);
            } else {
                positions.mark(order, search, group.set, size);
                workers.reserve(size);
                positions.copy_marked(order, workers);
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

    fn search(&mut self) -> &mut PrefixSearch {
        &mut self.search
    }

    fn write(&mut self, view: &WorkerView, limit: usize, last_hash: impl Fn(u32) -> u64) {
        let Self {
            slots,
            depths,
            search,
            positions,
        } = self;
        let order = &*view.order;
        for (group, size, stay) in cut(search, limit) {
            if stay < size {
                positions.write_bitmap(order, search, group.set);
                let (breaker, tie) = positions.tie(order, size, stay, last_hash(group.depth));
                breaker.append_slots(tie, slots);
            } else {
                match group.set {
                    HolderSet::Inline(inline) => slots.extend(inline.slots()),
                    HolderSet::Words(at) => {
                        bits::append_slots(search.holders.placed_words(at), size, slots);
                    }
                }
            }
            depths.resize(slots.len(), group.depth);
        }
    }
}

/// The groups that the limit leaves, with their sizes and how many of each stay.
fn cut(search: &PrefixSearch, limit: usize) -> impl Iterator<Item = (DepthGroup, usize, usize)> {
    let mut left = if limit == 0 { usize::MAX } else { limit };
    search.groups.iter().map_while(move |&group| {
        if left == 0 {
            return None;
        }
        let size = search.holders.len(group.set);
        let stay = size.min(left);
        left -= stay;
        Some((group, size, stay))
    })
}

/// Buffers for ordering one group by positions in the order of answers.
#[derive(Default)]
struct Positions {
    /// The group as one bit a worker slot.
    bitmap: Vec<u64>,
    /// The group as one bit a position.
    marked: Vec<u64>,
    /// The positions of a small group.
    sorted: Vec<u16>,
    breaker: TieBreaker,
}

fn extend_with_owners(workers: &mut Vec<WorkerKey>, order: &AnswerOrder, positions: &[u16]) {
    let owners = positions.iter().map(|&at| order.owner[usize::from(at)]);
    workers.extend(owners);
}

impl Positions {
    /// Sorts the positions of a small group.
    fn sort(&mut self, order: &AnswerOrder, search: &PrefixSearch, set: HolderSet) {
        let positions = &mut self.sorted;
        positions.clear();
        let position = |slot: WorkerSlot| order.position[slot.index()];
        match set {
            HolderSet::Inline(inline) => positions.extend(inline.slots().map(position)),
            HolderSet::Words(at) => {
                for (place, word) in search.holders.placed_words(at) {
                    positions.extend(bits::slots_of_word(place, word).map(position));
                }
            }
        }
        positions.sort_unstable();
    }

    /// Writes the group as one bit a slot, so that any slot's bit is found by its number.
    fn write_bitmap(&mut self, order: &AnswerOrder, search: &PrefixSearch, set: HolderSet) {
        self.bitmap.resize(order.owned.len(), 0);
        search.holders.write_bitmap(set, &mut self.bitmap);
    }

    /// The tie between the members of the group that was written as a bitmap, of whom `stay` stay.
    fn tie<'a>(
        &'a mut self,
        order: &'a AnswerOrder,
        size: usize,
        stay: usize,
        last_hash: u64,
    ) -> (&'a mut TieBreaker, Tie<'a>) {
        let tie = Tie {
            order,
            members: &self.bitmap,
            size,
            stay,
            last_hash,
        };
        (&mut self.breaker, tie)
    }

    /// Marks the positions of a group.
    fn mark(&mut self, order: &AnswerOrder, search: &PrefixSearch, set: HolderSet, size: usize) {
        self.write_bitmap(order, search, set);
        let count = order.owner.len();
        let is_majority = size * 2 > count;
        self.marked.clear();
        self.marked
            .resize(count.div_ceil(64), if is_majority { u64::MAX } else { 0 });
        if let (true, Some(last)) = (is_majority && count % 64 > 0, self.marked.last_mut()) {
            *last = (1 << (count % 64)) - 1;
        }
        for (place, (&owned, &word)) in (0..).zip(order.owned.iter().zip(&self.bitmap)) {
            let toggled = if is_majority { owned & !word } else { word };
            for slot in bits::slots_of_word(place, toggled) {
                let position = order.position[slot.index()];
                self.marked[usize::from(position / 64)] ^= 1 << (position % 64);
            }
        }
    }

    /// Appends the owners of the marked positions, runs of them at once.
    fn copy_marked(&self, order: &AnswerOrder, workers: &mut Vec<WorkerKey>) {
        let owners = &*order.owner;
        // Where the run begins with which the words so far end, if they end with one.
        let mut run = 0;
        for (place, &word) in self.marked.iter().enumerate() {
            if word == u64::MAX {
                continue;
            }
            let here = place * 64;
            if word.count_ones() < DENSE_WORD {
                workers.extend_from_slice(&owners[run.min(here)..here]);
                workers.extend(SetBits(word).map(|bit| owners[here + usize::from(bit)]));
                run = here + 64;
                continue;
            }
            // Up to each position that is missing.
            for bit in SetBits(!word) {
                let missing = (here + usize::from(bit)).min(owners.len());
                workers.extend_from_slice(&owners[run.min(missing)..missing]);
                run = missing + 1;
            }
        }
        workers.extend_from_slice(&owners[run.min(owners.len())..]);
    }
}
