//! The publisher's side: a life, its sealed records, the shipped outbox, and the delivery's steps
//! between outbox and log, each of which something may come between.

use kvatlas_events::outbox::{Bounds, Outbox, Ticket};
use kvatlas_events::sequencer::{Closing, Events, Speaker};

use crate::receiver::{Mutation, Record};
use crate::script::{Said, held, snapshot, speaker};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Publisher {
    pub life: u8,
    pub carries: bool,
    /// Events said; each batch is sealed at once, as everything that reads a life does first.
    pub said: u64,
    pub left: bool,
    pub outbox: Outbox<Record>,
    /// Appended, and not acknowledged yet.
    pub in_flight: Option<Ticket>,
}

impl Publisher {
    pub fn new(life: u8, carries: bool, outbox_records: usize) -> Self {
        let mut publisher = Self {
            life,
            carries,
            said: u64::from(carries),
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

    pub fn speaker(&self) -> Speaker {
        speaker(self.life, self.carries)
    }

    /// The next events, as one record.
    pub fn say(&mut self, events: u64, broken: Option<Mutation>) {
        let record = self.events(self.said + 1, self.said + events);
        self.said += events;
        self.push(record, broken);
    }

    /// The publisher leaves: the last event of the life.
    pub fn leave(&mut self, broken: Option<Mutation>) {
        self.left = true;
        self.push(self.farewell(), broken);
    }

    fn push(&mut self, record: Record, broken: Option<Mutation>) {
        let queued = self.outbox.push(record, 1);
        if !queued && broken == Some(Mutation::OverflowUnsaid) {
            self.outbox.push_snapshot([]);
        }
    }

    pub fn beat(&mut self) {
        let set = held(self.speaker(), self.said);
        let beat = Record::Heartbeat(self.speaker(), self.said, set);
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

    /// Whether nothing that was said waits here.
    pub fn is_idle(&self) -> bool {
        self.outbox.is_empty() && !self.outbox.awaits_snapshot() && self.in_flight.is_none()
    }

    /// As `Publisher.Snapshot` answers, and as a delivery sends it.
    pub fn snapshot_records(&self) -> Vec<Record> {
        let parts = snapshot(self.speaker(), self.said).into_iter();
        let parts = parts.map(|part| Record::Part(self.speaker(), part));
        parts.chain(self.left.then(|| self.farewell())).collect()
    }

    /// As `Publisher.Replay` answers: from the record that holds `from` on, if the ring of the
    /// newest `ring` events still has it.
    pub fn replay(&self, from: u64, ring: u64) -> Option<Vec<Record>> {
        let begins = 1 + u64::from(self.carries);
        if from < begins || from > self.said + 1 || from + ring <= self.said {
            return None;
        }
        let ids = from..=self.said;
        Some(ids.map(|id| self.events(id, id)).collect())
    }

    fn events(&self, first: u64, last: u64) -> Record {
        let said = Said {
            life: self.life,
            first: u8::try_from(first).unwrap(),
            count: u8::try_from(last + 1 - first).unwrap(),
        };
        let events = Events {
            first_event_id: first,
            count: u32::from(said.count),
            closing: None,
            payload: said,
        };
        Record::Events(self.speaker(), events)
    }

    fn farewell(&self) -> Record {
        let events = Events {
            first_event_id: self.said + 1,
            count: 1,
            closing: Some(Closing::PublisherLeaving),
            payload: Said {
                life: self.life,
                first: 1,
                count: 0,
            },
        };
        Record::Events(self.speaker(), events)
    }
}
