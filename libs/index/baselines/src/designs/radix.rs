//! The radix tree with compressed edges, for one thread.
//!
//! Stands for the fourth step of NVIDIA Dynamo's "Flash Indexer" post (docs.nvidia.com/dynamo, digest,
//! February 2026, section 4) and its `RadixTree`, and for SGLang's router and other prefix-tree
//! routers. Nodes are found from above by chunk hash and directly by a map per worker from sequence
//! hash; by that map a store finds its parent and a removal its block. Dynamo's has a node per block. Here runs of blocks share
//! a node, as in its later compressed tree, so that the two trees differ in their locks alone. Exact as published: a chunk is
//! only compared below its own prefix.

use crate::design::Answer;
use crate::parts::block_places::{BlockPlace, BlockPlaces};
use crate::parts::chain::chained;
use crate::parts::radix_node::{Block, NodeId, ROOT, RadixNode};
use crate::sharing::locked::Exclusive;

#[derive(Default)]
struct Node {
    parent: NodeId,
    state: RadixNode,
}

/// Nodes in one array; numbers of unlinked ones are reused.
pub struct RadixTree {
    nodes: Vec<Node>,
    free: Vec<NodeId>,
    lookup: BlockPlaces,
    refused: u64,
}

impl Default for RadixTree {
    fn default() -> Self {
        Self {
            nodes: vec![Node::default()],
            free: Vec::new(),
            lookup: BlockPlaces::default(),
            refused: 0,
        }
    }
}

impl RadixTree {
    fn node(&self, id: NodeId) -> &RadixNode {
        &self.nodes[id as usize].state
    }

    fn node_mut(&mut self, id: NodeId) -> &mut RadixNode {
        &mut self.nodes[id as usize].state
    }

    fn add(&mut self, parent: NodeId, state: RadixNode) -> NodeId {
        let node = Node { parent, state };
        if let Some(id) = self.free.pop() {
            self.nodes[id as usize] = node;
            return id;
        }
        self.nodes.push(node);
        (self.nodes.len() - 1) as NodeId
    }

    /// The present node of a block stored at `place`, and the position in its run.
    fn locate(&self, place: BlockPlace) -> Option<(NodeId, usize)> {
        let mut id = place.node;
        loop {
            if let Some(at) = self.node(id).position(place.depth) {
                return Some((id, at));
            }
            id = self.node(id).moved?;
        }
    }

    fn split(&mut self, id: NodeId, at: usize) {
        let tail = self.node_mut(id).split(at);
        let chunk = tail.run[0].chunk;
        let tail = self.add(id, tail);
        let Self { nodes, .. } = self;
        let mut below = Vec::new();
        nodes[tail as usize]
            .state
            .children
            .for_each(|child| below.push(child));
        for child in below {
            nodes[child as usize].parent = tail;
        }
        self.node_mut(id).link_tail(chunk, tail);
    }

    /// Appends blocks after the whole run of `id`: to the run itself, or as a new child.
    fn append(&mut self, worker: u32, id: NodeId, chunks: &[u64]) {
        let above = self.node(id);
        let parent_hash = above.run.last().map(|block| block.hash);
        let depth = above.start + above.run.len() as u32;
        let run: Vec<Block> = chained(parent_hash, chunks)
            .map(|(chunk, hash)| Block { chunk, hash })
            .collect();
        let hashes: Vec<u64> = run.iter().map(|block| block.hash).collect();
        let node = if id != ROOT && above.is_tip_of(worker) {
            self.node_mut(id).run.extend(run);
            id
        } else {
            let child = self.add(id, RadixNode::new(depth, run, worker));
            self.node_mut(id).link(chunks[0], child);
            child
        };
        let held = self.lookup.of(worker);
        held.extend(
            (depth..)
                .zip(hashes)
                .map(|(depth, hash)| (hash, BlockPlace { node, depth })),
        );
    }

    /// Unlinks a node that no worker holds, and those above it that are left without a child.
    fn prune(&mut self, mut id: NodeId) {
        while id != ROOT && self.node(id).is_vacant() {
            let state = std::mem::take(self.node_mut(id));
            let parent = self.nodes[id as usize].parent;
            self.node_mut(parent).children.remove(state.run[0].chunk);
            self.free.push(id);
            id = parent;
        }
    }

    /// Removes the worker from the blocks of the node from `at` on.
    fn cut(&mut self, worker: u32, id: NodeId, at: usize) {
        let node = &mut self.nodes[id as usize].state;
        let held = self.lookup.of(worker);
        for block in &node.run[at..node.coverage(worker).max(at)] {
            held.remove(&block.hash);
        }
        if node.coverage(worker) > at {
            node.set_coverage(worker, at);
        }
        self.prune(id);
    }
}

impl Exclusive for RadixTree {
    fn store(&mut self, worker: u32, parent: Option<u64>, chunks: &[u64]) {
        let begin = match parent {
            None => Some((ROOT, 0)),
            Some(hash) => {
                let place = self.lookup.of(worker).get(&hash).copied();
                place
                    .and_then(|place| self.locate(place))
                    .map(|(id, at)| (id, at + 1))
            }
        };
        let Some((mut id, mut at)) = begin else {
            self.refused += 1;
            return;
        };
        let mut rest = chunks;
        while let Some(&next) = rest.first() {
            if at == self.node(id).run.len() {
                match self.node(id).children.get(next) {
                    Some(child) => (id, at) = (child, 0),
                    None => return self.append(worker, id, rest),
                }
            }
            let node = &mut self.nodes[id as usize].state;
            let end = at + node.common_length(at, rest);
            let held = self.lookup.of(worker);
            for (position, block) in node.run[..end]
                .iter()
                .enumerate()
                .skip(node.coverage(worker))
            {
                let depth = node.start + position as u32;
                held.insert(block.hash, BlockPlace { node: id, depth });
            }
            node.cover(worker, end);
            let leaves = end < node.run.len();
            rest = &rest[end - at..];
            at = end;
            if leaves && !rest.is_empty() {
                self.split(id, at);
            }
        }
    }

    fn remove(&mut self, worker: u32, hashes: &[u64]) {
        for hash in hashes {
            let place = self.lookup.of(worker).remove(hash);
            if let Some((id, at)) = place.and_then(|place| self.locate(place)) {
                self.cut(worker, id, at);
            }
        }
    }

    fn clear(&mut self, worker: u32) {
        let held = std::mem::take(self.lookup.of(worker));
        for place in held.into_values() {
            // Blocks of one run share a node; the first of them empties it, and the next may not find it.
            if let Some((id, _)) = self.locate(place) {
                self.node_mut(id).set_coverage(worker, 0);
                self.prune(id);
            }
        }
    }

    fn find(&self, chunks: &[u64], answer: &mut Answer) {
        answer.begin();
        let (mut id, mut depth) = (ROOT, 0);
        while let Some(child) = chunks
            .get(depth)
            .and_then(|&c| self.node(id).children.get(c))
        {
            let node = self.node(child);
            let same = node.common_length(0, &chunks[depth..]);
            node.visit(same, answer);
            if answer.active.is_empty() {
                return;
            }
            depth += same;
            id = child;
        }
        answer.finish(depth);
    }

    fn refused(&self) -> u64 {
        self.refused
    }
}
