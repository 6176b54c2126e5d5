//! The mirror: what the engine holds, and what of it is published. The rules are those of the
//! reference in Python (`tests/reference/mirror.py`), whose header is their specification; in short:
//!
//! - per tier a set of engine hashes, each standing for one sequence hash; a block is on a tier for
//!   as long as one of them is;
//! - published is what a prompt can reach: after every operation the union of tiers is prefix-closed;
//! - what has no known prefix or no tokens is refused and counted, never guessed;
//! - after a loss everything is suspect until stored again, and the oldest suspects go when the
//!   device tier holds more than the engine has room for.
//!
//! Memory: 28 bytes an engine hash and 40 a block, each with a number of 4 bytes in a table that is
//! at least 7/16 full: 91 bytes a live block at worst, 95 while all are suspect.

use std::num::NonZeroUsize;

use kvatlas_hashing::{chunk_hashes_into, chunk_hashes_with_items_into, sequence_step};
use kvatlas_pages::Memory;

use crate::contexts::Contexts;
use crate::entries::Entries;
use crate::model::{Batch, EngineKey, Event, Reason, Stored, TIERS, Tier, TierDigest};
use crate::said::Said;
use crate::tree::{ROOT, Tree};

/// Blocks are numbered with 32 bits, ghosts and a sentinel included.
const BLOCKS_MAX: usize = 1 << 30;

/// One engine rank's cache in one life.
#[derive(Debug)]
pub struct Mirror {
    /// Of the engine's device tier; 0: unknown.
    pub capacity_blocks: usize,
    blocks_max: usize,
    suspects_removed: u64,
    unindexable: [u64; Reason::ALL.len()],
    pub(crate) memory: Memory,
    pub(crate) tree: Tree,
    pub(crate) entries: Entries,
    pub(crate) contexts: Contexts,
    pub(crate) published: [TierDigest; TIERS.len()],
    sequences: Vec<u64>,
}

impl Mirror {
    /// Empty. `blocks_max`: engine hashes held at most; further stores are refused and counted.
    /// `memory`: where what is held lies.
    #[must_use]
    pub fn new(blocks_max: usize, memory: Memory) -> Self {
        Self {
            capacity_blocks: 0,
            blocks_max: blocks_max.min(BLOCKS_MAX),
            suspects_removed: 0,
            unindexable: [0; Reason::ALL.len()],
            tree: Tree::new_in(&memory),
            entries: Entries::new_in(&memory),
            memory,
            contexts: Contexts::new(),
            published: [TierDigest::default(); TIERS.len()],
            sequences: Vec::new(),
        }
    }

    /// Takes a message's events in order; what has changed in the published set goes to `said`.
    pub fn apply(&mut self, batch: &Batch, said: &mut Said) {
        if batch.events.len() > 1 {
            self.entries.touch(&batch.hashes);
        }
        for event in &batch.events {
            match event {
                Event::Stored(stored) => self.on_stored(stored, batch, said),
                Event::StoredByHash(hashes, tier) => {
                    for &key in &batch.hashes[hashes.clone()] {
                        self.on_stored_by_hash(key, *tier, said);
                    }
                }
                Event::Removed(hashes, tier) => {
                    for &key in &batch.hashes[hashes.clone()] {
                        if let Some(entry) = self.entries.find(key) {
                            self.drop_hash(entry, *tier, said);
                        }
                    }
                }
                Event::Cleared(None) => self.clear(said),
                Event::Cleared(Some(tier)) => self.clear_tier(*tier, said),
                Event::Unindexable {
                    reason,
                    blocks,
                    may_hide_removal,
                } => {
                    self.refuse(*reason, *blocks);
                    if *may_hide_removal {
                        self.suspect_all();
                    }
                }
            }
        }
        self.remove_excess(said);
        said.end();
    }

    /// Something was lost that may have been a removal.
    pub fn suspect_all(&mut self) {
        self.entries.suspect_all();
    }

    // --- what it can be asked ---

    /// Engine hashes held at most.
    #[must_use]
    pub(crate) const fn blocks_max(&self) -> usize {
        self.blocks_max
    }

    /// Engine hashes held, published or not, over all tiers.
    #[must_use]
    pub fn held_blocks(&self) -> usize {
        self.entries.held_anywhere()
    }

    /// Engine hashes whose removal may have been lost.
    #[must_use]
    pub fn suspect_blocks(&self) -> usize {
        self.entries.suspects()
    }

    /// Suspects removed since the engine had no room for them.
    #[must_use]
    pub fn suspects_removed(&self) -> u64 {
        self.suspects_removed
    }

    /// Blocks refused, by the number of the reason; an event that names no blocks counts as one.
    #[must_use]
    pub fn unindexable(&self) -> &[u64] {
        &self.unindexable
    }

    /// Sequence hashes held below a gap, and so not published. Walks the whole mirror.
    #[must_use]
    pub fn unreachable_blocks(&self) -> usize {
        let each = self.tree.each_held();
        each.filter(|node| !self.tree.is_published(*node)).count()
    }

    /// By tier.
    #[must_use]
    pub fn digests(&self) -> [TierDigest; TIERS.len()] {
        self.published
    }

    /// Copies the published set of a tier, in no order.
    #[must_use]
    pub fn snapshot(&self, tier: Tier) -> Vec<u64> {
        let blocks = self.published[tier as usize].blocks as usize;
        let mut sequences = Vec::with_capacity(blocks);
        if blocks > 0 {
            let published = self
                .tree
                .each_held()
                .filter(|&node| self.tree.is_published(node) && self.tree.is_on(node, tier));
            sequences.extend(published.map(|node| self.tree.sequence(node)));
        }
        sequences
    }

    /// Bytes on the heap, links included; adapters' and salts' names left out.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.tree.memory_bytes()
            + self.entries.memory_bytes()
            + self.contexts.memory_bytes()
            + self.sequences.capacity() * size_of::<u64>()
    }

    // --- stores ---

    fn on_stored(&mut self, event: &Stored, batch: &Batch, said: &mut Said) {
        let blocks = event.hashes.len();
        let (lora_name, cache_salt) = (event.lora_name.as_deref(), event.cache_salt.as_deref());
        let (above, context) = match event.parent {
            None => (None, self.contexts.intern(lora_name, cache_salt)),
            Some(parent) => {
                let Some(entry) = self.entries.find(parent) else {
                    return self.refuse(Reason::UnknownParent, blocks);
                };
                let parent = self.entries.node(entry);
                let context = self.tree.context(parent);
                if !self.contexts.agrees(context, lora_name, cache_salt) {
                    return self.refuse(Reason::ConflictingPrefix, blocks);
                }
                self.contexts.share(context); // until the end: the parent may go meanwhile
                (Some((parent, self.tree.sequence(parent))), context)
            }
        };
        let mut sequences = std::mem::take(&mut self.sequences);
        self.hash(
            event,
            batch,
            context,
            above.map(|(_, sequence)| sequence),
            &mut sequences,
        );
        self.hold_chain(
            event,
            &batch.hashes[event.hashes.clone()],
            &sequences,
            above,
            context,
            said,
        );
        self.sequences = sequences;
        self.contexts.release(context);
    }

    /// Writes the sequence hashes of a stored chain, continued from its parent's.
    fn hash(
        &self,
        event: &Stored,
        batch: &Batch,
        context: u32,
        parent: Option<u64>,
        sequences: &mut Vec<u64>,
    ) {
        let tokens = &batch.tokens[event.tokens.clone()];
        sequences.clear();
        sequences.resize(event.hashes.len(), 0);
        let Some(size) = tokens
            .len()
            .checked_div(event.hashes.len())
            .and_then(NonZeroUsize::new)
        else {
            return; // no blocks
        };
        let seed = self.contexts.seed(context);
        if event.items.is_empty() {
            chunk_hashes_into(tokens, size, seed, sequences);
        } else {
            chunk_hashes_with_items_into(tokens, size, seed, &event.items, sequences);
        }
        let mut above = parent;
        for slot in sequences {
            *slot = above.map_or(*slot, |above| sequence_step(above, *slot));
            above = Some(*slot);
        }
    }

    fn hold_chain(
        &mut self,
        event: &Stored,
        keys: &[EngineKey],
        sequences: &[u64],
        above: Option<(u32, u64)>,
        context: u32,
        said: &mut Said,
    ) {
        self.entries.touch(keys);
        self.tree.touch(sequences);
        let mut above = above;
        for (position, (&key, &sequence)) in keys.iter().zip(sequences).enumerate() {
            if self.held_blocks() >= self.blocks_max {
                return self.refuse(Reason::MirrorFull, keys.len() - position);
            }
            let entry = self.entries.find(key).and_then(|entry| {
                let stands = self.tree.sequence(self.entries.node(entry)) == sequence;
                if !stands {
                    self.forget_other(entry, said);
                }
                stands.then_some(entry)
            });
            let node = if let Some(entry) = entry {
                self.hold_known(entry, event.tier, said);
                self.entries.node(entry)
            } else {
                let node = self.tree.find_or_ghost(sequence);
                if !self.tree.is_held(node) {
                    let parent = self.parent_node(above);
                    self.contexts.share(context);
                    self.tree.attach(node, parent, context);
                }
                self.entries.add(key, node, event.tier);
                self.hold(node, event.tier, said);
                node
            };
            above = Some((node, sequence));
        }
    }

    /// The node of the block before, which may have gone since, and be a ghost now.
    fn parent_node(&mut self, above: Option<(u32, u64)>) -> u32 {
        match above {
            None => ROOT,
            Some((node, sequence)) if self.tree.is(node, sequence) => node,
            Some((_, sequence)) => self.tree.find_or_ghost(sequence),
        }
    }

    fn on_stored_by_hash(&mut self, key: EngineKey, tier: Tier, said: &mut Said) {
        match self.entries.find(key) {
            None => self.refuse(Reason::UnknownHash, 1),
            Some(entry) => {
                if !self.entries.is_on(entry, tier) && self.held_blocks() >= self.blocks_max {
                    return self.refuse(Reason::MirrorFull, 1);
                }
                self.hold_known(entry, tier, said);
            }
        }
    }

    /// A known hash was said on a tier, perhaps again.
    fn hold_known(&mut self, entry: u32, tier: Tier, said: &mut Said) {
        if self.entries.is_on(entry, tier) {
            return self.entries.clear_suspicion(entry, tier);
        }
        self.entries.add_tier(entry, tier);
        self.hold(self.entries.node(entry), tier, said);
    }

    /// Drops what a hash stood for, if it comes back as other tokens: the newer word counts.
    fn forget_other(&mut self, entry: u32, said: &mut Said) {
        self.refuse(Reason::ConflictingPrefix, 1);
        for tier in self.entries.tiers(entry) {
            self.drop_hash(entry, tier, said);
        }
    }

    fn hold(&mut self, node: u32, tier: Tier, said: &mut Said) {
        let is_new_tier = !self.tree.is_on(node, tier);
        self.tree.add_ref(node, tier);
        if self.tree.is_published(node) {
            if is_new_tier {
                self.say_stored(node, tier, said);
            }
        } else if self.tree.is_published(self.tree.parent(node)) {
            self.publish(node, said);
        }
    }

    /// Publishes a block that has become reachable, and all below it, head first.
    fn publish(&mut self, top: u32, said: &mut Said) {
        if !self.tree.has_children(top) {
            // Nearly always.
            self.tree.set_published(top, true);
            for tier in self.tree.tiers(top) {
                self.say_stored(top, tier, said);
            }
            return;
        }
        let mut on_more_tiers = Vec::new();
        let mut each = Some(top);
        while let Some(node) = each {
            self.tree.set_published(node, true);
            let mut tiers = self.tree.tiers(node);
            if let Some(first) = tiers.next() {
                self.say_stored(node, first, said);
            }
            if tiers.next().is_some() {
                on_more_tiers.push(node);
            }
            each = self.tree.next_below(top, node);
        }
        for tier in TIERS {
            for &node in &on_more_tiers {
                if self.tree.tiers(node).skip(1).any(|further| further == tier) {
                    self.say_stored(node, tier, said);
                }
            }
        }
    }

    // --- removals ---

    /// Takes one engine hash from one tier, if it is there.
    fn drop_hash(&mut self, entry: u32, tier: Tier, said: &mut Said) {
        if !self.entries.is_on(entry, tier) {
            return;
        }
        let node = self.entries.node(entry);
        self.entries.drop_tier(entry, tier);
        self.tree.drop_ref(node, tier);
        if self.tree.is_on(node, tier) {
            return;
        }
        let is_held = self.tree.is_held(node);
        if self.tree.is_published(node) {
            if !is_held {
                self.unpublish_below(node, said);
                self.tree.set_published(node, false);
            }
            self.say_removed(node, tier, said);
        }
        if !is_held {
            self.unlink(node);
        }
    }

    fn unpublish_below(&mut self, top: u32, said: &mut Said) {
        let mut below = Vec::new();
        let mut each = self.tree.next_below(top, top);
        while let Some(node) = each {
            below.push(node);
            each = self.tree.next_below(top, node);
        }
        for node in below.into_iter().rev() {
            self.tree.set_published(node, false);
            for tier in self.tree.tiers(node) {
                self.say_removed(node, tier, said);
            }
        }
    }

    pub(crate) fn unlink(&mut self, node: u32) {
        self.contexts.release(self.tree.context(node));
        self.tree.detach(node);
    }

    fn remove_excess(&mut self, said: &mut Said) {
        while self.capacity_blocks > 0
            && self.entries.held(Tier::Device) > self.capacity_blocks
            && let Some(entry) = self.entries.oldest_suspect()
        {
            self.suspects_removed += 1;
            self.drop_hash(entry, Tier::Device, said);
        }
    }

    // --- what it says ---

    fn say_stored(&mut self, node: u32, tier: Tier, said: &mut Said) {
        let sequence = self.tree.sequence(node);
        self.published[tier as usize].blocks += 1;
        self.published[tier as usize].digest ^= sequence;
        said.store(self.tree.parent_sequence(node), sequence, tier);
    }

    pub(crate) fn say_removed(&mut self, node: u32, tier: Tier, said: &mut Said) {
        let sequence = self.tree.sequence(node);
        self.published[tier as usize].blocks -= 1;
        self.published[tier as usize].digest ^= sequence;
        said.remove(sequence, tier);
    }

    fn refuse(&mut self, reason: Reason, blocks: usize) {
        self.unindexable[reason as usize] += blocks.max(1) as u64;
    }
}
