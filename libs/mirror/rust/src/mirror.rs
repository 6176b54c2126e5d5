//! The mirror: the blocks that an engine holds, and the part of them that is published.
//!
//! The rules (specified by `tests/reference/mirror.py`):
//!
//! - Each tier has a set of engine hashes, and each hash stands for one sequence hash. A block is on a
//!   tier for as long as one of its hashes is. It is a set, not a count: engines announce a block twice
//!   and remove it once (cache hits reported in full).
//! - A block is published if a prompt can reach it: it begins a prompt, or its parent is published.
//!   So after every event the union of all tiers is prefix-closed, which makes a look-up by depth
//!   exact. Removing a block from its last tier unpublishes its descendants, tail first; they stay
//!   held, and are published again, head first, when the gap is filled.
//! - A block with an unknown parent has no known prefix, and a hash without tokens that was never
//!   announced has no tokens. Both are refused and counted, never guessed. Adapter and salt belong to
//!   a prompt, so a block takes its parent's.
//! - After a loss in the engine's stream a removal may be missing, so everything held is suspect until
//!   it is stored again. When the device tier holds more than the engine has room for, the oldest
//!   suspects are removed.
//!
//! Memory: 28 bytes an engine hash and 40 a block, each with a number of 4 bytes in a table that is
//! at least 7/16 full: 91 bytes a live block at worst, 95 while all are suspect.

use std::num::NonZeroUsize;

use kvatlas_engines::{EngineHash, Event, EventBatch, RefusalReason, Stored, Tier};
use kvatlas_hashing::{chunk_hashes_into, chunk_hashes_with_items_into, sequence_step};
use kvatlas_pages::Memory;
pub use kvatlas_types::TierDigest;

use crate::pending::PendingEvents;
use crate::tables::block_tree::{BlockTree, ROOT};
use crate::tables::engine_hashes::EngineHashes;
use crate::tables::prompt_contexts::PromptContexts;

/// Blocks have numbers of 32 bits; placeholders and a sentinel need some.
const BLOCKS_MAX: usize = 1 << 30;

/// One engine rank's cache, from one start of the engine to the next.
#[derive(Debug)]
pub struct Mirror {
    /// The size of the engine's device tier, in blocks; 0: unknown.
    pub capacity_blocks: usize,
    blocks_max: usize,
    suspects_removed: u64,
    unindexable: [u64; RefusalReason::ALL.len()],
    pub(crate) memory: Memory,
    pub(crate) tree: BlockTree,
    pub(crate) engine_hashes: EngineHashes,
    pub(crate) contexts: PromptContexts,
    pub(crate) published: [TierDigest; Tier::COUNT],
    sequences: Vec<u64>,
}

impl Mirror {
    /// Empty. `blocks_max`: the largest number of engine hashes held; further stores are refused and
    /// counted. `memory`: the allocator of the tables.
    #[must_use]
    pub fn new(blocks_max: usize, memory: Memory) -> Self {
        Self {
            capacity_blocks: 0,
            blocks_max: blocks_max.min(BLOCKS_MAX),
            suspects_removed: 0,
            unindexable: [0; RefusalReason::ALL.len()],
            tree: BlockTree::new_in(&memory),
            engine_hashes: EngineHashes::new_in(&memory),
            memory,
            contexts: PromptContexts::new(),
            published: [TierDigest::default(); Tier::COUNT],
            sequences: Vec::new(),
        }
    }

    /// Applies a message's events in order; appends the changes of the published set to `pending`.
    pub fn apply(&mut self, batch: &EventBatch, pending: &mut PendingEvents) {
        if batch.events.len() > 1 {
            self.engine_hashes.prefetch(&batch.hashes);
        }
        for event in &batch.events {
            match event {
                Event::Stored(stored) => self.on_stored(stored, batch, pending),
                Event::StoredByHash(hashes, tier) => {
                    for &hash in &batch.hashes[hashes.clone()] {
                        self.on_stored_by_hash(hash, *tier, pending);
                    }
                }
                Event::Removed(hashes, tier) => {
                    for &hash in &batch.hashes[hashes.clone()] {
                        if let Some(entry) = self.engine_hashes.find(hash) {
                            self.drop_hash(entry, *tier, pending);
                        }
                    }
                }
                Event::Cleared(None) => self.clear(pending),
                Event::Cleared(Some(tier)) => self.clear_tier(*tier, pending),
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
        self.remove_excess(pending);
        pending.end_message();
    }

    /// Makes every block suspect: a message was lost that may have been a removal.
    pub fn suspect_all(&mut self) {
        self.engine_hashes.suspect_all();
    }

    // --- queries ---

    /// The largest number of engine hashes held.
    #[must_use]
    pub(crate) const fn blocks_max(&self) -> usize {
        self.blocks_max
    }

    /// The number of engine hashes held, published or not, over all tiers.
    #[must_use]
    pub fn held_blocks(&self) -> usize {
        self.engine_hashes.held_anywhere()
    }

    /// The number of engine hashes whose removal may have been lost.
    #[must_use]
    pub fn suspect_blocks(&self) -> usize {
        self.engine_hashes.suspects()
    }

    /// The number of suspects removed because the engine had no room for them.
    #[must_use]
    pub fn suspects_removed(&self) -> u64 {
        self.suspects_removed
    }

    /// The number of blocks refused, by [`RefusalReason`]; an event that names no blocks counts as one.
    #[must_use]
    pub fn unindexable(&self) -> &[u64] {
        &self.unindexable
    }

    /// The number of sequence hashes held below a gap, and so not published. Walks the whole mirror.
    #[must_use]
    pub fn unreachable_blocks(&self) -> usize {
        let each = self.tree.each_held();
        each.filter(|node| !self.tree.is_published(*node)).count()
    }

    /// The published set's digest, by tier.
    #[must_use]
    pub fn digests(&self) -> [TierDigest; Tier::COUNT] {
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

    /// Bytes on the heap, links included; names of adapters and salts are not counted.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.tree.memory_bytes()
            + self.engine_hashes.memory_bytes()
            + self.contexts.memory_bytes()
            + self.sequences.capacity() * size_of::<u64>()
    }

    // --- stores ---

    fn on_stored(&mut self, event: &Stored, batch: &EventBatch, pending: &mut PendingEvents) {
        let blocks = event.hashes.len();
        let (lora_name, cache_salt) = (event.lora_name.as_deref(), event.cache_salt.as_deref());
        let (above, context) = match event.parent {
            None => (None, self.contexts.intern(lora_name, cache_salt)),
            Some(parent) => {
                let Some(entry) = self.engine_hashes.find(parent) else {
                    return self.refuse(RefusalReason::UnknownParent, blocks);
                };
                let parent = self.engine_hashes.node(entry);
                let context = self.tree.context(parent);
                if !self.contexts.agrees(context, lora_name, cache_salt) {
                    return self.refuse(RefusalReason::ConflictingPrefix, blocks);
                }
                self.contexts.share(context); // until the end: the parent may be removed meanwhile
                (Some((parent, self.tree.sequence(parent))), context)
            }
        };
        let mut sequences = std::mem::take(&mut self.sequences);
        self.hash_chain(
            event,
            batch,
            context,
            above.map(|(_, sequence)| sequence),
            &mut sequences,
        );
        self.store_chain(
            event,
            &batch.hashes[event.hashes.clone()],
            &sequences,
            above,
            context,
            pending,
        );
        self.sequences = sequences;
        self.contexts.release(context);
    }

    /// Writes the sequence hashes of a stored chain, which continue the parent's.
    fn hash_chain(
        &self,
        event: &Stored,
        batch: &EventBatch,
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

    fn store_chain(
        &mut self,
        event: &Stored,
        hashes: &[EngineHash],
        sequences: &[u64],
        above: Option<(u32, u64)>,
        context: u32,
        pending: &mut PendingEvents,
    ) {
        self.engine_hashes.prefetch(hashes);
        self.tree.prefetch(sequences);
        let mut above = above;
        for (position, (&hash, &sequence)) in hashes.iter().zip(sequences).enumerate() {
            if self.held_blocks() >= self.blocks_max {
                return self.refuse(RefusalReason::MirrorFull, hashes.len() - position);
            }
            let entry = self.engine_hashes.find(hash).and_then(|entry| {
                let stands = self.tree.sequence(self.engine_hashes.node(entry)) == sequence;
                if !stands {
                    self.forget_other(entry, pending);
                }
                stands.then_some(entry)
            });
            let node = if let Some(entry) = entry {
                self.store_known(entry, event.tier, pending);
                self.engine_hashes.node(entry)
            } else {
                let node = self.tree.find_or_add(sequence);
                if !self.tree.is_held(node) {
                    let parent = self.parent_node(above);
                    self.contexts.share(context);
                    self.tree.attach(node, parent, context);
                }
                self.engine_hashes.add(hash, node, event.tier);
                self.hold(node, event.tier, pending);
                node
            };
            above = Some((node, sequence));
        }
    }

    /// The node of the block before. It may have been removed since, and be a placeholder now.
    fn parent_node(&mut self, above: Option<(u32, u64)>) -> u32 {
        match above {
            None => ROOT,
            Some((node, sequence)) if self.tree.is(node, sequence) => node,
            Some((_, sequence)) => self.tree.find_or_add(sequence),
        }
    }

    fn on_stored_by_hash(&mut self, hash: EngineHash, tier: Tier, pending: &mut PendingEvents) {
        match self.engine_hashes.find(hash) {
            None => self.refuse(RefusalReason::UnknownHash, 1),
            Some(entry) => {
                if !self.engine_hashes.is_on(entry, tier) && self.held_blocks() >= self.blocks_max {
                    return self.refuse(RefusalReason::MirrorFull, 1);
                }
                self.store_known(entry, tier, pending);
            }
        }
    }

    /// Stores a known hash on a tier, perhaps again.
    fn store_known(&mut self, entry: u32, tier: Tier, pending: &mut PendingEvents) {
        if self.engine_hashes.is_on(entry, tier) {
            return self.engine_hashes.clear_suspicion(entry, tier);
        }
        self.engine_hashes.add_tier(entry, tier);
        self.hold(self.engine_hashes.node(entry), tier, pending);
    }

    /// Removes a hash that the engine announces again with other tokens. The newer announcement counts.
    fn forget_other(&mut self, entry: u32, pending: &mut PendingEvents) {
        self.refuse(RefusalReason::ConflictingPrefix, 1);
        for tier in self.engine_hashes.tiers(entry) {
            self.drop_hash(entry, tier, pending);
        }
    }

    fn hold(&mut self, node: u32, tier: Tier, pending: &mut PendingEvents) {
        let is_new_tier = !self.tree.is_on(node, tier);
        self.tree.add_ref(node, tier);
        if self.tree.is_published(node) {
            if is_new_tier {
                self.emit_store(node, tier, pending);
            }
        } else if self.tree.is_published(self.tree.parent(node)) {
            self.publish(node, pending);
        }
    }

    /// Publishes a block that has become reachable, and its descendants, head first.
    fn publish(&mut self, top: u32, pending: &mut PendingEvents) {
        if !self.tree.has_children(top) {
            // The common case.
            self.tree.set_published(top, true);
            for tier in self.tree.tiers(top) {
                self.emit_store(top, tier, pending);
            }
            return;
        }
        let mut on_more_tiers = Vec::new();
        let mut each = Some(top);
        while let Some(node) = each {
            self.tree.set_published(node, true);
            let mut tiers = self.tree.tiers(node);
            if let Some(first) = tiers.next() {
                self.emit_store(node, first, pending);
            }
            if tiers.next().is_some() {
                on_more_tiers.push(node);
            }
            each = self.tree.next_below(top, node);
        }
        for tier in Tier::ALL {
            for &node in &on_more_tiers {
                if self.tree.tiers(node).skip(1).any(|further| further == tier) {
                    self.emit_store(node, tier, pending);
                }
            }
        }
    }

    // --- removals ---

    /// Removes one engine hash from one tier, if it is there.
    fn drop_hash(&mut self, entry: u32, tier: Tier, pending: &mut PendingEvents) {
        if !self.engine_hashes.is_on(entry, tier) {
            return;
        }
        let node = self.engine_hashes.node(entry);
        self.engine_hashes.drop_tier(entry, tier);
        self.tree.drop_ref(node, tier);
        if self.tree.is_on(node, tier) {
            return;
        }
        let is_held = self.tree.is_held(node);
        if self.tree.is_published(node) {
            if !is_held {
                self.unpublish_below(node, pending);
                self.tree.set_published(node, false);
            }
            self.emit_remove(node, tier, pending);
        }
        if !is_held {
            self.unlink(node);
        }
    }

    fn unpublish_below(&mut self, top: u32, pending: &mut PendingEvents) {
        let mut below = Vec::new();
        let mut each = self.tree.next_below(top, top);
        while let Some(node) = each {
            below.push(node);
            each = self.tree.next_below(top, node);
        }
        for node in below.into_iter().rev() {
            self.tree.set_published(node, false);
            for tier in self.tree.tiers(node) {
                self.emit_remove(node, tier, pending);
            }
        }
    }

    fn unlink(&mut self, node: u32) {
        self.contexts.release(self.tree.context(node));
        self.tree.detach(node);
    }

    fn remove_excess(&mut self, pending: &mut PendingEvents) {
        while self.capacity_blocks > 0
            && self.engine_hashes.held(Tier::Device) > self.capacity_blocks
            && let Some(entry) = self.engine_hashes.oldest_suspect()
        {
            self.suspects_removed += 1;
            self.drop_hash(entry, Tier::Device, pending);
        }
    }

    // --- clears ---

    fn clear(&mut self, pending: &mut PendingEvents) {
        if self.published.iter().any(|tier| tier.blocks > 0) {
            pending.push_clear(None);
        }
        self.tree = BlockTree::new_in(&self.memory);
        self.engine_hashes = EngineHashes::new_in(&self.memory);
        self.contexts = PromptContexts::new();
        self.published = [TierDigest::default(); Tier::COUNT];
    }

    /// Empties one tier. First removes the blocks that only this tier made reachable.
    fn clear_tier(&mut self, tier: Tier, pending: &mut PendingEvents) {
        let cut = self.cut_by(tier);
        // One event clears the tier, unless a block of another tier is among the cut ones. Then these
        // are removed one by one, tail first, so that the set is prefix-closed after every event.
        let one_by_one = cut.iter().any(|node| self.is_elsewhere(*node, tier));
        for &node in cut.iter().rev() {
            self.tree.set_published(node, false);
            if one_by_one {
                for each in self.tree.tiers(node) {
                    self.emit_remove(node, each, pending);
                }
            }
        }
        if self.published[tier as usize].blocks > 0 {
            pending.push_clear(Some(tier));
        }
        self.published[tier as usize] = TierDigest::default();
        self.engine_hashes.drop_all(tier);
        let there: Vec<u32> = self
            .tree
            .each_held()
            .filter(|n| self.tree.is_on(*n, tier))
            .collect();
        for node in there {
            self.tree.drop_all_refs(node, tier);
            if !self.tree.is_held(node) {
                self.unlink(node);
            }
        }
    }

    /// The published blocks that are only on this tier, and all published descendants.
    fn cut_by(&self, tier: Tier) -> Vec<u32> {
        let mut cut = Vec::new();
        let mut below: Option<u32> = None; // the topmost cut block above the walk's position
        let mut each = self.tree.next_below(ROOT, ROOT);
        while let Some(node) = each {
            // The walk meets published blocks alone: unpublished ones are below placeholders.
            if !self.is_elsewhere(node, tier) && below.is_none() {
                below = Some(node);
            }
            if below.is_some() {
                cut.push(node);
            }
            each = match below {
                None => self.tree.next_below(ROOT, node),
                Some(top) => self.tree.next_below(top, node).or_else(|| {
                    below = None;
                    self.tree.next_beside(ROOT, top)
                }),
            };
        }
        cut
    }

    fn is_elsewhere(&self, node: u32, tier: Tier) -> bool {
        self.tree.tiers(node).any(|each| each != tier)
    }

    // --- pending events ---

    fn emit_store(&mut self, node: u32, tier: Tier, pending: &mut PendingEvents) {
        let sequence = self.tree.sequence(node);
        self.published[tier as usize].blocks += 1;
        self.published[tier as usize].digest ^= sequence;
        pending.push_store(self.tree.parent_sequence(node), sequence, tier);
    }

    fn emit_remove(&mut self, node: u32, tier: Tier, pending: &mut PendingEvents) {
        let sequence = self.tree.sequence(node);
        self.published[tier as usize].blocks -= 1;
        self.published[tier as usize].digest ^= sequence;
        pending.push_remove(sequence, tier);
    }

    fn refuse(&mut self, reason: RefusalReason, blocks: usize) {
        self.unindexable[reason as usize] += blocks.max(1) as u64;
    }
}
