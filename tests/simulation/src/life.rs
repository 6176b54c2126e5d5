//! One life of a publisher: the shipped mirror, the numbering of what it says, and the newest records.

use std::collections::VecDeque;

use kvatlas_mirror::{Engine as Kind, EngineMirror, Operation, Report};
use kvatlas_pages::Memory;
use kvatlas_wire::v1::shutdown::Reason;

use crate::engine::{Cache, Message};
use crate::log::Record;
use crate::payload::payload;
use crate::plan::Without;
use crate::record::{BLOCK_SIZE, Speaker};
use crate::tamper::half_heard;
use crate::tree::Tree;

/// Engine hashes that a mirror may hold: more than there are.
const BLOCKS_MAX: usize = 1_000;

/// A mirror as a checkpoint keeps it.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The shipped bytes.
    pub state: Vec<u8>,
    /// What was heard of the engine's cache by then.
    pub heard: Cache,
}

impl Kept {
    /// The mirror again; `None` if the bytes are refused.
    fn mirror(&self) -> Option<EngineMirror> {
        EngineMirror::import_state(
            Kind::Vllm,
            BLOCK_SIZE as usize,
            BLOCKS_MAX,
            Memory::general(),
            &self.state,
        )
        .ok()
    }
}

/// One life.
#[derive(Debug)]
pub struct Life {
    /// Who speaks.
    pub speaker: Speaker,
    /// What is published.
    pub mirror: EngineMirror,
    /// What was heard of the engine's cache: what the mirror should make of it.
    heard: Cache,
    sealed_event_id: u64,
    recent: VecDeque<(u64, Record)>,
    recent_max: usize,
    farewell: Option<Record>,
}

impl Life {
    /// A life that begins with what is remembered; if it remembers anything it must open with a snapshot,
    /// which counts as event 1.
    #[must_use]
    pub fn begin(speaker: Speaker, kept: Option<&Kept>, recent_max: usize) -> Self {
        let empty = || {
            EngineMirror::new(
                Kind::Vllm,
                BLOCK_SIZE as usize,
                BLOCKS_MAX,
                Memory::general(),
            )
        };
        Self {
            speaker,
            mirror: kept.and_then(Kept::mirror).unwrap_or_else(empty),
            heard: kept.map_or(Cache::default(), |kept| kept.heard),
            sealed_event_id: u64::from(kept.is_some()),
            recent: VecDeque::new(),
            recent_max,
            farewell: None,
        }
    }

    /// Take a message of the engine; what it changes waits to be sealed.
    pub fn hear(&mut self, message: &Message, tree: &Tree, without: Option<Without>) {
        self.heard.hear_all(message, tree);
        let told = match without {
            Some(Without::Mirroring) => payload(&half_heard(message), tree),
            _ => payload(message, tree),
        };
        // A message that is not taken leaves a mirror that differs, and the run fails for it.
        self.mirror.tell(&told, 0, &mut Report::default());
    }

    /// What a later process may go on with. Nothing may be pending.
    #[must_use]
    pub fn keep(&self) -> Kept {
        Kept {
            state: self.mirror.export_state(),
            heard: self.heard,
        }
    }

    /// The records of all that waits.
    pub fn seal(&mut self, batch_events: usize) -> Vec<Record> {
        let mut hashes = self.mirror.said.hashes();
        let mut said: Vec<(Operation, &[u64])> = Vec::new();
        for &operation in self.mirror.said.operations() {
            let (these, rest) = hashes.split_at(operation.hashes as usize);
            hashes = rest;
            said.push((operation, these));
        }
        let mut records = Vec::new();
        for events in said.chunks(batch_events) {
            let first = self.sealed_event_id + 1;
            let record = self.speaker.events(first, events);
            self.recent.push_back((first, record.clone()));
            self.sealed_event_id += events.len() as u64;
            records.push(record);
        }
        while self.recent.len() > self.recent_max {
            self.recent.pop_front();
        }
        self.mirror.said.clear();
        records
    }

    /// The record that ends this life. Nothing may be pending.
    pub fn shut_down(&mut self, reason: Reason) -> Record {
        self.sealed_event_id += 1;
        let farewell = self.speaker.shutdown(self.sealed_event_id, reason);
        self.farewell.insert(farewell).clone()
    }

    /// The whole set, and the end if it has come. Nothing may be pending.
    #[must_use]
    pub fn snapshot(&self, part_hashes: usize) -> Vec<Record> {
        let as_of = self.sealed_event_id - u64::from(self.farewell.is_some());
        let mirror = &self.mirror.mirror;
        let mut records = self.speaker.snapshot(as_of, mirror, part_hashes);
        records.extend(self.farewell.clone());
        records
    }

    /// What a receiver should have by now. Nothing may be pending.
    #[must_use]
    pub fn heartbeat(&self) -> Record {
        let mirror = &self.mirror.mirror;
        self.speaker.heartbeat(self.sealed_event_id, mirror)
    }

    /// The records from the one that holds `event_id` on; `None`: they are not kept.
    #[must_use]
    pub fn since(&self, event_id: u64) -> Option<Vec<Record>> {
        let next = self.sealed_event_id + 1;
        let first = self.recent.front().map_or(next, |&(first, _)| first);
        if !(first..=next).contains(&event_id) {
            return None;
        }
        let held = self.recent.partition_point(|&(first, _)| first <= event_id);
        let from = if event_id == next {
            self.recent.len()
        } else {
            held - 1
        };
        let records = self.recent.range(from..);
        Some(records.map(|(_, record)| record.clone()).collect())
    }
}
