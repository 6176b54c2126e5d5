//! Rules switched off between log and cell: what is shipped stays as it is, and what it is told makes it
//! behave as if the rule were gone. The invariants must notice.

use std::collections::{BTreeMap, BTreeSet};

use kvatlas_cell::Cell;
use kvatlas_index::WorkerKey;
use kvatlas_wire::{frame, v1};
use prost::Message as _;

use crate::log::Record;
use crate::plan::Without;

/// Rewrites records on their way into one cell.
#[derive(Debug, Default)]
pub struct Tamper {
    instances: BTreeMap<u64, u64>,
}

impl Tamper {
    /// The record as a cell without the rule would take it.
    pub fn rewrite(&mut self, record: &Record, cell: &Cell, without: Without) -> Record {
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
        let is_repeated =
            !batch.events.is_empty() && batch.first_event_id <= position.last_event_id;
        match without {
            Without::Dedup if is_current && is_repeated => {
                batch.first_event_id = position.last_event_id + 1;
            }
            Without::Fencing if header.epoch < position.epoch => {
                header.epoch = position.epoch;
                header.instance_id = self.instances.get(&position.epoch).copied().unwrap_or(0);
            }
            _ => return record.clone(),
        }
        frame::seal(&batch.encode_to_vec()).into()
    }
}
