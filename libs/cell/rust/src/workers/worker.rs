//! One worker: its sequencer, its set in the index, its lease, and the facts of its heartbeats.
//!
//! Look-ups match a worker while, and only while, its set is whole, its lease runs and it is not evicted.
//! [`Worker::update_matched`] is the only place that decides this.
//!
//! **A worker evicted for lack of memory** keeps its position in the sequencer and its heartbeats' facts, but no set. Its
//! events are skipped, its digests are not compared, and its publisher is not asked for records. It comes back with a
//! snapshot that there is room for, or with a new epoch that begins with an empty set.

use kvatlas_events::sequencer::{
    Incarnation, Limits, Sequencer, SequencerState, ShutdownReason, SnapshotPart, Step,
    TickOutcome, Verdict,
};
use kvatlas_index::{Index, Tier, WorkerKey};
use kvatlas_wire::v1;

use super::recovery_request::RecoveryRequest;
use super::worker_set::WorkerSet;
use crate::apply::context::ApplyContext;
use crate::apply::decode::{Body, EventList, Record, tier_digests};
use crate::counters::Count;
use crate::leases::lease::{LastHeard, Lease};
use crate::leases::logs::{LogIndex, Logs};
use crate::messages::worker_message;

/// One worker of the cell. It is kept for a while after its engine has gone, to fence old records.
pub(crate) struct Worker {
    pub key: WorkerKey,
    pub sequencer: Sequencer<EventList>,
    pub set: WorkerSet,
    pub lease: Lease,
    /// The newest heartbeat.
    pub heartbeat: v1::Heartbeat,
    pub last_heartbeat: LastHeard,
    /// Set while the worker is evicted: blocks of its whole set, as far as known.
    evicted_blocks: Option<u64>,
    /// The table's version at its last change that watchers learn of.
    pub changed_at_version: u64,
    /// This replica's clock when its engine went; None while the engine is there.
    pub engine_gone_since_ms: Option<u64>,
}

/// When and through which log a record came.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    pub log: LogIndex,
    /// Append time, in the log's time.
    pub at_ms: u64,
    /// This replica's clock.
    pub now_ms: u64,
}

/// The changes that a record or a tick made.
#[derive(Default)]
pub(crate) struct WorkerUpdate {
    /// A message to the operator.
    pub notice: Option<String>,
    /// Whether watchers must learn of it.
    pub is_visible: bool,
}

impl Worker {
    pub fn new(key: WorkerKey, limits: Limits) -> Self {
        Self {
            key,
            sequencer: Sequencer::new(limits),
            set: WorkerSet::new(key, None),
            lease: Lease::default(),
            heartbeat: v1::Heartbeat::default(),
            last_heartbeat: LastHeard::default(),
            evicted_blocks: None,
            changed_at_version: 0,
            engine_gone_since_ms: None,
        }
    }

    /// Sequences and applies one record of this worker.
    pub fn on_record(
        &mut self,
        context: &mut ApplyContext<'_>,
        logs: &Logs,
        record: Record<'_>,
        arrival: Arrival,
    ) -> (Verdict, WorkerUpdate) {
        let before = self.visible_state();
        let (incarnation, now_ms) = (record.header.incarnation, arrival.now_ms);
        let mut steps = std::mem::take(&mut context.steps);
        let mut heartbeat = None;
        let is_snapshot = matches!(record.body, Body::Snapshot(_));
        let sequencer = &mut self.sequencer;
        let verdict = match record.body {
            Body::Events(events) => sequencer.on_events(incarnation, events, now_ms, &mut steps),
            Body::Snapshot(part) => {
                sequencer.on_snapshot_part(incarnation, part, now_ms, &mut steps)
            }
            Body::Heartbeat(received) => {
                let last = received.last_event_id;
                heartbeat = Some(received);
                sequencer.on_heartbeat(incarnation, last, now_ms, &mut steps)
            }
        };
        if self.sequencer.incarnation() != before.1 {
            self.on_new_epoch(context, is_snapshot);
        }
        self.run_steps(context, steps, now_ms);
        let mut update = WorkerUpdate::default();
        let is_refused = matches!(verdict, Verdict::EpochClosed | Verdict::EventIdJump);
        if self.sequencer.incarnation() == incarnation && !is_refused {
            self.lease.last_record.note(arrival.log, arrival.at_ms);
            self.renew_lease(context, logs);
            if let Some(heartbeat) = heartbeat {
                let is_comparable = verdict == Verdict::Applied;
                update.notice = self.on_heartbeat(context, *heartbeat, is_comparable, arrival);
                update.is_visible = true;
            }
        }
        self.update_matched(context);
        update.is_visible |= before != self.visible_state();
        (verdict, update)
    }

    /// Ends the lease, a gap or a recovery that has lasted too long.
    pub fn on_tick(
        &mut self,
        context: &mut ApplyContext<'_>,
        logs: &Logs,
        now_ms: u64,
    ) -> WorkerUpdate {
        let before = self.state();
        let mut steps = Vec::new();
        let key = self.key;
        let notice = match self.sequencer.on_tick(now_ms, &mut steps) {
            TickOutcome::Nothing => None,
            TickOutcome::GapTimedOut => {
                context.counters.add(Count::GapsOutlasted);
                let (first, last) = (self.sequencer.applied() + 1, self.sequencer.known());
                Some(format!(
                    "worker {key}: events {first}..={last} are missing; it is not matched until they or a snapshot arrive"
                ))
            }
            TickOutcome::RecoveryTimedOut => {
                context.counters.add(Count::RecoveriesGivenUp);
                Some(format!(
                    "worker {key}: no snapshot arrived in time; its set was emptied"
                ))
            }
        };
        self.run_steps(context, steps, now_ms);
        let has_set = self.set.slot().is_some();
        if self.lease.on_tick(logs, context.lease_ms, has_set) {
            context.counters.add(Count::LeasesEnded);
        }
        self.update_matched(context);
        WorkerUpdate {
            notice,
            is_visible: before != self.state(),
        }
    }

    /// Empties the worker for lack of memory. It is not recovered until there is room for its whole set.
    pub fn evict(&mut self, context: &mut ApplyContext<'_>, now_ms: u64) {
        let mut steps = Vec::new();
        self.evicted_blocks = Some(self.set.blocks(context.index));
        self.sequencer.give_up(&mut steps);
        self.run_steps(context, steps, now_ms);
        self.update_matched(context);
    }

    /// Starts the lease if the newest record is fresh.
    pub fn renew_lease(&mut self, context: &ApplyContext<'_>, logs: &Logs) {
        if self.lease.renew(logs, context.lease_ms) {
            context.counters.add(Count::LeasesResumed);
        }
    }

    /// Shows the set to look-ups, or hides it, as the worker's state asks for.
    pub fn update_matched(&mut self, context: &ApplyContext<'_>) {
        let is_matched = self.sequencer.state() == SequencerState::Whole
            && self.lease.is_running()
            && self.evicted_blocks.is_none();
        self.set.set_matched(context, is_matched);
    }

    /// How frontends may use the worker.
    pub fn state(&self) -> v1::WorkerState {
        match self.sequencer.state() {
            SequencerState::Closed(_) => v1::WorkerState::Stale,
            _ if !self.lease.is_running() => v1::WorkerState::Stale,
            _ if self.evicted_blocks.is_some() => v1::WorkerState::OverBudget,
            SequencerState::Whole if self.set.is_matched() => v1::WorkerState::Live,
            SequencerState::Whole | SequencerState::Recovering => v1::WorkerState::Recovering,
        }
    }

    /// False once its engine has gone. Then it is kept only to fence old records.
    pub fn is_listed(&self) -> bool {
        self.engine_gone_since_ms.is_none()
    }

    /// Whether its set is not the effect of all sequenced events. A stale worker can be incomplete, too.
    pub fn is_incomplete(&self) -> bool {
        self.evicted_blocks.is_some() || self.sequencer.state() == SequencerState::Recovering
    }

    /// Number of blocks for which there must be room before the worker may come back; 0 if it is not evicted.
    pub fn evicted_blocks(&self) -> u64 {
        self.evicted_blocks.unwrap_or_default()
    }

    /// Whether a snapshot would be accepted and would help.
    pub fn wants_snapshot(&self, readmission_blocks: u64) -> bool {
        self.sequencer.needs_snapshot() && self.evicted_blocks() <= readmission_blocks
    }

    /// Whether its publisher, which is not silent, should be asked for records.
    pub fn lacks_records(&self, readmission_blocks: u64) -> bool {
        let lacks = match self.sequencer.state() {
            SequencerState::Whole => self.sequencer.known() > self.sequencer.applied(),
            SequencerState::Recovering => self.wants_snapshot(readmission_blocks),
            SequencerState::Closed(_) => false,
        };
        lacks && self.lease.is_running() && self.sequencer.incarnation().epoch > 0
    }

    /// The request for the records that the worker lacks.
    pub fn recovery_request(&self) -> RecoveryRequest {
        RecoveryRequest {
            key: self.key,
            publisher_rpc: self.heartbeat.publisher_rpc.clone(),
            epoch: self.sequencer.incarnation().epoch,
            applied: self.sequencer.applied(),
            known: self.sequencer.known(),
            recovering: self.sequencer.needs_snapshot(),
        }
    }

    /// The worker as `WatchWorkers` and `GetStatus` report it.
    pub fn info(&self, index: &Index, logs: &Logs) -> v1::WorkerInfo {
        let heartbeat = &self.heartbeat;
        v1::WorkerInfo {
            worker: Some(worker_message(self.key)),
            state: self.state().into(),
            epoch: self.sequencer.incarnation().epoch,
            engine_url: heartbeat.engine_url.clone(),
            publisher_rpc: heartbeat.publisher_rpc.clone(),
            role: heartbeat.role.clone(),
            labels: heartbeat.labels.clone(),
            load: heartbeat.load,
            capacity_blocks: heartbeat.capacity_blocks,
            blocks: self.set.blocks(index),
            last_event_id: self.sequencer.applied(),
            heartbeat_age_ms: self.last_heartbeat.age_ms(logs).unwrap_or_default(),
        }
    }

    fn visible_state(&self) -> (v1::WorkerState, Incarnation) {
        (self.state(), self.sequencer.incarnation())
    }

    fn on_new_epoch(&mut self, context: &ApplyContext<'_>, opens_with_snapshot: bool) {
        context.counters.add(Count::EpochsBegun);
        self.lease.last_record = LastHeard::default();
        self.last_heartbeat = LastHeard::default();
        self.engine_gone_since_ms = None;
        if self.sequencer.state() == SequencerState::Whole && !opens_with_snapshot {
            self.evicted_blocks = None; // an epoch that begins with an empty set has room
        }
    }

    /// Takes over a heartbeat's facts. Compares its digests with the index if they are of the last applied event.
    fn on_heartbeat(
        &mut self,
        context: &mut ApplyContext<'_>,
        heartbeat: v1::Heartbeat,
        is_comparable: bool,
        arrival: Arrival,
    ) -> Option<String> {
        self.last_heartbeat.note(arrival.log, arrival.at_ms);
        let mut notice = None;
        if !heartbeat.digests.is_empty() {
            if is_comparable {
                notice = self.compare_digests(context, &heartbeat, arrival.now_ms);
            }
            if self.evicted_blocks.is_some() {
                let blocks = heartbeat.digests.iter().map(|tier| tier.blocks);
                self.evicted_blocks = Some(blocks.fold(0, u64::saturating_add));
            }
        }
        self.heartbeat = heartbeat;
        notice
    }

    /// Compares the publisher's digests with the index's, which are of the same event.
    fn compare_digests(
        &mut self,
        context: &mut ApplyContext<'_>,
        heartbeat: &v1::Heartbeat,
        now_ms: u64,
    ) -> Option<String> {
        // The decoder has checked the tiers.
        let theirs = tier_digests(&heartbeat.digests).ok()?;
        context.writes.flush();
        let ours = self.set.digests(context.index);
        context.counters.add(Count::DigestsCompared);
        let tier = (0..Tier::COUNT).find(|&tier| ours[tier] != theirs[tier])?;
        context.counters.add(Count::DigestsMismatched);
        self.sequencer.on_digest_mismatch(now_ms);
        Some(format!(
            "worker {}: digest differs at event {} on tier {:?}: publisher {} blocks {:016x}, indexer {} blocks {:016x}; a snapshot is needed",
            self.key,
            heartbeat.last_event_id,
            Tier::ALL[tier],
            theirs[tier].blocks,
            theirs[tier].digest,
            ours[tier].blocks,
            ours[tier].digest,
        ))
    }

    fn run_steps(
        &mut self,
        context: &mut ApplyContext<'_>,
        mut steps: Vec<Step<EventList>>,
        now_ms: u64,
    ) {
        for step in steps.drain(..) {
            match step {
                Step::Empty => self.set.empty(context),
                Step::Apply { payload, .. } if self.evicted_blocks.is_some() => {
                    context.writes.return_list(payload);
                }
                Step::Apply { payload, skip } => self.set.apply(context, payload, skip as usize),
                Step::Replace(parts) => self.load_snapshot(context, &parts),
                Step::Close(reason) => self.close(context, reason, now_ms),
            }
        }
        context.steps = steps;
        if self.evicted_blocks.is_some() {
            self.forget_applied();
        }
        let is_closed = matches!(self.sequencer.state(), SequencerState::Closed(_));
        if self.set.slot().is_none() && !is_closed {
            // The index has no slot left: the worker waits without a set for its next snapshot.
            context.counters.add(Count::RejectedWorkers);
            self.sequencer.give_up(&mut Vec::new());
        }
    }

    /// Replaces the set by a snapshot. An evicted worker needs room for it.
    fn load_snapshot(&mut self, context: &mut ApplyContext<'_>, parts: &[SnapshotPart]) {
        if self.evicted_blocks.is_some() {
            let blocks = parts.iter().map(|part| part.hashes.len() as u64).sum();
            let Some(rest) = context.readmission_blocks.checked_sub(blocks) else {
                self.evicted_blocks = Some(blocks);
                context.counters.add(Count::SnapshotsNoRoom);
                return;
            };
            context.readmission_blocks = rest;
            self.evicted_blocks = None;
        }
        self.set.load(context, parts);
        context.counters.add(Count::SnapshotsLoaded);
    }

    /// Resets the sequencer of an evicted worker to event 0. Its empty set must not count as the effect of any event:
    /// neither here, nor in a replica that starts from its state, which does not say that it was evicted.
    fn forget_applied(&mut self) {
        if self.sequencer.state() == SequencerState::Whole || self.sequencer.applied() > 0 {
            self.sequencer.give_up(&mut Vec::new());
        }
    }

    fn close(&mut self, context: &mut ApplyContext<'_>, reason: ShutdownReason, now_ms: u64) {
        self.set.release(context);
        self.evicted_blocks = None;
        match reason {
            ShutdownReason::EngineGone => {
                context.counters.add(Count::ShutdownsEngineGone);
                self.engine_gone_since_ms = Some(now_ms);
            }
            ShutdownReason::PublisherLeaving => context.counters.add(Count::ShutdownsLeaving),
        }
    }
}
