//! The event plane in virtual time: engines, publishers, logs and replicas under one seed, with faults.
//!
//! What is real: the outbox, the records' bytes, the cell with its sequencers, leases and needs, and
//! the index. What is modelled, with the rules of the services that are not native: the mirror (as the set
//! that it is defined to publish), the publisher's lives, deliveries, and the recovery policy.
//!
//! 1. [`plan`] – what kind of run a seed means
//! 2. [`tree`], [`engine`] – prompts, and what an engine truly holds, now and before
//! 3. [`life`], [`record`], [`publisher`], [`outlet`] – how it is said
//! 4. [`log`] – how it travels
//! 5. [`replica`], [`recovery`], [`tamper`] – how it is taken in
//! 6. [`world`] – virtual time and what happens in it; `trouble`, what goes wrong
//! 7. [`check`] – what must hold at any time, and after quiet

pub mod check;
pub mod engine;
pub mod life;
pub mod log;
pub mod outlet;
pub mod plan;
pub mod publisher;
pub mod record;
pub mod recovery;
pub mod replica;
pub mod rng;
pub mod tamper;
pub mod tree;
mod trouble;
pub mod world;

pub use check::Failure;
pub use plan::Without;
pub use world::{Report, run};
