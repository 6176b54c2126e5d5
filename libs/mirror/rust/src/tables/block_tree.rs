//! Blocks by sequence hash, each linked to its parent, its children and its siblings.
//!
//! ```text
//! node, 40 bytes: sequence | parent first_child last_child next prev context+published | refs x 4
//! ```
//!
//! A node is *held* while an engine hash stands for it on any tier; `refs` counts them per tier. A
//! parent that is not held but has held children is a *placeholder*: a node without refs, by which
//! those children are found when the parent is stored again. A placeholder has no parent, so a walk
//! from a prompt's first block never crosses a gap. All first blocks are children of one root, which
//! stands for "no parent" and counts as published.

use std::collections::HashMap;

use hashbrown::HashTable;
use kvatlas_engines::Tier;
use kvatlas_pages::Memory;

use super::prefetch::prefetch;
use super::prompt_contexts::PLAIN;
use super::slab::{NONE, Slab, SlabItem};

/// The parent of first blocks.
pub const ROOT: u32 = 0;

const PUBLISHED: u32 = 1 << 31;

#[derive(Clone, Copy, Debug)]
struct Node {
    sequence: u64,
    parent: u32,
    first_child: u32,
    last_child: u32,
    next: u32,
    prev: u32,
    context: u32,
    refs: [u16; Tier::COUNT],
}

impl Node {
    const fn placeholder(sequence: u64) -> Self {
        Self {
            sequence,
            parent: NONE,
            first_child: NONE,
            last_child: NONE,
            next: NONE,
            prev: NONE,
            context: PLAIN,
            refs: [0; Tier::COUNT],
        }
    }

    fn is_held(&self) -> bool {
        self.refs != [0; Tier::COUNT]
    }
}

impl SlabItem for Node {
    fn link(&self) -> u32 {
        self.next
    }

    fn set_link(&mut self, next: u32) {
        *self = Self::placeholder(0); // no refs and no children: no block to `is`
        self.next = next;
    }
}

/// All blocks of one mirror; see the module.
#[derive(Debug)]
pub struct BlockTree {
    nodes: Slab<Node>,
    by_sequence: HashTable<u32, Memory>,
    /// References that do not fit into `refs`, by node and tier. With speculative decoding a block
    /// has an engine hash for each token that may follow it.
    more_refs: HashMap<(u32, u8), u64>,
}

impl BlockTree {
    pub fn new_in(memory: &Memory) -> Self {
        let mut nodes = Slab::new_in(memory.clone());
        let mut root = Node::placeholder(0);
        root.context |= PUBLISHED;
        nodes.insert(root);
        Self {
            nodes,
            by_sequence: HashTable::new_in(memory.clone()),
            more_refs: HashMap::new(),
        }
    }

    // --- blocks ---

    pub fn sequence(&self, node: u32) -> u64 {
        self.nodes.get(node).sequence
    }

    /// The parent's sequence hash; `None`: the block begins a prompt.
    pub fn parent_sequence(&self, node: u32) -> Option<u64> {
        let parent = self.nodes.get(node).parent;
        (parent != ROOT).then(|| self.sequence(parent))
    }

    pub fn parent(&self, node: u32) -> u32 {
        self.nodes.get(node).parent
    }

    pub fn context(&self, node: u32) -> u32 {
        self.nodes.get(node).context & !PUBLISHED
    }

    pub fn is_published(&self, node: u32) -> bool {
        self.nodes.get(node).context & PUBLISHED != 0
    }

    pub fn set_published(&mut self, node: u32, published: bool) {
        let node = self.nodes.get_mut(node);
        node.context = node.context & !PUBLISHED | if published { PUBLISHED } else { 0 };
    }

    pub fn is_held(&self, node: u32) -> bool {
        self.nodes.get(node).is_held()
    }

    pub fn is_on(&self, node: u32, tier: Tier) -> bool {
        self.nodes.get(node).refs[tier as usize] > 0
    }

    /// The tiers that the block is on, from near to far.
    pub fn tiers(&self, node: u32) -> impl Iterator<Item = Tier> + use<> {
        let refs = self.nodes.get(node).refs;
        Tier::ALL
            .into_iter()
            .filter(move |tier| refs[*tier as usize] > 0)
    }

    /// All held blocks.
    pub fn each_held(&self) -> impl Iterator<Item = u32> {
        self.nodes.ids().filter(|id| self.is_held(*id))
    }

    /// Whether `node` still is the block of that sequence hash.
    pub fn is(&self, node: u32, sequence: u64) -> bool {
        let found = self.nodes.get(node);
        found.sequence == sequence && (found.is_held() || found.first_child != NONE)
    }

    /// Brings the buckets of these sequence hashes into the cache.
    pub fn prefetch(&self, sequences: &[u64]) {
        prefetch(&self.by_sequence, sequences.iter().copied());
    }

    // --- links ---

    /// The node of this sequence hash; a new placeholder if there is none.
    pub fn find_or_add(&mut self, sequence: u64) -> u32 {
        let nodes = &self.nodes;
        let found = self
            .by_sequence
            .find(sequence, |&id| nodes.get(id).sequence == sequence);
        if let Some(&id) = found {
            return id;
        }
        let id = self.nodes.insert(Node::placeholder(sequence));
        let nodes = &self.nodes;
        self.by_sequence
            .insert_unique(sequence, id, |&id| nodes.get(id).sequence);
        id
    }

    /// Makes a placeholder that is about to be held the last child of its parent.
    pub fn attach(&mut self, node: u32, parent: u32, context: u32) {
        let above = self.nodes.get_mut(parent);
        let before = above.last_child;
        above.last_child = node;
        if before == NONE {
            above.first_child = node;
        } else {
            self.nodes.get_mut(before).next = node;
        }
        let own = self.nodes.get_mut(node);
        own.parent = parent;
        own.prev = before;
        own.context = context;
    }

    /// Takes a block that is no longer held from its parent. If it has children it stays, a placeholder.
    pub fn detach(&mut self, node: u32) {
        let Node {
            parent, next, prev, ..
        } = *self.nodes.get(node);
        if prev == NONE {
            self.nodes.get_mut(parent).first_child = next;
        } else {
            self.nodes.get_mut(prev).next = next;
        }
        if next == NONE {
            self.nodes.get_mut(parent).last_child = prev;
        } else {
            self.nodes.get_mut(next).prev = prev;
        }
        self.forget_placeholder(parent);
        let own = self.nodes.get_mut(node);
        (own.parent, own.next, own.prev, own.context) = (NONE, NONE, NONE, PLAIN);
        self.forget_placeholder(node);
    }

    /// Frees a node that is neither held nor has children.
    pub fn forget_placeholder(&mut self, node: u32) {
        let Node {
            sequence,
            first_child,
            ..
        } = *self.nodes.get(node);
        if node == ROOT || first_child != NONE || self.is_held(node) {
            return;
        }
        if let Ok(found) = self.by_sequence.find_entry(sequence, |&id| id == node) {
            found.remove();
        }
        self.nodes.remove(node);
    }

    /// The block after `at` in the walk over all descendants of `top`, each after its parent.
    pub fn next_below(&self, top: u32, at: u32) -> Option<u32> {
        let child = self.nodes.get(at).first_child;
        if child != NONE {
            return Some(child);
        }
        self.next_beside(top, at)
    }

    /// The same, without the descendants of `at`.
    pub fn next_beside(&self, top: u32, at: u32) -> Option<u32> {
        let mut at = at;
        while at != top {
            let node = self.nodes.get(at);
            if node.next != NONE {
                return Some(node.next);
            }
            at = node.parent;
        }
        None
    }

    /// Visits every node but the root: each after its parent, siblings in order.
    pub fn each_in_order(&self, mut visit: impl FnMut(u32)) {
        let is_placeholder = |id: &u32| *id != ROOT && !self.is_held(*id) && self.has_children(*id);
        for top in std::iter::once(ROOT).chain(self.nodes.ids().filter(is_placeholder)) {
            if top != ROOT {
                visit(top);
            }
            let mut each = self.next_below(top, top);
            while let Some(node) = each {
                visit(node);
                each = self.next_below(top, node);
            }
        }
    }

    /// An upper bound of all node numbers.
    pub fn slots(&self) -> usize {
        self.nodes.ids().len()
    }

    /// Whether there is a node of this sequence hash.
    pub fn knows(&self, sequence: u64) -> bool {
        let same = |&id: &u32| self.nodes.get(id).sequence == sequence;
        self.by_sequence.find(sequence, same).is_some()
    }

    pub fn has_children(&self, node: u32) -> bool {
        self.nodes.get(node).first_child != NONE
    }

    // --- references ---

    /// Adds an engine hash that stands for the node on this tier.
    pub fn add_ref(&mut self, node: u32, tier: Tier) {
        let own = self.nodes.get_mut(node);
        let refs = &mut own.refs[tier as usize];
        if *refs < u16::MAX {
            *refs += 1;
        } else {
            *self.more_refs.entry((node, tier as u8)).or_default() += 1;
        }
    }

    /// Removes one.
    pub fn drop_ref(&mut self, node: u32, tier: Tier) {
        let own = self.nodes.get_mut(node);
        let refs = &mut own.refs[tier as usize];
        let key = (node, tier as u8);
        if *refs == u16::MAX
            && let Some(more) = self.more_refs.get_mut(&key)
        {
            *more -= 1;
            if *more == 0 {
                self.more_refs.remove(&key);
            }
            return;
        }
        *refs -= 1;
    }

    /// Removes all of this tier.
    pub fn drop_all_refs(&mut self, node: u32, tier: Tier) {
        self.nodes.get_mut(node).refs[tier as usize] = 0;
        self.more_refs.remove(&(node, tier as u8));
    }

    /// Bytes on the heap.
    pub fn memory_bytes(&self) -> usize {
        let more = self.more_refs.capacity() * (size_of::<((u32, u8), u64)>() + 1);
        self.nodes.memory_bytes() + self.by_sequence.allocation_size() + more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_40_bytes() {
        assert_eq!(size_of::<Node>(), 40);
    }

    #[test]
    fn more_engine_hashes_than_fit_are_counted_all_the_same() {
        let mut tree = BlockTree::new_in(&Memory::general());
        let node = tree.find_or_add(7);
        tree.attach(node, ROOT, PLAIN);
        let many = u64::from(u16::MAX) + 3;
        for _ in 0..many {
            tree.add_ref(node, Tier::Device);
        }
        for _ in 1..many {
            tree.drop_ref(node, Tier::Device);
            assert!(tree.is_held(node));
        }
        tree.drop_ref(node, Tier::Device);
        assert!(!tree.is_held(node));
        assert!(tree.more_refs.is_empty());
    }
}
