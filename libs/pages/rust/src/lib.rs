//! Memory on large pages, for what is large, read at random places and grows: the index's tables, the publishers' mirrors.
//!
//! 1. [`pages`] – a heap of large regions, cut into pieces
//! 2. [`pages::ahead`] – a thread of low priority takes the next pages before anybody waits for them
//! 3. [`memory`] – the same as an allocator for collections
//! 4. [`system`] – what is asked of the system
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the module list above is for readers of the source"
)]

mod memory;
mod pages;
mod system;

pub use memory::Memory;
pub use pages::{Pages, Preparer};
pub use system::{PAGE, SMALL_PAGE};
