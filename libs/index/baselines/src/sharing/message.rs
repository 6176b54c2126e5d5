//! A write as a message to the thread that applies it.

/// A call of the trait that changes something, with its arguments.
pub(crate) enum Write {
    Store {
        worker: u32,
        parent: Option<u64>,
        chunks: Box<[u64]>,
    },
    Remove {
        worker: u32,
        hashes: Box<[u64]>,
    },
    Clear {
        worker: u32,
    },
}

impl Write {
    pub fn worker(&self) -> u32 {
        match *self {
            Self::Store { worker, .. } | Self::Remove { worker, .. } | Self::Clear { worker } => {
                worker
            }
        }
    }
}

/// Length of a queue. A sender waits while it is full, so a slow thread does not take all memory.
pub(crate) const QUEUE_LEN: usize = 4096;
