//! Designs that only one thread at a time may change, and the simplest way to share one: a lock around it.

use parking_lot::RwLock;

use crate::design::{Answer, PrefixIndex};

/// [`PrefixIndex`] for one owner.
pub trait Exclusive: Send + Sync {
    /// As [`PrefixIndex::store`].
    fn store(&mut self, worker: u32, parent: Option<u64>, chunks: &[u64]);
    /// As [`PrefixIndex::remove`].
    fn remove(&mut self, worker: u32, hashes: &[u64]);
    /// As [`PrefixIndex::clear`].
    fn clear(&mut self, worker: u32);
    /// As [`PrefixIndex::find`].
    fn find(&self, chunks: &[u64], answer: &mut Answer);
    /// As [`PrefixIndex::refused`].
    fn refused(&self) -> u64 {
        0
    }
}

/// A design behind one readers-writer lock.
#[derive(Default)]
pub struct Locked<E>(RwLock<E>);

impl<E: Exclusive> Locked<E> {
    /// Shares `design`.
    pub fn new(design: E) -> Self {
        Self(RwLock::new(design))
    }
}

impl<E: Exclusive> PrefixIndex for Locked<E> {
    fn store(&self, worker: u32, parent: Option<u64>, chunks: &[u64]) {
        self.0.write().store(worker, parent, chunks);
    }

    fn remove(&self, worker: u32, hashes: &[u64]) {
        self.0.write().remove(worker, hashes);
    }

    fn clear(&self, worker: u32) {
        self.0.write().clear(worker);
    }

    fn find(&self, chunks: &[u64], answer: &mut Answer) {
        self.0.read().find(chunks, answer);
    }

    fn refused(&self) -> u64 {
        self.0.read().refused()
    }
}
