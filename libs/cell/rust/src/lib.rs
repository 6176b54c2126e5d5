//! One cell's state in an indexer replica, and the gRPC server over it.
//!
//! The README beside this crate has the picture and the promises. A record takes these steps:
//!
//! 1. [`apply::decode`]: bytes become events, a snapshot's part or a heartbeat; all checks of form
//! 2. [`config`]: a record of another cell, model, block size or hash contract is rejected
//! 3. [`workers`]: the worker's sequencer decides, and its steps change the worker's set
//! 4. [`apply::index_writes`]: the changes of many records are written to the index together
//! 5. [`leases`]: the record renews the worker's lease, in the log's own time
//! 6. [`workers::table`]: watchers learn what has changed
//!
//! [`cell::Cell`] is the front door to all of it, [`server`] answers requests. [`memory`] holds the index to its budget,
//! [`state`] writes and reads dumps and state files, [`status`] and [`counters`] feed `GetStatus` and the metrics.

pub mod apply;
pub mod cell;
pub mod config;
pub mod counters;
mod leases;
mod memory;
mod messages;
pub mod server;
pub mod state;
mod status;
mod workers;

pub use cell::{Applied, Cell};
pub use config::CellConfig;
pub use workers::lag::{LagReport, WorkerLag};
pub use workers::recovery_request::RecoveryRequest;
