//! Engine hashes: which block each stands for, on which tiers, and whether that is still sure.
//!
//! ```text
//! entry, 28 bytes: key x 16 | node | held_at | held, a bit per tier | suspect, a bit per tier
//! ```
//!
//! One hash stands for one block on all tiers, since a hash that comes back as other tokens is
//! dropped from all of them first. `held_at` numbers the arrivals on the device tier: the oldest
//! suspects are what an engine without room for them has evicted.

use hashbrown::HashTable;
use kvatlas_pages::Memory;

use crate::ahead::touch;
use crate::model::{EngineKey, TIERS, Tier};
use crate::slab::{Slab, Slot};

/// Key halves in words of 32 bits: the entry needs no padding to 8 then.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: [u32; 4],
    node: u32,
    held_at: u32,
    held: u8,
    suspect: u8,
}

impl Entry {
    fn key(&self) -> EngineKey {
        let [a, b, c, d] = self.key.map(u64::from);
        EngineKey {
            high: a << 32 | b,
            low: c << 32 | d,
        }
    }
}

impl Slot for Entry {
    fn link(&self) -> u32 {
        self.node
    }

    fn set_link(&mut self, next: u32) {
        self.node = next;
        self.held = 0;
        self.suspect = 0;
    }
}

/// An entry, as it is kept over a restart.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub key: EngineKey,
    pub node: u32,
    pub held_at: u32,
    /// A bit per tier.
    pub held: u8,
    /// A bit per tier, of those held.
    pub suspect: u8,
}

/// See the module.
#[derive(Debug)]
pub struct Entries {
    entries: Slab<Entry>,
    by_key: HashTable<u32, Memory>,
    held: [usize; TIERS.len()],
    suspects: [usize; TIERS.len()],
    arrivals: u32,
    /// The suspects of the device tier, oldest first, from `next_suspect` on. What is none any more
    /// is passed over: an entry that became a suspect again did so in a rebuilt queue.
    queue: Vec<u32>,
    next_suspect: usize,
}

impl Entries {
    pub fn new_in(memory: &Memory) -> Self {
        Self {
            entries: Slab::new_in(memory.clone()),
            by_key: HashTable::new_in(memory.clone()),
            held: [0; TIERS.len()],
            suspects: [0; TIERS.len()],
            arrivals: 0,
            queue: Vec::new(),
            next_suspect: 0,
        }
    }

    #[inline]
    pub fn find(&self, key: EngineKey) -> Option<u32> {
        let entries = &self.entries;
        self.by_key
            .find(key.table_hash(), |&id| entries.get(id).key() == key)
            .copied()
    }

    /// Brings the places of these hashes in the table into the cache.
    pub fn touch(&self, keys: &[EngineKey]) {
        touch(&self.by_key, keys.iter().map(|key| key.table_hash()));
    }

    pub fn node(&self, entry: u32) -> u32 {
        self.entries.get(entry).node
    }

    pub fn is_on(&self, entry: u32, tier: Tier) -> bool {
        self.entries.get(entry).held & bit(tier) != 0
    }

    /// The tiers it is on.
    pub fn tiers(&self, entry: u32) -> impl Iterator<Item = Tier> + use<> {
        let held = self.entries.get(entry).held;
        TIERS.into_iter().filter(move |tier| held & bit(*tier) != 0)
    }

    /// Hashes held on a tier.
    pub fn held(&self, tier: Tier) -> usize {
        self.held[tier as usize]
    }

    /// Hashes held, over all tiers.
    pub fn held_anywhere(&self) -> usize {
        self.held.iter().sum()
    }

    /// Suspects, over all tiers.
    pub fn suspects(&self) -> usize {
        self.suspects.iter().sum()
    }

    /// A new hash stands for `node` on `tier`.
    pub fn add(&mut self, key: EngineKey, node: u32, tier: Tier) {
        let id = self.insert(Row {
            key,
            node,
            held_at: 0,
            held: 0,
            suspect: 0,
        });
        self.add_tier(id, tier);
    }

    fn insert(&mut self, row: Row) -> u32 {
        let key = row.key;
        let halves = [key.high >> 32, key.high, key.low >> 32, key.low];
        let id = self.entries.insert(Entry {
            key: halves.map(|half| half as u32),
            node: row.node,
            held_at: row.held_at,
            held: row.held,
            suspect: row.suspect,
        });
        let entries = &self.entries;
        self.by_key.insert_unique(key.table_hash(), id, |&id| {
            entries.get(id).key().table_hash()
        });
        id
    }

    // --- as rows ---

    /// All of them, in no order.
    pub fn rows(&self) -> impl Iterator<Item = (u32, Row)> {
        let all = self.entries.ids().map(|id| (id, self.entries.get(id)));
        let used = all.filter(|(_, entry)| entry.held != 0);
        used.map(|(id, entry)| {
            let row = Row {
                key: entry.key(),
                node: entry.node,
                held_at: entry.held_at,
                held: entry.held,
                suspect: entry.suspect,
            };
            (id, row)
        })
    }

    /// All entry numbers are below.
    pub fn slots(&self) -> usize {
        self.entries.ids().len()
    }

    /// What the next arrival on the device tier gets as its `held_at`.
    pub const fn arrivals(&self) -> u32 {
        self.arrivals
    }

    /// The suspects of the device tier, oldest first.
    pub fn suspects_by_age(&self) -> impl Iterator<Item = u32> {
        let queue = self.queue.iter().skip(self.next_suspect).copied();
        queue.filter(|id| self.is_device_suspect(*id))
    }

    /// Puts in a row whose key is new and that is on some tier.
    pub fn restore(&mut self, row: Row) -> u32 {
        for tier in TIERS {
            self.held[tier as usize] += usize::from(row.held & bit(tier) != 0);
            self.suspects[tier as usize] += usize::from(row.suspect & bit(tier) != 0);
        }
        self.insert(row)
    }

    /// Sets what `arrivals` and `suspects_by_age` gave; false: these are not the suspects. Each
    /// entry may be queued once.
    pub fn restore_suspects(&mut self, arrivals: u32, queue: Vec<u32>) -> bool {
        let whole = queue.len() == self.suspects[Tier::Device as usize]
            && queue.iter().all(|id| self.is_device_suspect(*id));
        self.arrivals = arrivals;
        self.queue = queue;
        self.next_suspect = 0;
        whole
    }

    fn is_device_suspect(&self, entry: u32) -> bool {
        self.entries.get(entry).suspect & bit(Tier::Device) != 0
    }

    /// A known hash is on one tier more.
    pub fn add_tier(&mut self, entry: u32, tier: Tier) {
        let own = self.entries.get_mut(entry);
        own.held |= bit(tier);
        if tier == Tier::Device {
            own.held_at = self.arrivals;
            self.arrivals = self.arrivals.wrapping_add(1);
        }
        self.held[tier as usize] += 1;
    }

    /// It was said again: no suspect any more.
    pub fn clear_suspicion(&mut self, entry: u32, tier: Tier) {
        let own = self.entries.get_mut(entry);
        if own.suspect & bit(tier) != 0 {
            own.suspect &= !bit(tier);
            self.suspects[tier as usize] -= 1;
        }
    }

    /// It has left a tier that it was on; the last one takes the entry along.
    pub fn drop_tier(&mut self, entry: u32, tier: Tier) {
        self.clear_suspicion(entry, tier);
        let own = self.entries.get_mut(entry);
        own.held &= !bit(tier);
        self.held[tier as usize] -= 1;
        if own.held == 0 {
            let hash = own.key().table_hash();
            if let Ok(found) = self.by_key.find_entry(hash, |&id| id == entry) {
                found.remove();
            }
            self.entries.remove(entry);
        }
    }

    /// All hashes of a tier have left it.
    pub fn drop_all(&mut self, tier: Tier) {
        for id in self.entries.ids() {
            if self.is_on(id, tier) {
                self.drop_tier(id, tier);
            }
        }
    }

    /// Everything that is held is suspect from now on; earlier suspects stay the older ones.
    pub fn suspect_all(&mut self) {
        if self.suspects == self.held {
            return;
        }
        let mut queue: Vec<u32> = self.queue.split_off(self.next_suspect);
        let device = bit(Tier::Device);
        queue.retain(|id| self.entries.get(*id).suspect & device != 0);
        let older = queue.len();
        queue.extend(self.entries.ids().filter(|id| {
            let entry = self.entries.get(*id);
            entry.held & !entry.suspect & device != 0
        }));
        let arrivals = self.arrivals;
        // Arrivals count modulo 2^32: the age is the distance back from now.
        queue[older..].sort_unstable_by_key(|id| {
            std::cmp::Reverse(arrivals.wrapping_sub(self.entries.get(*id).held_at))
        });
        queue.shrink_to_fit();
        self.queue = queue;
        self.next_suspect = 0;
        for id in self.entries.ids() {
            let entry = self.entries.get_mut(id);
            entry.suspect = entry.held;
        }
        self.suspects = self.held;
    }

    /// The oldest suspect of the device tier.
    pub fn oldest_suspect(&mut self) -> Option<u32> {
        while let Some(&id) = self.queue.get(self.next_suspect) {
            if self.entries.get(id).suspect & bit(Tier::Device) != 0 {
                return Some(id);
            }
            self.next_suspect += 1;
        }
        self.queue = Vec::new();
        self.next_suspect = 0;
        None
    }

    /// Bytes on the heap.
    pub fn memory_bytes(&self) -> usize {
        self.entries.memory_bytes()
            + self.by_key.allocation_size()
            + self.queue.capacity() * size_of::<u32>()
    }
}

const fn bit(tier: Tier) -> u8 {
    1 << tier as u8
}

const _: () = assert!(size_of::<Entry>() == 28);
