//! A write on its way to the thread that applies it.

/// One call of the trait that changes something, with its arguments.
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

/// Writes that wait in one queue before the sender has to; keeps a slow thread from taking all memory.
pub(crate) const QUEUE_LEN: usize = 4096;
