//! The publisher's side: an epoch, its sealed records, the shipped outbox, and the delivery's steps
//! between outbox and log. Faults may happen between any two steps.

use kvatlas_events::outbox::{Bounds, Outbox, Ticket};
use kvatlas_events::sequencer::{Events, Incarnation, ShutdownReason};

use crate::receiver::{Mutation, Record};
use crate::script::{EventRange, held, incarnation, snapshot};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Publisher {
    pub epoch: u8,
    pub carries: bool,
    /// Number of published events; each batch is sealed at once.
    pub published: u64,
    pub left: bool,
    pub outbox: Outbox<Record>,
    /// Appended, and not acknowledged yet.
    pub in_flight: Option<Ticket>,
}

impl Publisher {
    pub fn new(epoch: u8, carries: bool, outbox_records: usize) -> Self {
        let mut publisher = Self {
            epoch,
            carries,
            published: u64::from(carries),
            left: false,
            outbox: Outbox::new(Bounds {
                records_max: outbox_records,
                bytes_max: 100,
            }),
            in_flight: None,
        };
        if carries {
            publisher.outbox.require_snapshot();
        }
        publisher
    }

    pub fn incarnation(&self) -> Incarnation {
        incarnation(self.epoch, self.carries)
    }

    /// The next events, as one record.
    pub fn publish(&mut self, events: u64, broken: Option<Mutation>) {
        let record = self.events(self.published + 1, self.published + events);
        self.published += events;
        self.push(record, broken);
    }

    /// The publisher leaves: the last event of the epoch.
    pub fn leave(&mut self, broken: Option<Mutation>) {
        self.left = true;
        self.push(self.shutdown(), broken);
    }

    fn push(&mut self, record: Record, broken: Option<Mutation>) {
        let queued = self.outbox.push(record, 1);
        if !queued && broken == Some(Mutation::OverflowIgnored) {
            self.outbox.push_snapshot([]);
        }
    }

    pub fn beat(&mut self) {
        let set = held(self.incarnation(), self.published);
        let beat = Record::Heartbeat(self.incarnation(), self.published, set);
        self.outbox.push_heartbeat(beat, 1);
    }

    /// The delivery's next step: a snapshot if one is due, then an append of at most two records.
    pub fn append(&mut self) -> Vec<Record> {
        if self.outbox.awaits_snapshot() {
            let parts = self.snapshot_records();
            self.outbox
                .push_snapshot(parts.into_iter().map(|part| (part, 1)));
        }
        let Some((ticket, records)) = self.outbox.peek(2, 100) else {
            return Vec::new();
        };
        let records = records.into_iter().cloned().collect();
        self.in_flight = Some(ticket);
        records
    }

    pub fn acknowledged(&mut self, broken: Option<Mutation>) {
        if let Some(ticket) = self.in_flight.take() {
            let all = broken == Some(Mutation::AcknowledgesAll);
            self.outbox
                .acknowledge(if all { Ticket(u64::MAX) } else { ticket });
        }
    }

    /// Whether nothing waits to be delivered.
    pub fn is_idle(&self) -> bool {
        self.outbox.is_empty() && !self.outbox.awaits_snapshot() && self.in_flight.is_none()
    }

    /// As `Publisher.Snapshot` answers, and as a delivery sends it.
    pub fn snapshot_records(&self) -> Vec<Record> {
        let parts = snapshot(self.incarnation(), self.published).into_iter();
        let parts = parts.map(|part| Record::Part(self.incarnation(), part));
        parts.chain(self.left.then(|| self.shutdown())).collect()
    }

    /// As `Publisher.Replay` answers: from the record that holds `from` on, if the ring of the
    /// newest `ring` events still has it.
    pub fn replay(&self, from: u64, ring: u64) -> Option<Vec<Record>> {
        let begins = 1 + u64::from(self.carries);
        if from < begins || from > self.published + 1 || from + ring <= self.published {
            return None;
        }
        let ids = from..=self.published;
        Some(ids.map(|id| self.events(id, id)).collect())
    }

    fn events(&self, first: u64, last: u64) -> Record {
        let range = EventRange {
            epoch: self.epoch,
            first: u8::try_from(first).unwrap(),
            count: u8::try_from(last + 1 - first).unwrap(),
        };
        let events = Events {
            first_event_id: first,
            count: u32::from(range.count),
            shutdown: None,
            payload: range,
        };
        Record::Events(self.incarnation(), events)
    }

    fn shutdown(&self) -> Record {
        let events = Events {
            first_event_id: self.published + 1,
            count: 1,
            shutdown: Some(ShutdownReason::PublisherLeaving),
            payload: EventRange {
                epoch: self.epoch,
                first: 1,
                count: 0,
            },
        };
        Record::Events(self.incarnation(), events)
    }
}
