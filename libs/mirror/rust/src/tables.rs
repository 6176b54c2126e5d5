//! The mirror's memory: blocks, engine hashes and prompt contexts, in tables that share large pages.

pub mod block_tree;
pub mod engine_hashes;
mod prefetch;
pub mod prompt_contexts;
pub mod slab;
