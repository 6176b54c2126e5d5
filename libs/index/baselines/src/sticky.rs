//! Designs whose look-ups run beside writes, while each worker's writes stay on one thread.
//!
//! NVIDIA Dynamo's `ThreadPoolIndexer` (docs.nvidia.com/dynamo, digest, "Flash Indexer", section 5)
//! assigns every worker to a writer thread for good: a worker's events stay in order, and what only its
//! writer needs – where its blocks are – belongs to that thread, its *lane*, without a lock. Look-ups run
//! where they are called. [`Sticky`] is that; [`Inline`] is one lane whose writes are applied by whoever
//! calls, as a benchmark with an event thread of its own wants it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use crate::design::{Answer, PrefixIndex};
use crate::message::{QUEUE_LEN, Write};

/// A design of that kind. The words mean what they mean in [`PrefixIndex`].
pub trait Lanes: Send + Sync {
    /// What a writer keeps about its workers.
    type Lane: Default + Send;
    /// As [`PrefixIndex::store`].
    fn store(&self, lane: &mut Self::Lane, worker: u32, parent: Option<u64>, chunks: &[u64]);
    /// As [`PrefixIndex::remove`].
    fn remove(&self, lane: &mut Self::Lane, worker: u32, hashes: &[u64]);
    /// As [`PrefixIndex::clear`].
    fn clear(&self, lane: &mut Self::Lane, worker: u32);
    /// As [`PrefixIndex::find`].
    fn find(&self, chunks: &[u64], answer: &mut Answer);
    /// As [`PrefixIndex::refused`].
    fn refused(&self) -> u64;
}

/// One lane, written by the caller.
#[derive(Default)]
pub struct Inline<L: Lanes> {
    design: L,
    lane: Mutex<L::Lane>,
}

impl<L: Lanes> Inline<L> {
    /// Shares `design`.
    pub fn new(design: L) -> Self {
        Self {
            design,
            lane: Mutex::default(),
        }
    }
}

impl<L: Lanes> PrefixIndex for Inline<L> {
    fn store(&self, worker: u32, parent: Option<u64>, chunks: &[u64]) {
        self.design
            .store(&mut self.lane.lock(), worker, parent, chunks);
    }

    fn remove(&self, worker: u32, hashes: &[u64]) {
        self.design.remove(&mut self.lane.lock(), worker, hashes);
    }

    fn clear(&self, worker: u32) {
        self.design.clear(&mut self.lane.lock(), worker);
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

/// Writer threads, each with the lane of its workers. Dropping it ends them once their queues are empty.
pub struct Sticky<L: Lanes + 'static> {
    design: Arc<L>,
    queues: Vec<SyncSender<Message>>,
    threads: Vec<JoinHandle<()>>,
}

impl<L: Lanes + 'static> Sticky<L> {
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

fn run<L: Lanes>(design: &L, messages: &Receiver<Message>) {
    let mut lane = L::Lane::default();
    for message in messages {
        match message {
            Message::Write(Write::Store {
                worker,
                parent,
                chunks,
            }) => design.store(&mut lane, worker, parent, &chunks),
            Message::Write(Write::Remove { worker, hashes }) => {
                design.remove(&mut lane, worker, &hashes);
            }
            Message::Write(Write::Clear { worker }) => design.clear(&mut lane, worker),
            // Whoever waited may be gone.
            Message::Settle(reply) => {
                let _ = reply.send(());
            }
        }
    }
}

impl<L: Lanes> PrefixIndex for Sticky<L> {
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

impl<L: Lanes + 'static> Drop for Sticky<L> {
    fn drop(&mut self) {
        self.queues.clear();
        for thread in self.threads.drain(..) {
            // A panic there was reported by the thread itself.
            let _ = thread.join();
        }
    }
}
