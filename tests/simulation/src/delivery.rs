//! The delivery of one worker's records to one log or one replica: the shipped outbox, and the retry policy of the
//! service.

use std::rc::Rc;

use kvatlas_events::outbox::{Bounds, Outbox, Ticket};

use crate::log::{Log, Record};
use crate::plan::Plan;
use crate::record::last_event;
use crate::replica::Replica;
use crate::rng::Rng;

const RETRY_MS_MIN: u64 = 50;
const RETRY_MS_MAX: u64 = 1_000;
/// Pause between two snapshots that a receiver requests.
const SNAPSHOT_MS_MIN: u64 = 500;
const SNAPSHOT_MS_MAX: u64 = 2_000;

/// The next step of a delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// None: nothing waits.
    Idle,
    /// After this many ms.
    After(u64),
    /// None: the receiver follows this later epoch of the worker.
    Fenced(u64),
}

/// One delivery.
#[derive(Debug)]
pub struct Delivery {
    /// The receiving replica; None: a log.
    pub replica: Option<usize>,
    outbox: Outbox<Record>,
    in_flight: Option<(Ticket, u64)>,
    identity: Option<u64>,
    retry_ms: u64,
    snapshot_pause_ms: u64,
    snapshot_not_before_ms: u64,
    overflows: u64,
    /// Whether a step is scheduled.
    pub is_awake: bool,
}

impl Delivery {
    /// An empty delivery in which `records_max` numbered records may wait.
    #[must_use]
    pub fn new(records_max: usize, replica: Option<usize>) -> Self {
        Self {
            replica,
            outbox: Outbox::new(Bounds {
                records_max,
                bytes_max: 1 << 20,
            }),
            in_flight: None,
            identity: None,
            retry_ms: RETRY_MS_MIN,
            snapshot_pause_ms: SNAPSHOT_MS_MIN,
            snapshot_not_before_ms: 0,
            overflows: 0,
            is_awake: false,
        }
    }

    /// Queues a numbered record.
    pub fn push(&mut self, record: &Record) {
        let bytes = record.len();
        self.outbox.push(Rc::clone(record), bytes);
    }

    /// Queues a heartbeat.
    pub fn push_heartbeat(&mut self, record: &Record) {
        let bytes = record.len();
        self.outbox.push_heartbeat(Rc::clone(record), bytes);
    }

    /// Makes the next step begin with a snapshot.
    pub fn require_snapshot(&mut self) {
        self.outbox.require_snapshot();
    }

    /// Number of overflows since the last call.
    pub fn take_overflows(&mut self) -> u64 {
        let now = self.outbox.overflows();
        now - std::mem::replace(&mut self.overflows, now)
    }

    /// One step towards a log: handles the acknowledgement of the last append, and appends waiting records. With `loses_ack`
    /// the records are stored, but the acknowledgement is lost.
    pub fn step(
        &mut self,
        log: &mut Log,
        snapshot: impl FnOnce() -> Vec<Record>,
        loses_ack: bool,
        rng: &mut Rng,
        now_ms: u64,
    ) -> Next {
        if let Some((ticket, identity)) = self.in_flight.take() {
            if loses_ack {
                return self.pause(rng);
            }
            self.retry_ms = RETRY_MS_MIN;
            self.outbox.acknowledge(ticket);
            if self
                .identity
                .replace(identity)
                .is_some_and(|before| before != identity)
            {
                self.outbox.require_snapshot();
            }
        }
        if self.outbox.awaits_snapshot() {
            let Some(identity) = log.append(&[], now_ms) else {
                return self.pause(rng);
            };
            self.identity = Some(identity);
            self.push_snapshot(snapshot());
        }
        let Some((ticket, records)) = self.peek() else {
            return Next::Idle;
        };
        match log.append(&records, now_ms) {
            None => self.pause(rng),
            Some(identity) => {
                self.in_flight = Some((ticket, identity));
                Next::After(rng.between(1, 30))
            }
        }
    }

    /// One step towards a replica, which answers with its position.
    pub fn step_direct(
        &mut self,
        receiver: &mut Replica,
        snapshot: impl FnOnce() -> Vec<Record>,
        loses_ack: bool,
        plan: &Plan,
        rng: &mut Rng,
        now_ms: u64,
    ) -> Next {
        if !receiver.answers_pushes(now_ms) {
            return self.pause(rng);
        }
        if self.outbox.awaits_snapshot() {
            self.push_snapshot(snapshot());
        }
        let Some((ticket, records)) = self.peek() else {
            return Next::Idle;
        };
        let (rejected, position) = receiver.apply_pushed(&records, plan, now_ms);
        if loses_ack {
            return self.pause(rng);
        }
        self.retry_ms = RETRY_MS_MIN;
        self.outbox.acknowledge(ticket);
        if rejected > 0 {
            return self.pause(rng);
        }
        let sent = records.last().and_then(|last| last_event(last));
        if let (Some(sent), Some(position)) = (sent, position) {
            if position.epoch > sent.0 {
                return Next::Fenced(position.epoch);
            }
            let is_behind = (position.epoch, position.last_event_id) < sent;
            self.on_receiver_state(!position.whole || is_behind, now_ms);
        }
        Next::After(rng.between(1, 30))
    }

    /// Requests a snapshot if the receiver cannot continue, at most once per pause.
    fn on_receiver_state(&mut self, needs_snapshot: bool, now_ms: u64) {
        if self.outbox.holds_snapshot() || self.outbox.awaits_snapshot() {
            return; // a snapshot is on its way
        }
        if !needs_snapshot {
            self.snapshot_pause_ms = SNAPSHOT_MS_MIN;
        } else if now_ms >= self.snapshot_not_before_ms {
            self.snapshot_not_before_ms = now_ms + self.snapshot_pause_ms;
            self.snapshot_pause_ms = (2 * self.snapshot_pause_ms).min(SNAPSHOT_MS_MAX);
            self.outbox.require_snapshot();
        }
    }

    fn push_snapshot(&mut self, parts: Vec<Record>) {
        let parts = parts.into_iter().map(|part| {
            let bytes = part.len();
            (part, bytes)
        });
        self.outbox.push_snapshot(parts);
    }

    fn peek(&mut self) -> Option<(Ticket, Vec<Record>)> {
        let (ticket, records) = self.outbox.peek(8, 1 << 20)?;
        Some((ticket, records.into_iter().cloned().collect()))
    }

    fn pause(&mut self, rng: &mut Rng) -> Next {
        let pause_ms = self.retry_ms / 2 + rng.between(0, self.retry_ms / 2);
        self.retry_ms = (self.retry_ms * 2).min(RETRY_MS_MAX);
        Next::After(pause_ms)
    }
}
