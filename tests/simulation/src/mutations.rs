//! Mutations: rules that are switched off between log and cell. The shipped code stays as it is, and its input makes it
//! behave as if the rule did not exist. The invariants must notice.

use std::collections::{BTreeMap, BTreeSet};

use kvatlas_cell::Cell;
use kvatlas_index::WorkerKey;
use kvatlas_wire::{frame, v1};
use prost::Message as _;

use crate::engine::{CacheEvent, Message};
use crate::log::Record;
use crate::plan::Mutation;
use crate::record::seal;
use crate::saved_states::Claims;

/// A hash that no block of a run has.
const NOBODYS_HASH: u64 = 0x0bad_0bad_0bad_0bad;

/// Rewrites records on their way into one cell.
#[derive(Debug, Default)]
pub struct RecordMutator {
    instances: BTreeMap<u64, u64>,
    /// Claims of the restored state.
    claims: Claims,
}

impl RecordMutator {
    /// Sets the events whose effect the restored state is taken to have.
    pub fn set_claims(&mut self, claims: Claims) {
        self.claims = claims;
    }

    /// The record as a cell without the rule would see it.
    pub fn rewrite(&mut self, record: &Record, cell: &Cell, mutation: Mutation) -> Record {
        let Some(mut batch) = frame::open(record)
            .ok()
            .and_then(|payload| v1::Batch::decode(payload).ok())
        else {
            return record.clone();
        };
        let Some(header) = &mut batch.header else {
            return record.clone();
        };
        self.instances.insert(header.epoch, header.instance_id);
        let worker_id = header.worker.map_or(0, |worker| worker.worker_id);
        let key = WorkerKey {
            worker_id,
            dp_rank: 0,
        };
        let Some(position) = cell.positions(&BTreeSet::from([key])).pop() else {
            return record.clone();
        };
        let is_current = header.epoch == position.epoch;
        let applied = position.last_event_id;
        let has_events = !batch.events.is_empty();
        match mutation {
            Mutation::Dedup if is_current && has_events && batch.first_event_id <= applied => {
                batch.first_event_id = applied + 1;
            }
            Mutation::Fencing if header.epoch < position.epoch => {
                header.epoch = position.epoch;
                header.instance_id = self.instances.get(&position.epoch).copied().unwrap_or(0);
            }
            Mutation::GapCheck if is_current => close_gap(&mut batch, applied),
            Mutation::Convergence | Mutation::SkippedEvents => {
                let claimed = self.claims.get(&worker_id);
                let claimed = claimed.filter(|&&(epoch, ..)| epoch == header.epoch);
                if let Some(&(_, from, to)) = claimed {
                    skip_claimed(&mut batch, applied, (from, to));
                }
            }
            _ => return record.clone(),
        }
        seal(&batch)
    }
}

/// The message without the offloaded blocks.
#[must_use]
pub fn without_offloads(message: &Message) -> Message {
    let events = message.iter().copied();
    events
        .filter(|event| !matches!(event, CacheEvent::Offloaded(_)))
        .collect()
}

/// Hides the gap before a batch, and the last event id of a heartbeat.
fn close_gap(batch: &mut v1::Batch, applied: u64) {
    if !batch.events.is_empty() {
        batch.first_event_id = batch.first_event_id.min(applied + 1);
    }
    if let Some(heartbeat) = &mut batch.heartbeat
        && heartbeat.last_event_id > applied
    {
        heartbeat.last_event_id = applied;
        heartbeat.digests.clear();
    }
}

/// Makes the claimed events change nothing, and hides the gap before them.
fn skip_claimed(batch: &mut v1::Batch, applied: u64, (from, to): (u64, u64)) {
    let before = batch.first_event_id.saturating_sub(1);
    if !batch.events.is_empty() && (from..before).contains(&applied) && before <= to {
        let missing = (applied..before).map(|_| v1::Event::default());
        batch.events.splice(0..0, missing);
        batch.first_event_id = applied + 1;
    }
    for (event, id) in batch.events.iter_mut().zip(batch.first_event_id..) {
        if from < id && id <= to {
            event.kind = Some(v1::event::Kind::Remove(v1::Remove {
                sequence_hashes: vec![NOBODYS_HASH],
                tier: v1::Tier::Device.into(),
            }));
        }
    }
}
