//! Engine hashes: the block that each stands for, the tiers it is on, and whether it is suspect.
//!
//! ```text
//! entry, 28 bytes: hash x 16 | node | held_at | held, a bit per tier | suspect, a bit per tier
//! ```
//!
//! A hash stands for the same block on all tiers, since a hash that comes back as other tokens is first
//! dropped from all of them. `held_at` numbers the arrivals on the device tier: an engine without room
//! has evicted the oldest suspects.

use hashbrown::HashTable;
use kvatlas_engines::{EngineHash, Tier};
use kvatlas_pages::Memory;

use super::prefetch::prefetch;
use super::slab::{Slab, SlabItem};

/// The hash is in words of 32 bits, so that the entry needs no padding.
#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: [u32; 4],
    node: u32,
    held_at: u32,
    held: u8,
    suspect: u8,
}

impl Entry {
    fn hash(&self) -> EngineHash {
        let [a, b, c, d] = self.hash.map(u64::from);
        EngineHash {
            high: a << 32 | b,
            low: c << 32 | d,
        }
    }
}

impl SlabItem for Entry {
    fn link(&self) -> u32 {
        self.node
    }

    fn set_link(&mut self, next: u32) {
        self.node = next;
        self.held = 0;
        self.suspect = 0;
    }
}

/// An entry, as a checkpoint holds it.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub hash: EngineHash,
    pub node: u32,
    pub held_at: u32,
    /// A bit for each tier that it is on.
    pub held: u8,
    /// A bit for each tier that it is a suspect of; a part of `held`.
    pub suspect: u8,
}

/// All engine hashes of one mirror; see the module.
#[derive(Debug)]
pub struct EngineHashes {
    entries: Slab<Entry>,
    by_hash: HashTable<u32, Memory>,
    held: [usize; Tier::COUNT],
    suspects: [usize; Tier::COUNT],
    arrivals: u32,
    /// The suspects of the device tier, oldest first, from `next_suspect` on. Entries that are suspect
    /// no more are skipped; one that became a suspect again did so in a rebuilt queue.
    queue: Vec<u32>,
    next_suspect: usize,
}

impl EngineHashes {
    pub fn new_in(memory: &Memory) -> Self {
        Self {
            entries: Slab::new_in(memory.clone()),
            by_hash: HashTable::new_in(memory.clone()),
            held: [0; Tier::COUNT],
            suspects: [0; Tier::COUNT],
            arrivals: 0,
            queue: Vec::new(),
            next_suspect: 0,
        }
    }

    #[inline]
    pub fn find(&self, hash: EngineHash) -> Option<u32> {
        let entries = &self.entries;
        self.by_hash
            .find(bucket(hash), |&id| entries.get(id).hash() == hash)
            .copied()
    }

    /// Brings the buckets of these hashes into the cache.
    pub fn prefetch(&self, hashes: &[EngineHash]) {
        prefetch(&self.by_hash, hashes.iter().map(|&hash| bucket(hash)));
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
        Tier::ALL
            .into_iter()
            .filter(move |tier| held & bit(*tier) != 0)
    }

    /// The number of hashes held on a tier.
    pub fn held(&self, tier: Tier) -> usize {
        self.held[tier as usize]
    }

    /// The number of hashes held, over all tiers.
    pub fn held_anywhere(&self) -> usize {
        self.held.iter().sum()
    }

    /// The number of suspects, over all tiers.
    pub fn suspects(&self) -> usize {
        self.suspects.iter().sum()
    }

    /// Adds a new hash, which stands for `node`, on `tier`.
    pub fn add(&mut self, hash: EngineHash, node: u32, tier: Tier) {
        let id = self.insert(Row {
            hash,
            node,
            held_at: 0,
            held: 0,
            suspect: 0,
        });
        self.add_tier(id, tier);
    }

    fn insert(&mut self, row: Row) -> u32 {
        let hash = row.hash;
        let words = [hash.high >> 32, hash.high, hash.low >> 32, hash.low];
        let id = self.entries.insert(Entry {
            hash: words.map(|word| word as u32),
            node: row.node,
            held_at: row.held_at,
            held: row.held,
            suspect: row.suspect,
        });
        let entries = &self.entries;
        self.by_hash
            .insert_unique(bucket(hash), id, |&id| bucket(entries.get(id).hash()));
        id
    }

    // --- checkpoints ---

    /// All entries, in no order.
    pub fn rows(&self) -> impl Iterator<Item = (u32, Row)> {
        let all = self.entries.ids().map(|id| (id, self.entries.get(id)));
        let used = all.filter(|(_, entry)| entry.held != 0);
        used.map(|(id, entry)| {
            let row = Row {
                hash: entry.hash(),
                node: entry.node,
                held_at: entry.held_at,
                held: entry.held,
                suspect: entry.suspect,
            };
            (id, row)
        })
    }

    /// An upper bound of all entry numbers.
    pub fn slots(&self) -> usize {
        self.entries.ids().len()
    }

    /// The `held_at` of the next arrival on the device tier.
    pub const fn arrivals(&self) -> u32 {
        self.arrivals
    }

    /// The suspects of the device tier, oldest first.
    pub fn suspects_by_age(&self) -> impl Iterator<Item = u32> {
        let queue = self.queue.iter().skip(self.next_suspect).copied();
        queue.filter(|id| self.is_device_suspect(*id))
    }

    /// Adds an entry whose hash is new and that is on some tier.
    pub fn restore(&mut self, row: Row) -> u32 {
        for tier in Tier::ALL {
            self.held[tier as usize] += usize::from(row.held & bit(tier) != 0);
            self.suspects[tier as usize] += usize::from(row.suspect & bit(tier) != 0);
        }
        self.insert(row)
    }

    /// Sets the values of `arrivals` and `suspects_by_age`; false: these are not the suspects. Each
    /// entry may be in the queue once.
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

    /// Adds a tier to a known hash.
    pub fn add_tier(&mut self, entry: u32, tier: Tier) {
        let own = self.entries.get_mut(entry);
        own.held |= bit(tier);
        if tier == Tier::Device {
            own.held_at = self.arrivals;
            self.arrivals = self.arrivals.wrapping_add(1);
        }
        self.held[tier as usize] += 1;
    }

    /// Ends a suspicion: the engine announced the block again.
    pub fn clear_suspicion(&mut self, entry: u32, tier: Tier) {
        let own = self.entries.get_mut(entry);
        if own.suspect & bit(tier) != 0 {
            own.suspect &= !bit(tier);
            self.suspects[tier as usize] -= 1;
        }
    }

    /// Removes a tier from a hash that is on it. The last one removes the entry.
    pub fn drop_tier(&mut self, entry: u32, tier: Tier) {
        self.clear_suspicion(entry, tier);
        let own = self.entries.get_mut(entry);
        own.held &= !bit(tier);
        self.held[tier as usize] -= 1;
        if own.held == 0 {
            let hash = bucket(own.hash());
            if let Ok(found) = self.by_hash.find_entry(hash, |&id| id == entry) {
                found.remove();
            }
            self.entries.remove(entry);
        }
    }

    /// Removes a tier from all hashes.
    pub fn drop_all(&mut self, tier: Tier) {
        for id in self.entries.ids() {
            if self.is_on(id, tier) {
                self.drop_tier(id, tier);
            }
        }
    }

    /// Makes every entry suspect. Earlier suspects stay the older ones.
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
            + self.by_hash.allocation_size()
            + self.queue.capacity() * size_of::<u32>()
    }
}

/// The table's hash of an engine hash: small numbers are spread over all bits.
fn bucket(hash: EngineHash) -> u64 {
    let mixed = u128::from(hash.low ^ hash.high ^ 0x9E37_79B9_7F4A_7C15)
        * u128::from(0xD6E8_FEB8_6659_FD93_u64);
    mixed as u64 ^ (mixed >> 64) as u64
}

const fn bit(tier: Tier) -> u8 {
    1 << tier as u8
}

const _: () = assert!(size_of::<Entry>() == 28);
