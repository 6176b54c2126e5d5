//! Nodes of a tree that several threads walk: numbers instead of pointers, and memory that never moves.
//!
//! A number is reused once its node is unlinked. No reference counts are needed: a walker locks a child while it still holds
//! the lock of the parent, and a thread that unlinks a node holds both locks.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;

use parking_lot::{Mutex, RwLock};

use crate::parts::radix_node::{NodeId, RadixNode};

const SEGMENT: usize = 4096;
const SEGMENTS: usize = 1 << 15;

#[derive(Default)]
pub(crate) struct Node {
    /// The parent; written only under the parent's lock.
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
    pub fn allocate(&self) -> NodeId {
        let mut numbers = self.numbers.lock();
        numbers.free.pop().unwrap_or_else(|| {
            numbers.next += 1;
            numbers.next - 1
        })
    }

    pub fn free(&self, id: NodeId) {
        self.numbers.lock().free.push(id);
    }

    /// Number of nodes in use.
    #[cfg(test)]
    pub fn allocated(&self) -> usize {
        let numbers = self.numbers.lock();
        numbers.next as usize - numbers.free.len()
    }
}
