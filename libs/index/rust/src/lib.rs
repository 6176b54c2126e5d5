//! The index of kvatlas: which workers hold a prompt's KV blocks, and how many leading ones each.
//!
//! One flat hash table maps a sequence hash to the set of workers that hold the block. Writers take turns; readers take no
//! lock. Nothing here does I/O, reads a clock, or knows Python or protobuf. The chapters, each of which lists its files in
//! reading order:
//!
//! - [`types`] – the plain values of the public interface; [`index`] – the public type and its parts
//! - [`lookup`] – from a prompt to the workers that match: search, holders, answer, tie break
//! - [`apply`] – from changes to table entries: many probes in flight
//! - [`table`] – the hash table: directory, lines, entries, sets of holders, resizing, tiers, locks
//! - [`workers`] – worker slots, the view of who is matchable, the sweep of retired slots
//! - [`memory`] – epoch-based reclamation, arrays on large pages, prefetching
//! - [`export`] – whole sets, in one pass over the table
//! - [`bits`] – bitmaps in plain words; [`counters`] – counts of inner events and bytes
//! - [`sync`] – atomics and locks, which a model checker can replace; `model` – the models that it runs
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the list of chapters is for readers of the source"
)]

mod apply;
mod bits;
mod counters;
mod export;
mod index;
mod lookup;
mod memory;
#[cfg(all(loom, test))]
mod model;
mod sync;
mod table;
mod types;
mod workers;

pub use counters::Events;
pub use export::Blocks;
pub use index::Index;
pub use kvatlas_pages::Prefaulter;
pub use lookup::matches::{Matches, Pairs};
pub use lookup::query::{FindOptions, Query};
pub use lookup::worker_filter::WorkerFilter;
pub use types::{
    Applied, Change, Hashes, IndexConfig, IndexError, MemoryUse, SlotId, SlotSummary, Sweep, Tier,
    TierSummary, WorkerKey, WorkerSlot,
};
