//! The publisher's outbox: a bounded queue of one worker's records towards one log writer.
//!
//! It exists because transports stall and engines do not. What is queued may not grow without a
//! bound, and a gap in the middle of numbered records helps nobody: so an outbox that would exceed
//! its bound drops *everything* it holds and takes no more numbered records until it has been given
//! a snapshot, which stands for all that was dropped. Every transport has an outbox of its own, so
//! one that stalls costs the others nothing.
//!
//! ```text
//!               push beyond a bound, or require_snapshot
//!        ┌──────┐ ─────────────────────────────────▶ ┌─────────────────┐
//!        │ open │                                    │ awaits snapshot │  push: dropped
//!        └──────┘ ◀───────────────────────────────── └─────────────────┘  peek: nothing
//!                            push_snapshot
//! ```
//!
//! Delivery is peek → append → acknowledge, and the queue may be emptied while an append is under
//! way. Every record therefore has a ticket, larger than all tickets before it and never used
//! again; `peek` names the last ticket that it gave out, and acknowledging it releases the records
//! up to there *that are still queued*. Acknowledging late, twice, or what was dropped meanwhile
//! releases nothing else.
//!
//! Heartbeats are not numbered and only the newest matters: one waits beside the queue and goes
//! last, after everything that it speaks of, and not at all while a snapshot is awaited.
//!
//! A snapshot's parts are not bounded: they are as large as the mirror, which is as large as the
//! engine's cache. Bounding them would let a large mirror overflow its own snapshot for ever. They
//! do not count towards the bounds of the records behind them either.

use std::collections::VecDeque;

/// Names the last record of a [`Outbox::peek`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// What may be queued of numbered records.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bounds {
    /// At most so many records.
    pub records_max: usize,
    /// At most so many bytes of them together; a longer record can never be queued.
    pub bytes_max: usize,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Entry<R> {
    ticket: u64,
    bytes: usize,
    of_snapshot: bool,
    record: R,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Heartbeat<R> {
    /// Given when it is peeked, since by then everything queued has a smaller one; taken back
    /// when the next peek leaves it out, so that only the newest peek can release it.
    ticket: Option<u64>,
    bytes: usize,
    record: R,
}

/// A bounded queue of records of type `R`; it never looks inside them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Outbox<R> {
    bounds: Bounds,
    queue: VecDeque<Entry<R>>,
    heartbeat: Option<Heartbeat<R>>,
    next_ticket: u64,
    /// Of the queue, how much counts towards the bounds, and how much there is.
    numbered_records: usize,
    numbered_bytes: usize,
    queued_bytes: usize,
    awaits_snapshot: bool,
    overflows: u64,
}

impl<R> Outbox<R> {
    /// An open, empty outbox.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            queue: VecDeque::new(),
            heartbeat: None,
            next_ticket: 1,
            numbered_records: 0,
            numbered_bytes: 0,
            queued_bytes: 0,
            awaits_snapshot: false,
            overflows: 0,
        }
    }

    /// Queue a numbered record of `bytes` bytes. False: dropped, and a snapshot is awaited.
    pub fn push(&mut self, record: R, bytes: usize) -> bool {
        if self.awaits_snapshot {
            return false;
        }
        let fits = self.numbered_records < self.bounds.records_max
            && bytes <= self.bounds.bytes_max - self.numbered_bytes;
        if !fits {
            self.overflows += 1;
            self.require_snapshot();
            return false;
        }
        self.numbered_records += 1;
        self.numbered_bytes += bytes;
        self.enqueue(record, bytes, false);
        true
    }

    /// Replace the waiting heartbeat.
    pub fn push_heartbeat(&mut self, record: R, bytes: usize) {
        self.heartbeat = Some(Heartbeat {
            ticket: None,
            bytes,
            record,
        });
    }

    /// Drop everything queued and open again with a snapshot's parts, each with its length.
    pub fn push_snapshot(&mut self, parts: impl IntoIterator<Item = (R, usize)>) {
        self.drop_queue();
        self.awaits_snapshot = false;
        for (record, bytes) in parts {
            self.enqueue(record, bytes, true);
        }
    }

    /// Drop everything queued: the receiver cannot continue from it.
    pub fn require_snapshot(&mut self) {
        self.drop_queue();
        self.awaits_snapshot = true;
    }

    /// The oldest records, at most `records_max` of together at most `bytes_max` bytes, but at
    /// least one if there is one; with the ticket that acknowledges them. They stay queued.
    pub fn peek(&mut self, records_max: usize, bytes_max: usize) -> Option<(Ticket, Vec<&R>)> {
        let records_max = records_max.max(1);
        let mut taken = Vec::new();
        let mut bytes = 0_usize;
        let mut last = None;
        for entry in self.queue.iter().take(records_max) {
            if !taken.is_empty() && bytes + entry.bytes > bytes_max {
                break;
            }
            bytes += entry.bytes;
            last = Some(entry.ticket);
            taken.push(&entry.record);
        }
        let goes_last = taken.len() == self.queue.len() && !self.awaits_snapshot;
        if let Some(heartbeat) = &mut self.heartbeat {
            let fits = taken.len() < records_max
                && (taken.is_empty() || bytes + heartbeat.bytes <= bytes_max);
            heartbeat.ticket = (goes_last && fits).then_some(self.next_ticket);
            if heartbeat.ticket.is_some() {
                last = heartbeat.ticket;
                self.next_ticket += 1;
                taken.push(&heartbeat.record);
            }
        }
        last.map(|ticket| (Ticket(ticket), taken))
    }

    /// Release what a `peek` with this ticket gave, as far as it is still here.
    pub fn acknowledge(&mut self, up_to: Ticket) {
        let released = self.queue.partition_point(|entry| entry.ticket <= up_to.0);
        for entry in self.queue.drain(..released) {
            self.queued_bytes -= entry.bytes;
            if !entry.of_snapshot {
                self.numbered_records -= 1;
                self.numbered_bytes -= entry.bytes;
            }
        }
        self.heartbeat
            .take_if(|heartbeat| heartbeat.ticket.is_some_and(|ticket| ticket <= up_to.0));
    }

    /// Whether numbered records are dropped until `push_snapshot`.
    #[must_use]
    pub fn awaits_snapshot(&self) -> bool {
        self.awaits_snapshot
    }

    /// Whether a part of a snapshot has not been acknowledged yet.
    #[must_use]
    pub fn holds_snapshot(&self) -> bool {
        // Parts are only ever queued first.
        self.queue.front().is_some_and(|entry| entry.of_snapshot)
    }

    /// Queued numbered records and snapshot parts; the waiting heartbeat is none of them.
    #[must_use]
    pub fn queued_records(&self) -> usize {
        self.queue.len()
    }

    /// The bytes of the queued records.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Whether `peek` would give anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty() && (self.heartbeat.is_none() || self.awaits_snapshot)
    }

    /// How often a bound was exceeded.
    #[must_use]
    pub fn overflows(&self) -> u64 {
        self.overflows
    }

    fn enqueue(&mut self, record: R, bytes: usize, of_snapshot: bool) {
        self.queue.push_back(Entry {
            ticket: self.next_ticket,
            bytes,
            of_snapshot,
            record,
        });
        self.next_ticket += 1;
        self.queued_bytes += bytes;
    }

    fn drop_queue(&mut self) {
        self.queue.clear();
        self.numbered_records = 0;
        self.numbered_bytes = 0;
        self.queued_bytes = 0;
    }
}
