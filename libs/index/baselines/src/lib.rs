//! The designs that the flat index is measured against, each complete, behind one trait.
//!
//! To understand one design, read one file; its header says what it stands for, where that is published, and where this form
//! departs from it. All pass the same contract suite, the exact ones the same differential test, and the same benchmark plays
//! the same streams to all.
//!
//! 1. [`design`] – the trait, the answer, and what every design may assume of its events
//! 2. [`designs`] – the designs; `parts` – the data structures that they share
//! 3. [`sharing`] – how a design for one owner is shared: one lock, one thread behind a channel, or writer threads that each
//!    own some of the workers
//! 4. [`catalogue`] – all of them by name
//! 5. [`stream`] – recorded events and queries as a file
//! 6. [`counting_allocator`] – counts bytes, for bytes per membership

pub mod catalogue;
pub mod counting_allocator;
pub mod design;
pub mod designs;
mod parts;
pub mod sharing;
pub mod stream;

pub use design::{Answer, Match, Matching, PrefixIndex};
