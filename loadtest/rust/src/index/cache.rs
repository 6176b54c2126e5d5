//! A mock engine's cache: blocks by how long ago they were used, in 24 bytes each.
//!
//! Nodes of a linked list in one array, found by an open table of their numbers. A stream of a thousand
//! workers touches tens of millions of blocks in such caches, so they are small and allocate only to grow.

/// No node.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node {
    hash: u64,
    older: u32,
    newer: u32,
}

/// Which blocks a worker holds, least recently used first out.
pub struct Cache {
    capacity: usize,
    nodes: Vec<Node>,
    /// Nodes that hold nothing.
    spare: Vec<u32>,
    /// Node numbers at their hash's place or behind it; a power of two, at most half full.
    places: Vec<u32>,
    len: usize,
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
            places: vec![NONE; 16],
            len: 0,
            oldest: NONE,
            newest: NONE,
        }
    }

    /// How many blocks it keeps.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether a block is there.
    pub fn contains(&self, hash: u64) -> bool {
        self.places[self.place(hash)] != NONE
    }

    /// Makes a block the most recently used one, and holds it if it did not.
    pub fn touch(&mut self, hash: u64) {
        let place = self.place(hash);
        let known = self.places[place];
        if known != NONE {
            self.unlink(known);
            self.link_newest(known);
            return;
        }
        let fresh = self.spare.pop().unwrap_or(self.nodes.len() as u32);
        let node = Node {
            hash,
            older: NONE,
            newer: NONE,
        };
        match self.nodes.get_mut(fresh as usize) {
            Some(spare) => *spare = node,
            None => self.nodes.push(node),
        }
        self.places[place] = fresh;
        self.len += 1;
        self.link_newest(fresh);
        if 2 * self.len > self.places.len() {
            self.grow();
        }
    }

    /// Takes out the oldest until no more than the capacity are left; appends them, oldest first.
    pub fn evict(&mut self, evicted: &mut Vec<u64>) {
        while self.len > self.capacity {
            let oldest = self.oldest;
            let hash = self.nodes[oldest as usize].hash;
            self.unlink(oldest);
            self.forget(hash);
            self.spare.push(oldest);
            evicted.push(hash);
        }
    }

    /// Where a hash is, or the free place where it would be put.
    fn place(&self, hash: u64) -> usize {
        let mut place = self.home(hash);
        while self.places[place] != NONE && self.nodes[self.places[place] as usize].hash != hash {
            place = (place + 1) & (self.places.len() - 1);
        }
        place
    }

    fn home(&self, hash: u64) -> usize {
        let bits = self.places.len().trailing_zeros();
        (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize
    }

    /// Frees a hash's place and moves up those behind that would not be found past the gap.
    fn forget(&mut self, hash: u64) {
        let mask = self.places.len() - 1;
        let behind = |from: usize, to: usize| to.wrapping_sub(from) & mask;
        let mut gap = self.place(hash);
        let mut next = (gap + 1) & mask;
        while self.places[next] != NONE {
            let home = self.home(self.nodes[self.places[next] as usize].hash);
            if behind(home, next) >= behind(gap, next) {
                self.places[gap] = self.places[next];
                gap = next;
            }
            next = (next + 1) & mask;
        }
        self.places[gap] = NONE;
        self.len -= 1;
    }

    fn grow(&mut self) {
        let twice = vec![NONE; 2 * self.places.len()];
        let held = std::mem::replace(&mut self.places, twice);
        for node in held.into_iter().filter(|&node| node != NONE) {
            let place = self.place(self.nodes[node as usize].hash);
            self.places[place] = node;
        }
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
