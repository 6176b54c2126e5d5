//! Slots of hosts: the bit and the group that stand for each worker, and the bits that count.

use rustc_hash::FxHashMap;

/// Workers a group has bits for.
pub(crate) const GROUP: usize = 256;

/// 256 bits, one for each host of a group.
pub(crate) type Hosts = [u64; GROUP / 64];

/// A bit in the bitmaps of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostSlot {
    pub group: usize,
    pub bit: u8,
}

#[derive(Default)]
pub(crate) struct HostGroup {
    /// Hosts that are matchable now.
    pub alive: Hosts,
    /// Hosts that were removed, and whose bits may still be set in bitmaps.
    pub retired: Hosts,
    /// The worker of each bit in use.
    pub owners: Vec<u32>,
}

/// The slots of all hosts: assigned, then retired, then free again once swept.
#[derive(Default)]
pub(crate) struct HostSlots {
    pub groups: Vec<HostGroup>,
    slots: FxHashMap<u32, HostSlot>,
    free: Vec<HostSlot>,
}

impl HostSlots {
    pub fn slot_of(&self, worker: u32) -> Option<HostSlot> {
        self.slots.get(&worker).copied()
    }

    /// The worker's slot, a new one if it has none; `None` if another group is needed.
    pub fn assign(&mut self, worker: u32) -> Option<HostSlot> {
        if let Some(slot) = self.slot_of(worker) {
            return Some(slot);
        }
        let slot = self.free.pop().or_else(|| {
            let (group, last) = self.groups.iter().enumerate().next_back()?;
            let bit = u8::try_from(last.owners.len()).ok()?;
            Some(HostSlot { group, bit })
        })?;
        let group = &mut self.groups[slot.group];
        let bit = usize::from(slot.bit);
        if bit == group.owners.len() {
            group.owners.push(worker);
        }
        group.owners[bit] = worker;
        set(&mut group.alive, bit);
        self.slots.insert(worker, slot);
        Some(slot)
    }

    /// The first phase of a host's removal: no answer names it, and its bit is not reused.
    pub fn retire(&mut self, worker: u32) {
        if let Some(slot) = self.slots.remove(&worker) {
            let group = &mut self.groups[slot.group];
            let bit = usize::from(slot.bit);
            group.alive[bit / 64] &= !(1 << (bit % 64));
            set(&mut group.retired, bit);
        }
    }

    pub fn retired_count(&self) -> usize {
        let words = self.groups.iter().flat_map(|group| group.retired);
        words.map(|word| word.count_ones() as usize).sum()
    }

    /// The end of the second phase: no bitmap has the retired bits of the group any more.
    pub fn free_swept(&mut self, group: usize) {
        let retired = std::mem::take(&mut self.groups[group].retired);
        for_each(&retired, |bit| self.free.push(HostSlot { group, bit }));
    }
}

pub(crate) fn set(hosts: &mut Hosts, bit: usize) {
    hosts[bit / 64] |= 1 << (bit % 64);
}

pub(crate) fn for_each(hosts: &Hosts, mut each: impl FnMut(u8)) {
    for (place, &word) in hosts.iter().enumerate() {
        let mut rest = word;
        while rest != 0 {
            // Below 256: four words of 64 bits.
            each((place as u32 * 64 + rest.trailing_zeros()) as u8);
            rest &= rest - 1;
        }
    }
}
