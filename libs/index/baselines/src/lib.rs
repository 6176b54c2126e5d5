//! The designs that the flat index claims to beat, each complete, behind one trait.
//!
//! A reader who wants one design reads one file; its header says what it stands for, where that is
//! published, and where this form departs from it. All answer the same contract suite, the exact ones
//! the same differential test, and all are played the same streams by the same benchmark.
//!
//! 1. [`design`] – the trait, the answer, and what every design may assume of its events
//! 2. [`nested_dict`], [`inverted`], [`radix`], [`concurrent_radix`], [`positional`],
//!    [`host_bitmaps`], [`flat`] – the designs
//! 3. [`exclusive`], [`actor`], [`sticky`] – how a design that is not shared by itself is shared: one
//!    lock, one thread behind a channel, or writer threads that each own some of the workers
//! 4. [`catalogue`] – all of them by name
//! 5. [`opstream`] – recorded events and queries as a file; [`synthetic`] makes one
//! 6. [`counting`] – an allocator that counts, for bytes per membership

pub mod actor;
mod bitmap_roster;
pub mod catalogue;
mod chain;
pub mod concurrent_radix;
pub mod counting;
pub mod design;
pub mod exclusive;
pub mod flat;
pub mod host_bitmaps;
pub mod inverted;
mod lookup;
mod message;
pub mod nested_dict;
mod node_arena;
pub mod opstream;
pub mod positional;
pub mod radix;
mod radix_node;
pub mod sticky;
mod stream_reader;
mod stream_writer;
pub mod synthetic;
mod worker_set;

pub use design::{Answer, Match, Matching, PrefixIndex};
