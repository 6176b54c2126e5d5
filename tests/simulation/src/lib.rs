//! The event plane in virtual time: engines, publishers, logs and replicas under one seed, with faults.
//!
//! What is real: the mirror with its reader of engines' messages, the outbox, the records' bytes, the cell
//! with its sequencers, leases, needs, memory budget, dumps and restorations, and the index. What is
//! modelled, with the rules of the services in Python: the publisher's lives, deliveries, the files'
//! and peers' order at a start, readiness, and the recovery policy.
//!
//! 1. [`plan`] – what kind of run a seed means
//! 2. [`tree`], [`engine`] – prompts, and what an engine truly holds, now and before
//! 3. [`payload`], [`life`], [`record`], [`publisher`], [`outlet`] – how it is said
//! 4. [`log`] – how it travels
//! 5. [`replica`], [`keeping`], [`recovery`], [`tamper`] – how it is taken in, and kept
//! 6. [`world`] – virtual time and what happens in it: `saying` and `asking`, on either side of the
//!    log; `trouble`, what goes wrong; [`neighbours`], who takes the memory; [`tally`], how often
//! 7. [`check`] – what must hold at any time, and after quiet

mod asking;
pub mod check;
pub mod engine;
pub mod keeping;
pub mod life;
pub mod log;
pub mod neighbours;
pub mod outlet;
pub mod payload;
pub mod plan;
pub mod publisher;
pub mod record;
pub mod recovery;
pub mod replica;
pub mod rng;
mod saying;
pub mod tally;
pub mod tamper;
pub mod tree;
mod trouble;
pub mod world;

pub use check::Failure;
pub use plan::{Without, replay_command};
pub use world::{Report, run};
