//! An engine's true cache, and the stream of events that it publishes.

use crate::rng::Rng;
use crate::tree::{Set, Tree, blocks, has};

/// Tiers in use: device and host.
pub const TIERS: usize = 2;

/// The events of one message.
pub type Message = Vec<CacheEvent>;

/// A change of an engine's cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheEvent {
    /// A block is stored; the event carries its tokens.
    Stored(usize),
    /// A block is copied to the host's memory; the event carries only its hash.
    Offloaded(usize),
    /// A block is removed from a tier.
    Removed(usize, usize),
    /// All tiers are emptied.
    Cleared,
}

/// The part of a cache that a follower of the stream can know, perhaps not from its beginning. By definition the
/// mirror publishes the reachable part of it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Cache {
    /// Blocks by tier.
    pub tiers: [Set; TIERS],
}

impl Cache {
    /// Blocks on any tier.
    #[must_use]
    pub fn held(&self) -> Set {
        self.tiers[0] | self.tiers[1]
    }

    /// Blocks that a prompt can reach from its first block, by tier.
    #[must_use]
    pub fn reachable(&self, tree: &Tree) -> [Set; TIERS] {
        let reached = tree.reachable(self.held());
        self.tiers.map(|tier| tier & reached)
    }

    /// Applies a message.
    pub fn apply_all(&mut self, message: &[CacheEvent], tree: &Tree) {
        for &event in message {
            self.apply(event, tree);
        }
    }

    /// Applies a change. A block with an unknown parent has no known prefix, and an unknown hash has no
    /// tokens.
    pub fn apply(&mut self, event: CacheEvent, tree: &Tree) {
        let known = self.held();
        match event {
            CacheEvent::Stored(block) => {
                if tree.parent(block).is_none_or(|parent| has(known, parent)) {
                    self.tiers[0] |= 1 << block;
                }
            }
            CacheEvent::Offloaded(block) => {
                if has(known, block) {
                    self.tiers[1] |= 1 << block;
                }
            }
            CacheEvent::Removed(block, tier) => self.tiers[tier] &= !(1 << block),
            CacheEvent::Cleared => self.tiers = [0; TIERS],
        }
    }
}

/// One engine.
#[derive(Debug)]
pub struct Engine {
    /// Whether it runs.
    pub is_up: bool,
    /// Number of its starts.
    pub generation: u32,
    /// All messages since its start.
    pub stream: Vec<Message>,
    /// Its true content.
    cache: Cache,
    pending: Message,
    capacity: u32,
    /// The reachable blocks, by the time from which it held them; oldest first.
    history: Vec<(u64, Set)>,
}

impl Engine {
    /// A running engine with an empty cache.
    #[must_use]
    pub fn new(rng: &mut Rng) -> Self {
        Self {
            is_up: true,
            generation: 1,
            stream: Vec::new(),
            cache: Cache::default(),
            pending: Message::new(),
            capacity: rng.between(4, 40) as u32,
            history: vec![(0, 0)],
        }
    }

    /// Serves a prompt, evicts or offloads a block, or clears the cache.
    pub fn work(&mut self, tree: &Tree, rng: &mut Rng, now_ms: u64) {
        match rng.below(20) {
            0..=11 => {
                for block in tree.prompt(rng.below(tree.len())) {
                    if !has(self.cache.tiers[0], block) {
                        self.publish(CacheEvent::Stored(block), tree, now_ms);
                    }
                }
                while self.cache.tiers[0].count_ones() > self.capacity {
                    self.evict(0, tree, rng, now_ms);
                }
            }
            12..=15 => self.evict(0, tree, rng, now_ms),
            16 => self.evict(1, tree, rng, now_ms),
            17 | 18 => {
                let only_here = self.cache.tiers[0] & !self.cache.tiers[1];
                if let Some(block) = pick(only_here, rng) {
                    self.publish(CacheEvent::Offloaded(block), tree, now_ms);
                }
            }
            _ if rng.chance(300) => self.publish(CacheEvent::Cleared, tree, now_ms),
            _ => {}
        }
        if !self.pending.is_empty() {
            self.stream.push(std::mem::take(&mut self.pending));
        }
    }

    /// Stops, and loses the cache.
    pub fn stop(&mut self, now_ms: u64) {
        self.is_up = false;
        self.forget(now_ms);
    }

    /// Starts with an empty cache.
    pub fn start(&mut self, now_ms: u64) {
        self.is_up = true;
        self.generation += 1;
        self.forget(now_ms);
    }

    /// The cache as a follower knows it that knew `known` and then applied the stream from `position` on.
    #[must_use]
    pub fn known_from(&self, mut known: Cache, position: usize, tree: &Tree) -> Cache {
        for message in self.stream.iter().skip(position) {
            known.apply_all(message, tree);
        }
        known
    }

    /// The greatest depth of a prompt that it held at any time from `since_ms` on.
    #[must_use]
    pub fn depth_since(&self, tree: &Tree, prompt: &[usize], since_ms: u64) -> usize {
        let later = self.history.partition_point(|&(at, _)| at <= since_ms);
        let from = later.saturating_sub(1);
        let depths = self.history[from..].iter();
        depths
            .map(|&(_, held)| tree.depth(prompt, held))
            .max()
            .unwrap_or(0)
    }

    fn evict(&mut self, tier: usize, tree: &Tree, rng: &mut Rng, now_ms: u64) {
        if let Some(block) = pick(self.cache.tiers[tier], rng) {
            self.publish(CacheEvent::Removed(block, tier), tree, now_ms);
        }
    }

    fn publish(&mut self, event: CacheEvent, tree: &Tree, now_ms: u64) {
        // The engine's own cache is complete; a follower's may not be.
        if let CacheEvent::Stored(block) = event {
            self.cache.tiers[0] |= 1 << block;
        } else {
            self.cache.apply(event, tree);
        }
        self.pending.push(event);
        let held = tree.reachable(self.cache.held());
        if self.history.last().is_none_or(|&(_, last)| last != held) {
            self.history.push((now_ms, held));
        }
    }

    fn forget(&mut self, now_ms: u64) {
        self.cache = Cache::default();
        self.stream.clear();
        self.history.push((now_ms, 0));
    }
}

fn pick(set: Set, rng: &mut Rng) -> Option<usize> {
    let count = set.count_ones() as usize;
    (count > 0)
        .then(|| blocks(set).nth(rng.below(count)))
        .flatten()
}
