//! Leases, which run in each log's own time.

pub(crate) mod lease;
pub(crate) mod logs;
