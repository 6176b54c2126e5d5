//! A cell's whole state: out of one replica, and into another.
//!
//! `Dump`, a state file and a start from a peer share one form: Arrow batches with a row per worker and tier, each with the
//! count and the digest of its set ([`columns`]).
//!
//! - [`dump`]: an exact state of one moment, for `Dump`
//! - [`capture`]: a state that is read while records are applied, for a file
//! - [`file`]: writes a capture to a file
//! - [`restore`]: reads a dump or a file into an empty cell

pub mod capture;
pub mod columns;
pub mod dump;
mod dumped_worker;
pub mod file;
pub mod restore;
mod worker_resume;
