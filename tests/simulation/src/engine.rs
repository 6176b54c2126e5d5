//! An engine's cache, as it truly is, and the stream in which it tells its publisher.

use crate::rng::Rng;
use crate::tree::{Set, Tree, blocks, has};

/// Tiers in use: device and host.
pub const TIERS: usize = 2;

/// What an engine tells at once.
pub type Message = Vec<Told>;

/// What an engine tells of its cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// A block with its tokens.
    Stored(usize),
    /// A block came to the host's memory; only its hash is told.
    Offloaded(usize),
    /// A block left a tier.
    Removed(usize, usize),
    /// Everything left.
    Cleared,
}

/// What somebody who heard the stream, perhaps not from its beginning, can know of a cache: what the
/// mirror is defined to publish is what of this can be reached.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Cache {
    /// By tier.
    pub tiers: [Set; TIERS],
}

impl Cache {
    /// On any tier.
    #[must_use]
    pub fn held(&self) -> Set {
        self.tiers[0] | self.tiers[1]
    }

    /// What of it can be reached, by tier.
    #[must_use]
    pub fn reachable(&self, tree: &Tree) -> [Set; TIERS] {
        let reached = tree.reachable(self.held());
        self.tiers.map(|tier| tier & reached)
    }

    /// Hear a message.
    pub fn hear_all(&mut self, message: &[Told], tree: &Tree) {
        for &told in message {
            self.hear(told, tree);
        }
    }

    /// Hear of a change. A block under a parent that was never heard of has no known prefix, and a
    /// hash that was never heard of has no tokens.
    pub fn hear(&mut self, told: Told, tree: &Tree) {
        let known = self.held();
        match told {
            Told::Stored(block) => {
                if tree.parent(block).is_none_or(|parent| has(known, parent)) {
                    self.tiers[0] |= 1 << block;
                }
            }
            Told::Offloaded(block) => {
                if has(known, block) {
                    self.tiers[1] |= 1 << block;
                }
            }
            Told::Removed(block, tier) => self.tiers[tier] &= !(1 << block),
            Told::Cleared => self.tiers = [0; TIERS],
        }
    }
}

/// One engine.
#[derive(Debug)]
pub struct Engine {
    /// It runs.
    pub up: bool,
    /// How often it started.
    pub generation: u32,
    /// All it told since it started.
    pub stream: Vec<Message>,
    /// What it holds.
    cache: Cache,
    saying: Message,
    capacity: u32,
    /// Since when it held what could be matched, oldest first.
    history: Vec<(u64, Set)>,
}

impl Engine {
    /// Running and empty.
    #[must_use]
    pub fn new(rng: &mut Rng) -> Self {
        Self {
            up: true,
            generation: 1,
            stream: Vec::new(),
            cache: Cache::default(),
            saying: Message::new(),
            capacity: rng.between(4, 40) as u32,
            history: vec![(0, 0)],
        }
    }

    /// A prompt is served, or memory is needed elsewhere.
    pub fn work(&mut self, tree: &Tree, rng: &mut Rng, now_ms: u64) {
        match rng.below(20) {
            0..=11 => {
                for block in tree.prompt(rng.below(tree.len())) {
                    if !has(self.cache.tiers[0], block) {
                        self.tell(Told::Stored(block), tree, now_ms);
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
                    self.tell(Told::Offloaded(block), tree, now_ms);
                }
            }
            _ if rng.chance(300) => self.tell(Told::Cleared, tree, now_ms),
            _ => {}
        }
        if !self.saying.is_empty() {
            self.stream.push(std::mem::take(&mut self.saying));
        }
    }

    /// It stops, and what it held is gone.
    pub fn stop(&mut self, now_ms: u64) {
        self.up = false;
        self.forget(now_ms);
    }

    /// It starts, empty.
    pub fn start(&mut self, now_ms: u64) {
        self.up = true;
        self.generation += 1;
        self.forget(now_ms);
    }

    /// What somebody knows of it who knew `kept` and then heard all from this place of its stream on.
    #[must_use]
    pub fn known_from(&self, kept: Cache, place: usize, tree: &Tree) -> Cache {
        let mut known = kept;
        for message in self.stream.iter().skip(place) {
            known.hear_all(message, tree);
        }
        known
    }

    /// The most of a prompt that it held at once, at any time from `since_ms` on.
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
            self.tell(Told::Removed(block, tier), tree, now_ms);
        }
    }

    fn tell(&mut self, told: Told, tree: &Tree, now_ms: u64) {
        // A cache always hears of itself in full; who follows it may not.
        if let Told::Stored(block) = told {
            self.cache.tiers[0] |= 1 << block;
        } else {
            self.cache.hear(told, tree);
        }
        self.saying.push(told);
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
