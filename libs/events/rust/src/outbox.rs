//! The publisher's outbox: a bounded queue of one worker's records for one log writer.
//!
//! Transports stall and engines do not, so the queue needs a bound. A gap in numbered records is useless to
//! a receiver. So an outbox that would exceed its bound drops *all* its records, and accepts no numbered
//! records until it is given a snapshot, which replaces everything that was dropped. Every transport has an
//! outbox of its own, so a stalled transport does not affect the others.
//!
//! ```text
//!               push beyond a bound, or require_snapshot
//!        ┌──────┐ ─────────────────────────────────▶ ┌─────────────────┐
//!        │ open │                                    │ awaits snapshot │  push: dropped
//!        └──────┘ ◀───────────────────────────────── └─────────────────┘  peek: nothing
//!                            push_snapshot
//! ```
//!
//! Delivery is peek → append → acknowledge, and the queue may be emptied while an append is under way.
//! So every record has a ticket, which is larger than all earlier tickets and never used again. `peek`
//! returns the ticket of its last record, and acknowledging it releases the records up to there *that are
//! still queued*. An acknowledgement that is late, repeated or for dropped records releases nothing else.
//!
//! Heartbeats are not numbered, and only the newest matters. One waits beside the queue and is sent last,
//! after all records that it refers to, and not while a snapshot is awaited.
//!
//! A snapshot's parts are not bounded: they are as large as the mirror, which is as large as the engine's
//! cache. A bound would make a large mirror overflow with every snapshot. For the same reason they do not
//! count towards the bounds of the records behind them.

use std::collections::VecDeque;

/// Identifies the last record of an [`Outbox::peek`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// Bounds of the queued numbered records.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bounds {
    /// Number of records.
    pub records_max: usize,
    /// Bytes of all records together. A longer record can never be queued.
    pub bytes_max: usize,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Entry<R> {
    ticket: u64,
    bytes: usize,
    is_snapshot_part: bool,
    record: R,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Heartbeat<R> {
    /// Assigned by the peek that returns it, when all queued records have smaller tickets. Cleared by a
    /// peek that leaves it out, so that only the newest peek can release it.
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
    /// Records and bytes that count towards the bounds.
    numbered_records: usize,
    numbered_bytes: usize,
    /// Bytes of all queued records.
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

    /// Queues a numbered record of `bytes` bytes. False: it was dropped, and a snapshot is awaited.
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

    /// Replaces the waiting heartbeat.
    pub fn push_heartbeat(&mut self, record: R, bytes: usize) {
        self.heartbeat = Some(Heartbeat {
            ticket: None,
            bytes,
            record,
        });
    }

    /// Drops all records and opens again with a snapshot's parts, each with its length in bytes.
    pub fn push_snapshot(&mut self, parts: impl IntoIterator<Item = (R, usize)>) {
        self.drop_queue();
        self.awaits_snapshot = false;
        for (record, bytes) in parts {
            self.enqueue(record, bytes, true);
        }
    }

    /// Drops all records and awaits a snapshot: the receiver cannot continue from the queue.
    pub fn require_snapshot(&mut self) {
        self.drop_queue();
        self.awaits_snapshot = true;
    }

    /// The oldest records and the ticket that acknowledges them. At most `records_max` records and `bytes_max`
    /// bytes, but at least one record if there is one. They stay queued.
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

    /// Releases the records of the peek with this ticket, as far as they are still queued.
    pub fn acknowledge(&mut self, up_to: Ticket) {
        let released = self.queue.partition_point(|entry| entry.ticket <= up_to.0);
        for entry in self.queue.drain(..released) {
            self.queued_bytes -= entry.bytes;
            if !entry.is_snapshot_part {
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

    /// Whether a part of a snapshot is still queued.
    #[must_use]
    pub fn holds_snapshot(&self) -> bool {
        // A snapshot's parts are always the first in the queue.
        self.queue
            .front()
            .is_some_and(|entry| entry.is_snapshot_part)
    }

    /// Number of queued numbered records and snapshot parts, without the waiting heartbeat.
    #[must_use]
    pub fn queued_records(&self) -> usize {
        self.queue.len()
    }

    /// Bytes of the queued records.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Whether `peek` would return nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty() && (self.heartbeat.is_none() || self.awaits_snapshot)
    }

    /// Number of times that a bound was exceeded.
    #[must_use]
    pub fn overflows(&self) -> u64 {
        self.overflows
    }

    fn enqueue(&mut self, record: R, bytes: usize, is_snapshot_part: bool) {
        self.queue.push_back(Entry {
            ticket: self.next_ticket,
            bytes,
            is_snapshot_part,
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
