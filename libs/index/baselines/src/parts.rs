//! Data structures of the designs.

pub(crate) mod block_places;
pub(crate) mod chain;
pub(crate) mod host_slots;
pub(crate) mod node_arena;
pub(crate) mod radix_node;
pub(crate) mod worker_set;
