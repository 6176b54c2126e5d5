//! From a record's bytes to writes in the index.

pub(crate) mod context;
pub mod decode;
pub(crate) mod index_writes;
pub(crate) mod rejection;
