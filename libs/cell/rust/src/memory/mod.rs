//! The memory budget of the index.

pub(crate) mod budget;
mod bytes_per_block;
