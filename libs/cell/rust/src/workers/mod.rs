//! The cell's workers: each one's state, and the table of all.

pub mod lag;
pub mod recovery_request;
pub(crate) mod table;
pub(crate) mod worker;
pub(crate) mod worker_set;
