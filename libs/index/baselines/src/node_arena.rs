//! Nodes of a tree that many threads walk: numbers instead of pointers, memory that never moves.
//!
//! A number is used again once its node was unlinked. That is safe without counting references because
//! a walker locks a child while it still holds the lock of the node that named it, and whoever unlinks
//! a node holds both locks.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;

use parking_lot::{Mutex, RwLock};

use crate::radix_node::{NodeId, RadixNode};

const SEGMENT: usize = 4096;
const SEGMENTS: usize = 1 << 15;

#[derive(Default)]
pub(crate) struct Node {
    /// The node that links to this one; written only under that node's lock.
    pub parent: AtomicU32,
    pub state: RwLock<RadixNode>,
}

#[derive(Default)]
struct Numbers {
    next: NodeId,
    free: Vec<NodeId>,
}

pub(crate) struct NodeArena {
    segments: Box<[OnceLock<Box<[Node]>>]>,
    numbers: Mutex<Numbers>,
}

impl Default for NodeArena {
    fn default() -> Self {
        Self {
            segments: (0..SEGMENTS).map(|_| OnceLock::new()).collect(),
            numbers: Mutex::default(),
        }
    }
}

impl NodeArena {
    pub fn node(&self, id: NodeId) -> &Node {
        let segment = &self.segments[id as usize / SEGMENT];
        let nodes = segment.get_or_init(|| (0..SEGMENT).map(|_| Node::default()).collect());
        &nodes[id as usize % SEGMENT]
    }

    /// A number that no node has.
    pub fn take(&self) -> NodeId {
        let mut numbers = self.numbers.lock();
        numbers.free.pop().unwrap_or_else(|| {
            numbers.next += 1;
            numbers.next - 1
        })
    }

    pub fn give_back(&self, id: NodeId) {
        self.numbers.lock().free.push(id);
    }

    /// Nodes whose number is taken.
    #[cfg(test)]
    pub fn taken(&self) -> usize {
        let numbers = self.numbers.lock();
        numbers.next as usize - numbers.free.len()
    }
}
