//! Memory on large pages, for data that is large, read at random places, and grows: the index's tables, the publishers'
//! mirrors.
//!
//! 1. [`heap`] – a heap of large regions, cut into pieces
//! 2. [`prefault`] – a thread of low priority that takes the next pages before anybody waits for them
//! 3. [`allocator`] – the same as an allocator for collections
//! 4. [`system`] – the calls to the system
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the module list above is for readers of the source"
)]

mod allocator;
mod heap;
mod prefault;
mod system;

pub use allocator::Memory;
pub use heap::PageHeap;
pub use prefault::Prefaulter;
pub use system::{PAGE, SMALL_PAGE};
