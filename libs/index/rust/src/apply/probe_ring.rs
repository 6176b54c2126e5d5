//! A ring buffer of the probes in flight, first in, first out.

use crate::table::probe::Probe;

/// Probes that wait for memory at a time: more than a core has outstanding cache misses.
const IN_FLIGHT: usize = 32;
/// Probes that begin together, so that their page walks overlap.
pub(crate) const GROUP: usize = if cfg!(any(
    feature = "without-groups",
    feature = "without-probe-ring"
)) {
    1
} else {
    8
};

pub(crate) struct ProbeRing<'p> {
    probes: [Probe<'p>; IN_FLIGHT],
    first: usize,
    end: usize,
    pushed: usize,
}

impl<'p> ProbeRing<'p> {
    pub fn new() -> Self {
        Self {
            probes: [Probe::default(); IN_FLIGHT],
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
        if cfg!(feature = "without-probe-ring") {
            return self.is_empty();
        }
        self.end - self.first <= IN_FLIGHT - GROUP
    }

    /// Number of probes pushed so far.
    #[inline(always)]
    pub fn pushed(&self) -> usize {
        self.pushed
    }

    #[inline(always)]
    pub fn push(&mut self, mut probe: Probe<'p>) {
        probe.order = self.pushed as u32;
        self.pushed += 1;
        self.probes[self.end % IN_FLIGHT] = probe;
        self.end += 1;
    }

    /// The probes that were pushed last.
    #[inline(always)]
    pub fn last(&self, count: usize) -> impl Iterator<Item = &Probe<'p>> {
        (self.end - count..self.end).map(|at| &self.probes[at % IN_FLIGHT])
    }

    /// The probe whose turn it is.
    #[inline(always)]
    pub fn front(&mut self) -> Option<&mut Probe<'p>> {
        (self.first < self.end).then(|| &mut self.probes[self.first % IN_FLIGHT])
    }

    /// Whether another probe is for the same hash as the one whose turn it is.
    pub fn has_equal_to_front(&self) -> bool {
        let hash = |at: usize| self.probes[at % IN_FLIGHT].hash;
        (self.first + 1..self.end).any(|at| hash(at) == hash(self.first))
    }

    #[inline(always)]
    pub fn drop_front(&mut self) {
        self.first += 1;
    }

    #[inline(always)]
    pub fn front_to_back(&mut self) {
        self.probes[self.end % IN_FLIGHT] = self.probes[self.first % IN_FLIGHT];
        self.first += 1;
        self.end += 1;
    }

    /// Removes and returns the probes of one shard, in the order in which they were first pushed.
    pub fn take_shard(&mut self, shard: usize) -> impl Iterator<Item = Probe<'p>> + use<'p> {
        let mut taken = [Probe::default(); IN_FLIGHT];
        let mut count = 0;
        let mut kept = self.first;
        for at in self.first..self.end {
            let probe = self.probes[at % IN_FLIGHT];
            if probe.shard() == shard {
                taken[count] = probe;
                count += 1;
            } else {
                self.probes[kept % IN_FLIGHT] = probe;
                kept += 1;
            }
        }
        self.end = kept;
        taken[..count].sort_unstable_by_key(|probe| probe.order);
        taken.into_iter().take(count)
    }
}
