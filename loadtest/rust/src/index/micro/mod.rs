//! Benchmarks of single calls, and of the removal of workers, by depth, holders and size.
//!
//! 1. [`bench`], [`sizes`] – the design, and how much to measure
//! 2. [`filled`] – an index with a given number of memberships, and prompts with given holders in it
//! 3. [`timing`] – hot and cold calls, and the processor's caches between them
//! 4. [`queries`], [`changes`], [`memory`] – look-ups; stores and removes; memory per membership
//! 5. [`calls`] – all of these, by size
//! 6. [`worker_removal`] – measured on the flat index only: a worker leaves, its sweep, memory given back

pub mod bench;
pub mod calls;
mod changes;
mod filled;
mod memory;
mod queries;
pub mod sizes;
mod timing;
pub mod worker_removal;
