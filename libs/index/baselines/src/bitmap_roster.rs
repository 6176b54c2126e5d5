//! Which bit of which group stands for which worker, and which of those bits count.

use rustc_hash::FxHashMap;

/// Workers a group has bits for.
pub(crate) const GROUP: usize = 256;

/// 256 bits, one for each host of a group.
pub(crate) type Hosts = [u64; GROUP / 64];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    pub group: usize,
    pub bit: u8,
}

#[derive(Default)]
pub(crate) struct GroupRoster {
    /// Hosts that are matchable now.
    pub alive: Hosts,
    /// Hosts that left and whose bits are still set in bitmaps somewhere.
    pub retired: Hosts,
    /// The worker of each bit in use.
    pub owners: Vec<u32>,
}

/// Bits are taken, retired, and free again once swept.
#[derive(Default)]
pub(crate) struct BitmapRoster {
    pub groups: Vec<GroupRoster>,
    seats: FxHashMap<u32, Seat>,
    free: Vec<Seat>,
}

impl BitmapRoster {
    pub fn seat(&self, worker: u32) -> Option<Seat> {
        self.seats.get(&worker).copied()
    }

    /// The worker's bit, a new one if it has none; `None` if a group more is needed.
    pub fn take_seat(&mut self, worker: u32) -> Option<Seat> {
        if let Some(seat) = self.seat(worker) {
            return Some(seat);
        }
        let seat = self.free.pop().or_else(|| {
            let (group, last) = self.groups.iter().enumerate().next_back()?;
            let bit = u8::try_from(last.owners.len()).ok()?;
            Some(Seat { group, bit })
        })?;
        let group = &mut self.groups[seat.group];
        let bit = usize::from(seat.bit);
        if bit == group.owners.len() {
            group.owners.push(worker);
        }
        group.owners[bit] = worker;
        set(&mut group.alive, bit);
        self.seats.insert(worker, seat);
        Some(seat)
    }

    /// The first phase of a host's removal: out of all answers, its bit not to be used.
    pub fn retire(&mut self, worker: u32) {
        if let Some(seat) = self.seats.remove(&worker) {
            let group = &mut self.groups[seat.group];
            let bit = usize::from(seat.bit);
            group.alive[bit / 64] &= !(1 << (bit % 64));
            set(&mut group.retired, bit);
        }
    }

    pub fn retired_count(&self) -> usize {
        let words = self.groups.iter().flat_map(|group| group.retired);
        words.map(|word| word.count_ones() as usize).sum()
    }

    /// The end of the second phase: the retired bits of a group are in no bitmap any more.
    pub fn swept(&mut self, group: usize) {
        let retired = std::mem::take(&mut self.groups[group].retired);
        for_each(&retired, |bit| self.free.push(Seat { group, bit }));
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
