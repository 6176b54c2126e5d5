//! A node of a compressed radix tree: a run of blocks, and how much of it each worker holds.
//!
//! Both trees consist of these; they differ in how nodes are found and locked. A removal never cuts a run: it lowers the
//! worker's *cutoff*, the number of the run's blocks that it still holds. A run is split where prompts diverge. The node keeps
//! the head, so that its parent's link stays valid; the tail goes to a new node, to which `moved` points. Places recorded
//! before the split are found by following it.

use rustc_hash::FxHashMap;

use crate::design::Answer;
use crate::parts::worker_set::WorkerSet;

pub(crate) type NodeId = u32;

/// The node above all prompts; its run is empty.
pub(crate) const ROOT: NodeId = 0;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub chunk: u64,
    pub hash: u64,
}

#[derive(Default, Debug)]
pub(crate) struct RadixNode {
    /// Depth of the run's first block.
    pub start: u32,
    pub run: Vec<Block>,
    /// Workers that hold the whole run.
    pub full: WorkerSet,
    /// Workers that hold only the first blocks of the run, and how many: at least one, not all. By worker.
    pub cutoffs: Vec<(u32, u32)>,
    pub children: Children,
    /// Whether it ever had children; if so, its run is never extended.
    pub internal: bool,
    /// The node of the tail when the run was last split.
    pub moved: Option<NodeId>,
}

impl RadixNode {
    pub fn new(start: u32, run: Vec<Block>, worker: u32) -> Self {
        Self {
            start,
            run,
            full: WorkerSet::of(worker),
            ..Self::default()
        }
    }

    /// Whether no worker holds a block here or below.
    pub fn is_vacant(&self) -> bool {
        self.full.is_empty() && self.cutoffs.is_empty() && self.children.is_empty()
    }

    /// Whether the run may be extended when `worker` stores the blocks that follow it.
    pub fn is_tip_of(&self, worker: u32) -> bool {
        !self.internal
            && self.full.len() == 1
            && self.full.contains(worker)
            && self.cutoffs.is_empty()
    }

    /// The position in the run of a block of this depth; `None` if it is in another node.
    pub fn position(&self, depth: u32) -> Option<usize> {
        let at = depth.checked_sub(self.start)? as usize;
        (at < self.run.len()).then_some(at)
    }

    /// Number of blocks, from `at` of the run on, that equal those of `chunks`.
    pub fn common_length(&self, at: usize, chunks: &[u64]) -> usize {
        self.run[at..]
            .iter()
            .zip(chunks)
            .take_while(|(block, chunk)| block.chunk == **chunk)
            .count()
    }

    /// Number of the run's blocks that the worker holds.
    pub fn coverage(&self, worker: u32) -> usize {
        if self.full.contains(worker) {
            return self.run.len();
        }
        match self.find_cutoff(worker) {
            Ok(place) => self.cutoffs[place].1 as usize,
            Err(_) => 0,
        }
    }

    /// Records that the worker holds at least the first `to` blocks.
    pub fn cover(&mut self, worker: u32, to: usize) {
        if to > self.coverage(worker) {
            self.set_coverage(worker, to);
        }
    }

    /// Records that the worker holds exactly the first `to` blocks.
    pub fn set_coverage(&mut self, worker: u32, to: usize) {
        let place = self.find_cutoff(worker);
        if to == self.run.len() {
            self.full.insert(worker);
        } else {
            self.full.remove(worker);
        }
        let partial = to > 0 && to < self.run.len();
        match place {
            Ok(place) if partial => self.cutoffs[place].1 = to as u32,
            Ok(place) => {
                self.cutoffs.remove(place);
            }
            Err(place) if partial => self.cutoffs.insert(place, (worker, to as u32)),
            Err(_) => {}
        }
    }

    fn find_cutoff(&self, worker: u32) -> Result<usize, usize> {
        self.cutoffs.binary_search_by_key(&worker, |&(id, _)| id)
    }

    /// Cuts the run after `at` blocks, at least one, and returns the node for the rest. The caller gives it a number, links it
    /// with [`Self::link_tail`], and sets the parent of its children.
    pub fn split(&mut self, at: usize) -> Self {
        let run = self.run.split_off(at);
        self.run.shrink_to_fit();
        let mut tail = Self {
            start: self.start + at as u32,
            run,
            full: self.full.clone(),
            cutoffs: Vec::new(),
            children: std::mem::take(&mut self.children),
            internal: self.internal,
            moved: self.moved,
        };
        for (worker, cutoff) in std::mem::take(&mut self.cutoffs) {
            let held = cutoff as usize;
            self.set_coverage(worker, held.min(at));
            tail.set_coverage(worker, held.saturating_sub(at));
        }
        tail
    }

    /// Links `tail`, whose first block has the hash `chunk`, as the child with the rest of the run.
    pub fn link_tail(&mut self, chunk: u64, tail: NodeId) {
        self.link(chunk, tail);
        self.moved = Some(tail);
    }

    pub fn link(&mut self, chunk: u64, child: NodeId) {
        self.children.insert(chunk, child);
        self.internal = true;
    }

    /// Visits this node in a look-up whose prompt has the first `same` blocks of its run. Reports workers that hold less than
    /// the whole run, or all if the prompt leaves the run; the others stay active.
    pub fn visit(&self, same: usize, answer: &mut Answer) {
        let depth = self.start as usize;
        let whole = same == self.run.len();
        if depth == 0 {
            self.full.for_each(|id| answer.active.push(id));
            for &(worker, cutoff) in &self.cutoffs {
                answer.report(worker, same.min(cutoff as usize));
            }
        } else if self.full.len() < answer.active.len() {
            for &(worker, cutoff) in &self.cutoffs {
                if let Some(place) = answer.active.iter().position(|&id| id == worker) {
                    answer.active.swap_remove(place);
                    answer.report(worker, depth + same.min(cutoff as usize));
                }
            }
            answer.retain(depth, |worker| self.full.contains(worker));
        }
        if !whole {
            answer.finish(depth + same);
        }
    }
}

/// Links to child nodes by the first chunk hash of their runs: a short list, or a map if there are many.
#[derive(Debug)]
pub(crate) enum Children {
    Few(Vec<(u64, NodeId)>),
    Many(Box<FxHashMap<u64, NodeId>>),
}

const FEW_CHILDREN: usize = 8;

impl Default for Children {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Children {
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Few(list) => list.is_empty(),
            Self::Many(map) => map.is_empty(),
        }
    }

    pub fn get(&self, chunk: u64) -> Option<NodeId> {
        match self {
            Self::Few(list) => list.iter().find(|&&(c, _)| c == chunk).map(|&(_, id)| id),
            Self::Many(map) => map.get(&chunk).copied(),
        }
    }

    /// The chunk must not be there yet.
    fn insert(&mut self, chunk: u64, child: NodeId) {
        match self {
            Self::Few(list) if list.len() < FEW_CHILDREN => {
                // One child is the common case: no room for four.
                list.reserve_exact(if list.is_empty() { 1 } else { list.len() });
                list.push((chunk, child));
            }
            Self::Few(list) => {
                let mut map: FxHashMap<_, _> = list.drain(..).collect();
                map.insert(chunk, child);
                *self = Self::Many(Box::new(map));
            }
            Self::Many(map) => {
                map.insert(chunk, child);
            }
        }
    }

    pub fn remove(&mut self, chunk: u64) {
        match self {
            Self::Few(list) => list.retain(|&(c, _)| c != chunk),
            Self::Many(map) => {
                map.remove(&chunk);
                if map.len() * 8 < map.capacity() {
                    map.shrink_to_fit();
                }
            }
        }
    }

    pub fn for_each(&self, mut each: impl FnMut(NodeId)) {
        match self {
            Self::Few(list) => list.iter().for_each(|&(_, id)| each(id)),
            Self::Many(map) => map.values().for_each(|&id| each(id)),
        }
    }
}
