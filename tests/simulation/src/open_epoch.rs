//! A publisher's open epoch: the shipped mirror, the numbering of its events, and the newest records.

use std::collections::VecDeque;

use kvatlas_engines::Engine as Kind;
use kvatlas_mirror::{EngineMirror, PendingEvent, with_hashes};
use kvatlas_pages::Memory;
use kvatlas_wire::v1::shutdown::Reason;

use crate::engine::{Cache, Message};
use crate::log::Record;
use crate::mutations::without_offloads;
use crate::payload::payload;
use crate::plan::Mutation;
use crate::record::{BLOCK_SIZE, RecordEncoder};
use crate::tree::Tree;

/// Engine hashes that a mirror may hold: more than a run has.
const BLOCKS_MAX: usize = 1_000;

/// The mirror in a checkpoint.
#[derive(Clone, Debug)]
pub struct MirrorCheckpoint {
    /// The shipped mirror's bytes.
    pub state: Vec<u8>,
    /// The cache that the mirror should represent.
    pub expected: Cache,
}

impl MirrorCheckpoint {
    /// The mirror of these bytes; None: they are refused.
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

/// An open epoch.
#[derive(Debug)]
pub struct OpenEpoch {
    /// Encodes its records.
    pub encoder: RecordEncoder,
    /// The shipped mirror.
    pub mirror: EngineMirror,
    /// The cache that the mirror should represent.
    expected: Cache,
    sealed_event_id: u64,
    recent: VecDeque<(u64, Record)>,
    recent_max: usize,
    /// The record that ended the epoch.
    shutdown_record: Option<Record>,
}

impl OpenEpoch {
    /// Begins an epoch. With a checkpoint it must open with a snapshot, which counts as event 1.
    #[must_use]
    pub fn begin(
        encoder: RecordEncoder,
        checkpoint: Option<&MirrorCheckpoint>,
        recent_max: usize,
    ) -> Self {
        let empty = || {
            EngineMirror::new(
                Kind::Vllm,
                BLOCK_SIZE as usize,
                BLOCKS_MAX,
                Memory::general(),
            )
        };
        Self {
            encoder,
            mirror: checkpoint
                .and_then(MirrorCheckpoint::mirror)
                .unwrap_or_else(empty),
            expected: checkpoint.map_or(Cache::default(), |checkpoint| checkpoint.expected),
            sealed_event_id: u64::from(checkpoint.is_some()),
            recent: VecDeque::new(),
            recent_max,
            shutdown_record: None,
        }
    }

    /// Applies a message of the engine; the resulting events wait to be sealed.
    pub fn apply(&mut self, message: &Message, tree: &Tree, mutation: Option<Mutation>) {
        self.expected.apply_all(message, tree);
        let bytes = match mutation {
            Some(Mutation::Offloads) => payload(&without_offloads(message), tree),
            _ => payload(message, tree),
        };
        // A message that the mirror refuses makes it differ, and the run fails.
        self.mirror.apply_payloads(&[&bytes], 0);
    }

    /// The mirror's checkpoint for a later process. Nothing may be pending.
    #[must_use]
    pub fn checkpoint(&self) -> MirrorCheckpoint {
        MirrorCheckpoint {
            state: self.mirror.export_state(),
            expected: self.expected,
        }
    }

    /// Seals all pending events into records.
    pub fn seal(&mut self, batch_events: usize) -> Vec<Record> {
        let pending = &self.mirror.pending;
        let pending: Vec<(PendingEvent, &[u64])> =
            with_hashes(pending.events(), pending.hashes()).collect();
        let mut records = Vec::new();
        for events in pending.chunks(batch_events) {
            let first = self.sealed_event_id + 1;
            let record = self.encoder.events(first, events);
            self.recent.push_back((first, record.clone()));
            self.sealed_event_id += events.len() as u64;
            records.push(record);
        }
        while self.recent.len() > self.recent_max {
            self.recent.pop_front();
        }
        self.mirror.pending.clear();
        records
    }

    /// Ends the epoch with a record. Nothing may be pending.
    pub fn shut_down(&mut self, reason: Reason) -> Record {
        self.sealed_event_id += 1;
        let shutdown = self.encoder.shutdown(self.sealed_event_id, reason);
        self.shutdown_record.insert(shutdown).clone()
    }

    /// Records of the whole set, and of the shutdown if the epoch has ended. Nothing may be pending.
    #[must_use]
    pub fn snapshot(&self, part_hashes: usize) -> Vec<Record> {
        let as_of = self.sealed_event_id - u64::from(self.shutdown_record.is_some());
        let mirror = &self.mirror.mirror;
        let mut records = self.encoder.snapshot(as_of, mirror, part_hashes);
        records.extend(self.shutdown_record.clone());
        records
    }

    /// A heartbeat with the last event id and the digests. Nothing may be pending.
    #[must_use]
    pub fn heartbeat(&self) -> Record {
        let mirror = &self.mirror.mirror;
        self.encoder.heartbeat(self.sealed_event_id, mirror)
    }

    /// The records from the one with `event_id` on; None: they are no longer kept.
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
