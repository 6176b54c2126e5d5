//! The places of each worker's blocks in a tree: a map per worker from sequence hash to place.

use rustc_hash::FxHashMap;

use crate::parts::radix_node::NodeId;

/// A block's node when it was stored, and its depth in the prompt. The depth never changes; if the edge was split since, the
/// block's present node is found from the old one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockPlace {
    pub node: NodeId,
    pub depth: u32,
}

pub(crate) type WorkerPlaces = FxHashMap<u64, BlockPlace>;

/// The maps of several workers.
#[derive(Default)]
pub struct BlockPlaces(Vec<WorkerPlaces>);

impl BlockPlaces {
    pub(crate) fn of(&mut self, worker: u32) -> &mut WorkerPlaces {
        let at = worker as usize;
        if at >= self.0.len() {
            self.0.resize_with(at + 1, WorkerPlaces::default);
        }
        &mut self.0[at]
    }
}
