//! The index of kvatlas: which workers hold a prompt's KV blocks, and how deep.
//!
//! One flat table maps a sequence hash to the set of workers that hold the block. Writers take turns,
//! a window of blocks at a time or shard by shard; readers take no lock. Nothing here does I/O, reads a clock, or knows Python or
//! protobuf. The path of a look-up, in order:
//!
//! 1. [`lookup`] – the calls: one query, or several whose misses overlap
//! 2. [`query`] – what was asked, as a source of sequence hashes, hashed no further than needed
//! 3. [`find`] / [`opening`] – the k-ary drop-off search, where it looks first, and the look-up that verifies every depth
//! 4. [`gather`] / [`filter`] – the holder sets at the probed depths, cut down to the workers still in question
//! 5. [`answer`] / [`ones`] – groups of equal depth, ordered; [`draw`] / [`precedence`] – who stays where the limit falls
//!
//! and of a write:
//!
//! 1. [`index`] – the public type; [`write`] / [`feed`] / [`ring`] – runs of changes, many blocks in flight; counts and digests
//! 2. [`rights`] – who may write to a shard
//! 3. [`membership`] – what storing or removing on one tier means for the tables of a shard
//! 4. [`table`] / [`line`] / [`shard_table`] – open addressing: what readers see, what the one writer does; [`renewal`] – its copy
//! 5. [`set`] / [`bitmap`] – a slot's set word: up to four workers inline, more in a bitmap; [`brief`] / [`cells`] – how
//!    the slot keeps it in half a word
//! 6. [`roster`] – worker slots, their lives, what is matchable now
//! 7. [`sweep`] – removal of dead workers' memberships in bounded slices
//! 8. [`grace`] – when memory and worker slots may be used again
//! 9. [`zeroed`] – arrays of atomics on large pages, which come from `kvatlas_pages`
//!
//! [`export`] reads whole sets out again, all of them in one pass.
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the module list above is for readers of the source"
)]

mod answer;
mod bitmap;
mod brief;
mod cells;
mod counters;
mod draw;
mod entry;
mod export;
mod feed;
mod filter;
mod find;
mod gather;
mod grace;
mod index;
mod line;
mod lookup;
mod membership;
#[cfg(all(loom, test))]
mod model;
mod ones;
mod opening;
mod precedence;
mod query;
mod renewal;
mod rights;
mod ring;
mod roster;
mod set;
mod shard_table;
mod sweep;
mod sync;
mod table;
mod types;
mod write;
mod zeroed;

pub use answer::{Matches, Pairs};
pub use counters::Events;
pub use export::Blocks;
pub use filter::SlotFilter;
pub use index::Index;
pub use kvatlas_pages::Preparer;
pub use query::{FindOptions, Query};
pub use types::{
    Applied, Hashes, IndexConfig, IndexError, MemoryUse, Run, SlotId, SlotSummary, Sweep, Tier,
    TierSummary, WorkerKey,
};
