//! The event plane in virtual time: engines, publishers, logs and replicas under one seed, with faults.
//!
//! Shipped code: the mirror with the readers of engines' messages, the outbox, the records' bytes, the
//! cell with its sequencers, leases, recovery requests, memory budget, dumps and restorations, and the
//! index. Modelled after the services in Python: a publisher's epochs, deliveries, the order of files and peers at a
//! start, readiness, and the recovery policy.
//!
//! 1. [`plan`]: the kind of run that a seed stands for
//! 2. [`tree`], [`engine`]: prompts, and what an engine truly holds, now and before
//! 3. [`payload`], [`open_epoch`], [`record`], [`publisher`], [`delivery`]: how a publisher follows and reports it
//! 4. [`log`]: how records travel
//! 5. [`replica`], [`saved_states`], [`recovery`]: how a replica applies, saves and recovers
//! 6. [`world`]: virtual time, and the queue of actions; `publisher_side` and `replica_side`, on either side of the log
//! 7. `faults`, [`memory_pressure`], [`mutations`]: what goes wrong; [`counts`]: how often
//! 8. [`check`]: what must hold at any time, and after the faults

pub mod check;
pub mod counts;
pub mod delivery;
pub mod engine;
mod faults;
pub mod log;
pub mod memory_pressure;
pub mod mutations;
pub mod open_epoch;
pub mod payload;
pub mod plan;
pub mod publisher;
mod publisher_side;
pub mod record;
pub mod recovery;
pub mod replica;
mod replica_side;
pub mod rng;
pub mod saved_states;
pub mod tree;
pub mod world;

pub use check::Failure;
pub use plan::{Mutation, replay_command};
pub use world::{Report, run};
