//! Sticky writer threads: look-ups run beside writes, and all writes of one worker run on the same thread.
//!
//! NVIDIA Dynamo's `ThreadPoolIndexer` (docs.nvidia.com/dynamo, digest, "Flash Indexer", section 5) assigns every worker to
//! one writer thread for good. So a worker's events stay in order, and data that only its writer needs (the places of its
//! blocks) belongs to that thread, as its *writer state*, without a lock. Look-ups run on the calling thread. [`Sticky`] does
//! that. [`Inline`] has one writer state, and applies writes on the calling thread, for benchmarks with their own threads.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use crate::design::{Answer, PrefixIndex};
use crate::sharing::message::{QUEUE_LEN, Write};

/// A design for sticky writers. The calls are those of [`PrefixIndex`].
pub trait StickyDesign: Send + Sync {
    /// Data that a writer keeps about its workers.
    type WriterState: Default + Send;
    /// As [`PrefixIndex::store`].
    fn store(
        &self,
        state: &mut Self::WriterState,
        worker: u32,
        parent: Option<u64>,
        chunks: &[u64],
    );
    /// As [`PrefixIndex::remove`].
    fn remove(&self, state: &mut Self::WriterState, worker: u32, hashes: &[u64]);
    /// As [`PrefixIndex::clear`].
    fn clear(&self, state: &mut Self::WriterState, worker: u32);
    /// As [`PrefixIndex::find`].
    fn find(&self, chunks: &[u64], answer: &mut Answer);
    /// As [`PrefixIndex::refused`].
    fn refused(&self) -> u64;
}

/// One writer state, used by the calling thread.
#[derive(Default)]
pub struct Inline<L: StickyDesign> {
    design: L,
    state: Mutex<L::WriterState>,
}

impl<L: StickyDesign> Inline<L> {
    /// Shares `design`.
    pub fn new(design: L) -> Self {
        Self {
            design,
            state: Mutex::default(),
        }
    }
}

impl<L: StickyDesign> PrefixIndex for Inline<L> {
    fn store(&self, worker: u32, parent: Option<u64>, chunks: &[u64]) {
        self.design
            .store(&mut self.state.lock(), worker, parent, chunks);
    }

    fn remove(&self, worker: u32, hashes: &[u64]) {
        self.design.remove(&mut self.state.lock(), worker, hashes);
    }

    fn clear(&self, worker: u32) {
        self.design.clear(&mut self.state.lock(), worker);
    }

    fn find(&self, chunks: &[u64], answer: &mut Answer) {
        self.design.find(chunks, answer);
    }

    fn refused(&self) -> u64 {
        self.design.refused()
    }
}

enum Message {
    Write(Write),
    Settle(std::sync::mpsc::Sender<()>),
}

const ALIVE: &str = "writer threads take messages until their owner drops them, or one panicked";

/// Writer threads, each with its writer state. Dropping this ends them once their queues are empty.
pub struct Sticky<L: StickyDesign + 'static> {
    design: Arc<L>,
    queues: Vec<SyncSender<Message>>,
    threads: Vec<JoinHandle<()>>,
}

impl<L: StickyDesign + 'static> Sticky<L> {
    /// Starts `writers` threads, at least one.
    pub fn new(design: L, writers: usize) -> Self {
        let design = Arc::new(design);
        let (queues, threads) = (0..writers.max(1))
            .map(|_| {
                let (queue, messages) = sync_channel(QUEUE_LEN);
                let design = Arc::clone(&design);
                (queue, std::thread::spawn(move || run(&*design, &messages)))
            })
            .unzip();
        Self {
            design,
            queues,
            threads,
        }
    }

    fn send(&self, write: Write) {
        let queue = &self.queues[write.worker() as usize % self.queues.len()];
        queue.send(Message::Write(write)).expect(ALIVE);
    }
}

fn run<L: StickyDesign>(design: &L, messages: &Receiver<Message>) {
    let mut state = L::WriterState::default();
    for message in messages {
        match message {
            Message::Write(Write::Store {
                worker,
                parent,
                chunks,
            }) => design.store(&mut state, worker, parent, &chunks),
            Message::Write(Write::Remove { worker, hashes }) => {
                design.remove(&mut state, worker, &hashes);
            }
            Message::Write(Write::Clear { worker }) => design.clear(&mut state, worker),
            // The caller that waited may be gone.
            Message::Settle(reply) => {
                let _ = reply.send(());
            }
        }
    }
}

impl<L: StickyDesign> PrefixIndex for Sticky<L> {
    fn store(&self, worker: u32, parent: Option<u64>, chunks: &[u64]) {
        let chunks = chunks.into();
        self.send(Write::Store {
            worker,
            parent,
            chunks,
        });
    }

    fn remove(&self, worker: u32, hashes: &[u64]) {
        let hashes = hashes.into();
        self.send(Write::Remove { worker, hashes });
    }

    fn clear(&self, worker: u32) {
        self.send(Write::Clear { worker });
    }

    fn find(&self, chunks: &[u64], answer: &mut Answer) {
        self.design.find(chunks, answer);
    }

    fn settle(&self) {
        let (reply, replies) = channel();
        for queue in &self.queues {
            queue.send(Message::Settle(reply.clone())).expect(ALIVE);
        }
        drop(reply);
        for () in replies.iter().take(self.queues.len()) {}
    }

    fn refused(&self) -> u64 {
        self.settle();
        self.design.refused()
    }
}

impl<L: StickyDesign + 'static> Drop for Sticky<L> {
    fn drop(&mut self) {
        self.queues.clear();
        for thread in self.threads.drain(..) {
            // A panic there was reported by the thread itself.
            let _ = thread.join();
        }
    }
}
