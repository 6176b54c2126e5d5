//! Where a worker's blocks are in a tree: sequence hash → place, a map per worker.

use rustc_hash::FxHashMap;

use crate::radix_node::NodeId;

/// A block's node at the time it was stored, and its depth in the prompt. The depth never changes; the
/// node is found from here if the edge was split since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub node: NodeId,
    pub depth: u32,
}

pub(crate) type Places = FxHashMap<u64, Place>;

/// The maps of some workers.
#[derive(Default)]
pub struct Lookup(Vec<Places>);

impl Lookup {
    pub(crate) fn of(&mut self, worker: u32) -> &mut Places {
        let at = worker as usize;
        if at >= self.0.len() {
            self.0.resize_with(at + 1, Places::default);
        }
        &mut self.0[at]
    }
}
