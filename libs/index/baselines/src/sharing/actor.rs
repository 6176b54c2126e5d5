//! An actor: one thread owns the design, and every call, look-ups too, is a message to it.
//!
//! Stands for the second step of NVIDIA Dynamo's "Flash Indexer" post (docs.nvidia.com/dynamo, digest,
//! February 2026, section 2.2: a Rust actor owns the dictionary) and for its `KvIndexer`, the radix tree
//! behind a channel. Correct without a lock, and as fast as one thread: a look-up waits for all writes
//! that were sent before it. The queue is bounded; a sender waits while it is full.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use crate::design::{Answer, Match, PrefixIndex};
use crate::sharing::locked::Exclusive;
use crate::sharing::message::{QUEUE_LEN, Write};

const ALIVE: &str = "the thread takes messages until its owner drops it, or a call panicked there";

enum Message {
    Write(Write),
    Find {
        chunks: Box<[u64]>,
        reply: std::sync::mpsc::Sender<Vec<Match>>,
    },
    Refused(std::sync::mpsc::Sender<u64>),
}

/// The handle to the thread. Dropping it ends the thread once its queue is empty.
pub struct Actor {
    queue: Option<SyncSender<Message>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Actor {
    /// Starts the thread that owns `design`.
    pub fn new(design: impl Exclusive + 'static) -> Self {
        let (queue, messages) = sync_channel(QUEUE_LEN);
        let thread = std::thread::spawn(move || run(design, &messages));
        Self {
            queue: Some(queue),
            thread: Mutex::new(Some(thread)),
        }
    }

    fn send(&self, message: Message) {
        let queue = self.queue.as_ref().expect("only drop takes the queue");
        queue.send(message).expect(ALIVE);
    }
}

fn run(mut design: impl Exclusive, messages: &Receiver<Message>) {
    let mut answer = Answer::default();
    for message in messages {
        match message {
            Message::Write(Write::Store {
                worker,
                parent,
                chunks,
            }) => design.store(worker, parent, &chunks),
            Message::Write(Write::Remove { worker, hashes }) => design.remove(worker, &hashes),
            Message::Write(Write::Clear { worker }) => design.clear(worker),
            // A caller that is gone needs no answer.
            Message::Find { chunks, reply } => {
                design.find(&chunks, &mut answer);
                let _ = reply.send(answer.matches.clone());
            }
            Message::Refused(reply) => {
                let _ = reply.send(design.refused());
            }
        }
    }
}

impl PrefixIndex for Actor {
    fn store(&self, worker: u32, parent: Option<u64>, chunks: &[u64]) {
        let chunks = chunks.into();
        self.send(Message::Write(Write::Store {
            worker,
            parent,
            chunks,
        }));
    }

    fn remove(&self, worker: u32, hashes: &[u64]) {
        let hashes = hashes.into();
        self.send(Message::Write(Write::Remove { worker, hashes }));
    }

    fn clear(&self, worker: u32) {
        self.send(Message::Write(Write::Clear { worker }));
    }

    fn find(&self, chunks: &[u64], answer: &mut Answer) {
        let (reply, received) = channel();
        self.send(Message::Find {
            chunks: chunks.into(),
            reply,
        });
        answer.begin();
        answer.matches = received.recv().expect(ALIVE);
    }

    fn settle(&self) {
        self.refused();
    }

    fn refused(&self) -> u64 {
        let (reply, received) = channel();
        self.send(Message::Refused(reply));
        received.recv().expect(ALIVE)
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.queue = None;
        let thread = self.thread.get_mut().map(Option::take);
        if let Ok(Some(thread)) = thread {
            // A panic there was reported by the thread itself.
            let _ = thread.join();
        }
    }
}
