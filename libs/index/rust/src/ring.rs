//! Searches under way, first in first out.

use crate::shard_table::Search;

/// Searches that wait for memory at a time: more than a core has outstanding misses.
const IN_FLIGHT: usize = 32;
/// Searches that begin together.
pub(crate) const GROUP: usize = 8;

/// A place for each search.
pub(crate) struct Ring<'p> {
    searches: [Search<'p>; IN_FLIGHT],
    first: usize,
    end: usize,
    pushed: usize,
}

impl<'p> Ring<'p> {
    pub fn new() -> Self {
        Self {
            searches: [Search::default(); IN_FLIGHT],
            first: 0,
            end: 0,
            pushed: 0,
        }
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.first == self.end
    }

    #[inline(always)]
    pub fn has_room_for_group(&self) -> bool {
        self.end - self.first <= IN_FLIGHT - GROUP
    }

    /// How many were pushed so far.
    #[inline(always)]
    pub fn pushed(&self) -> usize {
        self.pushed
    }

    #[inline(always)]
    pub fn push(&mut self, mut search: Search<'p>) {
        search.order = self.pushed as u32;
        self.pushed += 1;
        self.searches[self.end % IN_FLIGHT] = search;
        self.end += 1;
    }

    /// The last ones that were pushed.
    #[inline(always)]
    pub fn last(&self, count: usize) -> impl Iterator<Item = &Search<'p>> {
        (self.end - count..self.end).map(|at| &self.searches[at % IN_FLIGHT])
    }

    /// The search whose turn it is.
    #[inline(always)]
    pub fn front(&mut self) -> Option<&mut Search<'p>> {
        (self.first < self.end).then(|| &mut self.searches[self.first % IN_FLIGHT])
    }

    /// Whether another search is for the same hash as the one whose turn it is.
    pub fn has_equal_to_front(&self) -> bool {
        let hash = |at: usize| self.searches[at % IN_FLIGHT].hash;
        (self.first + 1..self.end).any(|at| hash(at) == hash(self.first))
    }

    #[inline(always)]
    pub fn drop_front(&mut self) {
        self.first += 1;
    }

    #[inline(always)]
    pub fn front_to_back(&mut self) {
        self.searches[self.end % IN_FLIGHT] = self.searches[self.first % IN_FLIGHT];
        self.first += 1;
        self.end += 1;
    }

    /// Takes those of one shard out, in the order in which they were pushed first.
    pub fn take_out(&mut self, shard: usize) -> impl Iterator<Item = Search<'p>> + use<'p> {
        let mut taken = [Search::default(); IN_FLIGHT];
        let mut count = 0;
        let mut kept = self.first;
        for at in self.first..self.end {
            let search = self.searches[at % IN_FLIGHT];
            if search.shard() == shard {
                taken[count] = search;
                count += 1;
            } else {
                self.searches[kept % IN_FLIGHT] = search;
                kept += 1;
            }
        }
        self.end = kept;
        taken[..count].sort_unstable_by_key(|search| search.order);
        taken.into_iter().take(count)
    }
}
