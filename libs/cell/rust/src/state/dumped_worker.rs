//! One worker of a state: its position and its set.

use kvatlas_index::{Blocks, Index, SlotId, TierSummary, WorkerKey};
use kvatlas_wire::v1;

use super::worker_resume;
use crate::leases::logs::Logs;
use crate::workers::worker::Worker;

/// One worker of a state.
pub(super) struct DumpedWorker {
    pub key: WorkerKey,
    pub epoch: u64,
    pub event_id: u64,
    pub slot: Option<SlotId>,
    /// Only in states that a replica starts from.
    pub resume: Option<v1::WorkerResume>,
    pub content: SetContent,
}

/// A worker's set, by tier.
pub(super) enum SetContent {
    Hashes(Blocks),
    Digests([TierSummary; 4]),
}

impl DumpedWorker {
    /// The worker's position, without its set. `logs` are given for a state that a replica starts from.
    pub fn new(worker: &Worker, logs: Option<&Logs>) -> Self {
        Self {
            key: worker.key,
            epoch: worker.sequencer.incarnation().epoch,
            event_id: worker.sequencer.applied(),
            slot: worker.set.slot(),
            resume: logs.map(|logs| worker_resume::to_message(worker, logs)),
            content: SetContent::Digests(Default::default()),
        }
    }

    fn add(&mut self, fresh: Blocks) {
        match &mut self.content {
            SetContent::Hashes(blocks) => {
                for (tier, fresh) in blocks.iter_mut().zip(fresh) {
                    tier.extend(fresh);
                }
            }
            content => *content = SetContent::Hashes(fresh),
        }
    }
}

/// Adds the hashes of these workers' sets, in one pass over the index. With `parts` above 1, only the hashes that fall to
/// `part`.
pub(super) fn read_hashes(
    index: &Index,
    workers: Vec<&mut DumpedWorker>,
    (part, parts): (u64, u64),
) {
    let (slots, workers) = with_slots(workers);
    if slots.is_empty() {
        return;
    }
    for (worker, mut blocks) in workers.into_iter().zip(index.blocks_of(&slots)) {
        if parts > 1 {
            for tier in &mut blocks {
                tier.retain(|hash| hash % parts == part);
            }
        }
        worker.add(blocks);
    }
}

/// Sets the counts and digests of these workers' sets, added up from the index's tables in one pass.
pub(super) fn read_digests(index: &Index, workers: Vec<&mut DumpedWorker>) {
    let (slots, workers) = with_slots(workers);
    if slots.is_empty() {
        return;
    }
    for (worker, digests) in workers.into_iter().zip(index.recount(&slots)) {
        worker.content = SetContent::Digests(digests);
    }
}

fn with_slots(workers: Vec<&mut DumpedWorker>) -> (Vec<SlotId>, Vec<&mut DumpedWorker>) {
    let workers = workers.into_iter();
    workers
        .filter_map(|worker| Some((worker.slot?, worker)))
        .unzip()
}
