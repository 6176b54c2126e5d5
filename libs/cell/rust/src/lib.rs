//! One cell's state: records to index, worker table, leases, and the gRPC server over them.
//!
//! The way of a record, in order:
//!
//! 1. [`decode`] – from bytes to events, a snapshot's part or a heartbeat; every check of form
//! 2. [`cell`] – does it speak of this cell, in its terms? counted by reason if not
//! 3. `worker` – its worker's sequencer decides, and the steps it orders go to the index
//! 4. `changes` – many records' changes are written together
//! 5. `table` – who is there, and what has changed since a watcher's last look
//! 6. [`lease`] – who still speaks, in the logs' own time
//!
//! and of a request: `server`. `need` lists who lacks records, `budget` says who goes when memory is short and who may
//! come back; `report` and [`counters`] say how it all went.
//! A replica's life goes through [`dump`], its state out of one process, and [`restore`], into the next one; `lag` says
//! who is behind.

mod budget;
pub mod cell;
mod changes;
pub mod counters;
pub mod decode;
pub mod dump;
mod dump_rows;
mod lag;
pub mod lease;
mod need;
pub mod proto;
mod report;
pub mod restore;
pub mod server;
mod table;
mod weight;
mod worker;

pub use cell::{Applied, Cell, CellConfig};
pub use need::WorkerNeed;
