//! Ways to share a design between threads.

pub mod actor;
pub mod locked;
mod message;
pub mod sticky;
