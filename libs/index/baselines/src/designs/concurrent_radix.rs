//! The concurrent radix tree with compressed edges: a lock per node, look-ups beside writes.
//!
//! Stands for NVIDIA Dynamo's default index: section 5 of its "Flash Indexer" post (docs.nvidia.com/dynamo,
//! digest, February 2026) and `lib/kv-router/src/indexer/concurrent_radix_tree_compressed` of its
//! repository. Nodes hold runs of blocks. A removal lowers the worker's cutoff in the run instead of cutting it. A worker that
//! stores the blocks after its own leaf extends the leaf; a node that had children is never extended again. Each writer keeps
//! the places of its workers' blocks, and finds a block that a split moved when it next needs it.
//!
//! Departures, all in its favour: an answer is a list of pairs, where Dynamo fills a hash map of scores; a block's place is its
//! node and its depth, so a run needs no index of its own; a split leaves a link to the tail, so finding it takes no search of
//! the subtree; a node that no worker holds is unlinked by the removal that emptied it, not by a later sweep; and locks are
//! handed down from parent to child, where Dynamo validates versions and reclaims by epochs.
//!
//! Lock order is from parent to child. `prune`, which needs the other order, locks the parent first and tries the child.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLockWriteGuard;

use crate::design::Answer;
use crate::parts::block_places::{BlockPlace, BlockPlaces, WorkerPlaces};
use crate::parts::chain::chained;
use crate::parts::node_arena::NodeArena;
use crate::parts::radix_node::{Block, NodeId, ROOT, RadixNode};
use crate::sharing::sticky::StickyDesign;

/// The tree. Wrap it in [`crate::sharing::sticky::Inline`] or [`crate::sharing::sticky::Sticky`].
pub struct ConcurrentRadix {
    nodes: NodeArena,
    refused: AtomicU64,
}

type WriteLock<'a> = RwLockWriteGuard<'a, RadixNode>;

impl Default for ConcurrentRadix {
    fn default() -> Self {
        let nodes = NodeArena::default();
        nodes.allocate(); // the root's number, the first there is
        Self {
            nodes,
            refused: AtomicU64::new(0),
        }
    }
}

impl ConcurrentRadix {
    fn write(&self, id: NodeId) -> WriteLock<'_> {
        self.nodes.node(id).state.write()
    }

    /// A new node, not linked yet.
    fn add(&self, parent: NodeId, state: RadixNode) -> NodeId {
        let id = self.nodes.allocate();
        self.nodes.node(id).parent.store(parent, Ordering::Release);
        *self.write(id) = state;
        id
    }

    /// Locks the present node of a block stored at `place`. A worker's own block keeps its node, and those on the way to it,
    /// from being unlinked.
    fn locate(&self, place: BlockPlace) -> Option<(NodeId, WriteLock<'_>, usize)> {
        let mut id = place.node;
        let mut node = self.write(id);
        loop {
            if let Some(at) = node.position(place.depth) {
                return Some((id, node, at));
            }
            id = node.moved?;
            node = self.write(id);
        }
    }

    /// Locks the child that continues with `chunk`, if there is one, while `above` is still locked.
    fn enter(&self, above: &RadixNode, chunk: u64) -> Option<(NodeId, WriteLock<'_>)> {
        let child = above.children.get(chunk)?;
        Some((child, self.write(child)))
    }

    fn split(&self, id: NodeId, node: &mut RadixNode, at: usize) {
        let tail = node.split(at);
        let chunk = tail.run[0].chunk;
        let mut below = Vec::new();
        tail.children.for_each(|child| below.push(child));
        let tail = self.add(id, tail);
        for child in below {
            self.nodes.node(child).parent.store(tail, Ordering::Release);
        }
        node.link_tail(chunk, tail);
    }

    fn append(
        &self,
        held: &mut WorkerPlaces,
        worker: u32,
        id: NodeId,
        above: &mut RadixNode,
        chunks: &[u64],
    ) {
        let parent = above.run.last().map(|block| block.hash);
        let start = above.start + above.run.len() as u32;
        let blocks = chained(parent, chunks).map(|(chunk, hash)| Block { chunk, hash });
        held.reserve(chunks.len());
        let mut note = |node, run: &[Block]| {
            for (depth, block) in (start..).zip(run) {
                held.insert(block.hash, BlockPlace { node, depth });
            }
        };
        if id != ROOT && above.is_tip_of(worker) {
            let before = above.run.len();
            above.run.extend(blocks);
            note(id, &above.run[before..]);
        } else {
            let run: Vec<Block> = blocks.collect();
            let child = self.nodes.allocate();
            note(child, &run);
            self.nodes.node(child).parent.store(id, Ordering::Release);
            *self.write(child) = RadixNode::new(start, run, worker);
            above.link(chunks[0], child);
        }
    }

    /// Stores along the tree, from `at` of the run of `id` on.
    fn walk<'a>(
        &'a self,
        held: &mut WorkerPlaces,
        worker: u32,
        (mut id, mut node, mut at): (NodeId, WriteLock<'a>, usize),
        chunks: &[u64],
    ) {
        let mut rest = chunks;
        while let Some(&next) = rest.first() {
            if at == node.run.len() {
                match self.enter(&node, next) {
                    Some((child, below)) => (id, node, at) = (child, below, 0),
                    None => return self.append(held, worker, id, &mut node, rest),
                }
            }
            let end = at + node.common_length(at, rest);
            let known = node.coverage(worker);
            for (position, block) in node.run[..end].iter().enumerate().skip(known) {
                let depth = node.start + position as u32;
                held.insert(block.hash, BlockPlace { node: id, depth });
            }
            node.cover(worker, end);
            rest = &rest[end - at..];
            at = end;
            if end < node.run.len() && !rest.is_empty() {
                self.split(id, &mut node, end);
            }
        }
    }

    /// Unlinks a node that no worker holds, and those above it that are left without a child. The node is not locked before, so
    /// everything is checked again once it is.
    fn prune(&self, mut id: NodeId) {
        while id != ROOT {
            let parent = self.nodes.node(id).parent.load(Ordering::Acquire);
            let mut above = self.write(parent);
            if self.nodes.node(id).parent.load(Ordering::Acquire) != parent {
                continue;
            }
            let Some(mut node) = self.nodes.node(id).state.try_write() else {
                drop(above);
                std::thread::yield_now();
                continue;
            };
            let Some(chunk) = node.run.first().map(|block| block.chunk) else {
                return;
            };
            if !node.is_vacant() || above.children.get(chunk) != Some(id) {
                return;
            }
            above.children.remove(chunk);
            *node = RadixNode::default();
            drop(node);
            self.nodes.free(id);
            if !above.is_vacant() {
                return;
            }
            id = parent;
        }
    }
}

/// Removes the worker from the blocks of the node from `at` on, and forgets their places.
fn cut(held: &mut WorkerPlaces, worker: u32, node: &mut RadixNode, at: usize) {
    let coverage = node.coverage(worker);
    if coverage > at {
        for block in &node.run[at + 1..coverage] {
            held.remove(&block.hash);
        }
        node.set_coverage(worker, at);
    }
}

impl StickyDesign for ConcurrentRadix {
    type WriterState = BlockPlaces;

    fn store(&self, state: &mut BlockPlaces, worker: u32, parent: Option<u64>, chunks: &[u64]) {
        let Some(&first) = chunks.first() else {
            return;
        };
        let held = state.of(worker);
        let Some(parent) = parent else {
            // Most prompts begin with a known block: a shared lock of the root is enough to see.
            let root = self.nodes.node(ROOT).state.read();
            if let Some((child, node)) = self.enter(&root, first) {
                drop(root);
                return self.walk(held, worker, (child, node, 0), chunks);
            }
            drop(root);
            return self.walk(held, worker, (ROOT, self.write(ROOT), 0), chunks);
        };
        match held.get(&parent).and_then(|&place| self.locate(place)) {
            Some((id, node, at)) => self.walk(held, worker, (id, node, at + 1), chunks),
            None => {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn remove(&self, state: &mut BlockPlaces, worker: u32, hashes: &[u64]) {
        let held = state.of(worker);
        let mut rest = hashes.iter();
        let mut take = |held: &mut WorkerPlaces| {
            rest.find_map(|&hash| held.remove(&hash).map(|place| (hash, place)))
        };
        let mut next = take(held);
        while let Some((_, place)) = next.take() {
            let Some((id, mut node, at)) = self.locate(place) else {
                next = take(held);
                continue;
            };
            cut(held, worker, &mut node, at);
            // Blocks of one run are mostly removed together: keep the lock for them.
            while let Some((hash, place)) = take(held) {
                let position = node.position(place.depth);
                match position.filter(|&at| node.run[at].hash == hash) {
                    Some(at) => cut(held, worker, &mut node, at),
                    None => {
                        next = Some((hash, place));
                        break;
                    }
                }
            }
            let vacant = node.is_vacant();
            drop(node);
            if vacant {
                self.prune(id);
            }
        }
    }

    fn clear(&self, state: &mut BlockPlaces, worker: u32) {
        let mut emptied = Vec::new();
        for place in std::mem::take(state.of(worker)).into_values() {
            // The first block of a run removes the worker from all of it.
            if let Some((id, mut node, at)) = self.locate(place)
                && node.coverage(worker) > at
            {
                node.set_coverage(worker, 0);
                emptied.push(id);
            }
        }
        for id in emptied {
            self.prune(id);
        }
    }

    fn find(&self, chunks: &[u64], answer: &mut Answer) {
        answer.begin();
        let mut node = self.nodes.node(ROOT).state.read();
        let mut depth = 0;
        while let Some(child) = chunks.get(depth).and_then(|&c| node.children.get(c)) {
            let below = self.nodes.node(child).state.read();
            node = below;
            let same = node.common_length(0, &chunks[depth..]);
            node.visit(same, answer);
            if answer.active.is_empty() {
                return;
            }
            depth += same;
        }
        answer.finish(depth);
    }

    fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::ConcurrentRadix;
    use crate::parts::block_places::BlockPlaces;
    use crate::parts::chain::chained;
    use crate::sharing::sticky::StickyDesign;

    /// Prompts over three chunks, so that runs split below and above their branches.
    fn prompt(number: u64) -> Vec<u64> {
        (0..8).map(|at| 1 + (number >> (2 * at)) % 3).collect()
    }

    #[test]
    fn a_tree_without_blocks_has_only_its_root() {
        for by_clear in [false, true] {
            let tree = ConcurrentRadix::default();
            let mut state = BlockPlaces::default();
            let prompts: Vec<_> = (0..200u64)
                .map(|n| prompt(n.wrapping_mul(40_503)))
                .collect();
            for (number, chunks) in prompts.iter().enumerate() {
                tree.store(
                    &mut state,
                    number as u32 % 5,
                    None,
                    &chunks[..1 + number % 8],
                );
            }
            assert!(tree.nodes.allocated() > 50);
            for worker in 0..5 {
                if by_clear {
                    tree.clear(&mut state, worker);
                    continue;
                }
                let mut held: Vec<_> = (0..8)
                    .rev()
                    .flat_map(|at| prompts.iter().map(move |chunks| (at, chunks)))
                    .filter_map(|(at, chunks)| chained(None, chunks).nth(at))
                    .map(|(_, hash)| hash)
                    .collect();
                held.dedup();
                tree.remove(&mut state, worker, &held);
            }
            assert_eq!(tree.nodes.allocated(), 1, "by clear: {by_clear}");
            assert!((0..5).all(|worker| state.of(worker).is_empty()));
        }
    }
}
