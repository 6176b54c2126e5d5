//! One worker's records on their way to one log: the shipped outbox, and a delivery's policy.

use std::rc::Rc;

use kvatlas_events::outbox::{Bounds, Outbox, Ticket};

use crate::log::{Log, Record};
use crate::rng::Rng;

const RETRY_MS_MIN: u64 = 50;
const RETRY_MS_MAX: u64 = 1_000;

/// What an outlet does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Nothing waits.
    Idle,
    /// Again, so many ms later.
    After(u64),
}

/// One delivery.
#[derive(Debug)]
pub struct Outlet {
    outbox: Outbox<Record>,
    in_flight: Option<(Ticket, u64)>,
    identity: Option<u64>,
    retry_ms: u64,
    /// A step is scheduled.
    pub awake: bool,
}

impl Outlet {
    /// Empty; `records_max` numbered records may wait.
    #[must_use]
    pub fn new(records_max: usize) -> Self {
        Self {
            outbox: Outbox::new(Bounds {
                records_max,
                bytes_max: 1 << 20,
            }),
            in_flight: None,
            identity: None,
            retry_ms: RETRY_MS_MIN,
            awake: false,
        }
    }

    /// Queue a numbered record.
    pub fn push(&mut self, record: &Record) {
        let bytes = record.len();
        self.outbox.push(Rc::clone(record), bytes);
    }

    /// Queue a heartbeat.
    pub fn push_heartbeat(&mut self, record: &Record) {
        let bytes = record.len();
        self.outbox.push_heartbeat(Rc::clone(record), bytes);
    }

    /// Open with a snapshot.
    pub fn require_snapshot(&mut self) {
        self.outbox.require_snapshot();
    }

    /// How often it overflowed.
    #[must_use]
    pub fn overflows(&self) -> u64 {
        self.outbox.overflows()
    }

    /// One step: heed the last append's acknowledgement, or append what waits. `loses_ack`: what was
    /// appended is there, and the writer will not hear of it.
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
            let parts = snapshot().into_iter().map(|part| {
                let bytes = part.len();
                (part, bytes)
            });
            self.outbox.push_snapshot(parts);
        }
        let Some((ticket, records)) = self.outbox.peek(8, 1 << 20) else {
            return Next::Idle;
        };
        let records: Vec<Record> = records.into_iter().cloned().collect();
        match log.append(&records, now_ms) {
            None => self.pause(rng),
            Some(identity) => {
                self.in_flight = Some((ticket, identity));
                Next::After(rng.between(1, 30))
            }
        }
    }

    fn pause(&mut self, rng: &mut Rng) -> Next {
        let pause_ms = self.retry_ms / 2 + rng.between(0, self.retry_ms / 2);
        self.retry_ms = (self.retry_ms * 2).min(RETRY_MS_MAX);
        Next::After(pause_ms)
    }
}
