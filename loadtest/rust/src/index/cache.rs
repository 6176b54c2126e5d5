//! A mock engine's LRU cache, with about 26 bytes per block.
//!
//! It is a linked list of nodes in one array, with a hash table of their numbers. A stream of a
//! thousand workers touches tens of millions of blocks in such caches, so they are small and allocate
//! only to grow.

use hashbrown::HashTable;

/// No node.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node {
    hash: u64,
    older: u32,
    newer: u32,
}

/// The blocks that a worker holds, in the order of their last use.
pub struct Cache {
    capacity: usize,
    nodes: Vec<Node>,
    /// Nodes without a block.
    spare: Vec<u32>,
    /// Node numbers by the hashes of their blocks.
    numbers: HashTable<u32>,
    oldest: u32,
    newest: u32,
}

impl Cache {
    /// An empty cache that keeps `capacity` blocks, fewer than 2^30.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            nodes: Vec::new(),
            spare: Vec::new(),
            numbers: HashTable::new(),
            oldest: NONE,
            newest: NONE,
        }
    }

    /// Number of blocks that it keeps.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether it holds a block.
    pub fn contains(&self, hash: u64) -> bool {
        self.find(hash).is_some()
    }

    /// Makes a block the most recently used one; adds it if it is new.
    pub fn touch(&mut self, hash: u64) {
        if let Some(known) = self.find(hash) {
            self.unlink(known);
            self.link_newest(known);
            return;
        }
        let node = Node {
            hash,
            older: NONE,
            newer: NONE,
        };
        let number = self.spare.pop().unwrap_or(self.nodes.len() as u32);
        match self.nodes.get_mut(number as usize) {
            Some(spare) => *spare = node,
            None => self.nodes.push(node),
        }
        let hash_of = |&number: &u32| self.nodes[number as usize].hash;
        self.numbers.insert_unique(hash, number, hash_of);
        self.link_newest(number);
    }

    /// Evicts the oldest blocks until no more than the capacity are left; appends them, oldest first.
    pub fn evict(&mut self, evicted: &mut Vec<u64>) {
        while self.numbers.len() > self.capacity {
            let oldest = self.oldest;
            let hash = self.nodes[oldest as usize].hash;
            self.unlink(oldest);
            if let Ok(entry) = self.numbers.find_entry(hash, |&number| number == oldest) {
                entry.remove();
            }
            self.spare.push(oldest);
            evicted.push(hash);
        }
    }

    fn find(&self, hash: u64) -> Option<u32> {
        let is_it = |&number: &u32| self.nodes[number as usize].hash == hash;
        self.numbers.find(hash, is_it).copied()
    }

    fn unlink(&mut self, node: u32) {
        let Node { older, newer, .. } = self.nodes[node as usize];
        match older {
            NONE => self.oldest = newer,
            _ => self.nodes[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            _ => self.nodes[newer as usize].older = older,
        }
    }

    fn link_newest(&mut self, node: u32) {
        let before = std::mem::replace(&mut self.newest, node);
        let links = &mut self.nodes[node as usize];
        (links.older, links.newer) = (before, NONE);
        match before {
            NONE => self.oldest = node,
            _ => self.nodes[before as usize].newer = node,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn it_evicts_as_a_plain_list_does() {
        let mut cache = Cache::new(40);
        let mut plain: VecDeque<u64> = VecDeque::new();
        let mut draw = 1u64;
        for round in 0..20_000u64 {
            draw = draw
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(round | 1);
            let hash = (draw >> 33) % 90;
            assert_eq!(cache.contains(hash), plain.contains(&hash));
            cache.touch(hash);
            plain.retain(|&held| held != hash);
            plain.push_back(hash);
            if draw % 7 == 0 {
                let mut evicted = Vec::new();
                cache.evict(&mut evicted);
                let over = plain.len().saturating_sub(40);
                assert_eq!(evicted, plain.drain(..over).collect::<Vec<_>>());
            }
        }
    }
}
