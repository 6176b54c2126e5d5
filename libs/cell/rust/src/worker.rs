//! One worker: its sequencer, its slot in the index, its lease, and what its heartbeats say of it.
//!
//! It matches while, and only while, its set is whole, its lease runs and it has room; whatever
//! changes one of these ends in [`Worker::settle`], the one place that shows or hides its slot.

mod resume;
mod room;

use kvatlas_events::sequencer::{
    Closing, Digest, Elapsed, Limits, Sequencer, Standing, Step, TIERS, Verdict,
};
use kvatlas_index::{Index, SlotId, Tier, WorkerKey};
use kvatlas_wire::v1;
use parking_lot::Mutex;

use crate::budget::Budget;
use crate::changes::Changes;
use crate::counters::{Count, Counters};
use crate::decode::{Body, Event, EventList, Record, tier_digests};
use crate::lease::{Heard, Logs};
use crate::need::WorkerNeed;
use crate::table::worker_message;
pub(crate) use resume::place as resumed_place;

/// What a worker acts on.
pub(crate) struct Surroundings<'a> {
    pub index: &'a Index,
    pub counters: &'a Counters,
    pub changes: Changes<'a>,
    /// Room for what a sequencer orders.
    pub steps: Vec<Step<EventList>>,
    pub lease_ms: u64,
    /// Blocks that workers who were put out may come back with.
    pub room_blocks: u64,
    pub budget: &'a Mutex<Budget>,
}

/// One worker of the cell, also for a while after its engine has gone.
pub(crate) struct Worker {
    pub key: WorkerKey,
    pub sequencer: Sequencer<EventList>,
    slot: Option<SlotId>,
    shown: bool,
    /// When its publisher was last heard.
    pub heard: Heard,
    beat: Heard,
    lease_runs: bool,
    /// Whether it ran and ended, and has not been renewed since.
    lease_ended: bool,
    /// While it is out for lack of memory: blocks that its whole set has, as far as is known.
    over_budget: Option<u64>,
    facts: v1::Heartbeat,
    /// The table's version at its last change that watchers are told of.
    pub changed_at: u64,
    /// Since when its engine is gone.
    pub gone_since_ms: Option<u64>,
}

/// What one record did to its worker.
pub(crate) struct Outcome {
    pub verdict: Verdict,
    /// What an operator should read.
    pub notice: Option<String>,
    /// Watchers should hear of it.
    pub changed: bool,
}

impl Worker {
    pub fn new(key: WorkerKey, limits: Limits) -> Self {
        Self {
            key,
            sequencer: Sequencer::new(limits),
            slot: None,
            shown: false,
            heard: Heard::default(),
            beat: Heard::default(),
            lease_runs: false,
            lease_ended: false,
            over_budget: None,
            facts: v1::Heartbeat::default(),
            changed_at: 0,
            gone_since_ms: None,
        }
    }

    /// Sequence and apply one record of this worker.
    pub fn on_record(
        &mut self,
        around: &mut Surroundings<'_>,
        logs: &Logs,
        (place, at_ms): (usize, u64),
        record: Record<'_>,
        now_ms: u64,
    ) -> Outcome {
        let before = (self.state(), self.sequencer.speaker());
        let speaker = record.header.speaker;
        let mut steps = std::mem::take(&mut around.steps);
        let mut notice = None;
        let mut beat = None;
        let is_snapshot = matches!(record.body, Body::Snapshot(_));
        let verdict = match record.body {
            Body::Events(events) => self
                .sequencer
                .on_events(speaker, events, now_ms, &mut steps),
            Body::Snapshot(part) => self
                .sequencer
                .on_snapshot_part(speaker, part, now_ms, &mut steps),
            Body::Heartbeat(heartbeat) => {
                let last = heartbeat.last_event_id;
                beat = Some(heartbeat);
                self.sequencer
                    .on_heartbeat(speaker, last, now_ms, &mut steps)
            }
        };
        if self.sequencer.speaker() != before.1 {
            around.counters.add(Count::EpochsBegun);
            self.heard = Heard::default();
            self.beat = Heard::default();
            self.gone_since_ms = None;
            if self.sequencer.standing() == Standing::Whole && !is_snapshot {
                self.over_budget = None; // a life that begins with an empty set has room
            }
        }
        self.run(around, steps, now_ms);
        let refused = matches!(verdict, Verdict::EpochClosed | Verdict::EventIdJump);
        let current = self.sequencer.speaker() == speaker && !refused;
        let beaten = beat.is_some() && current;
        if current {
            self.heard.note(place, at_ms);
            self.renew(around, logs);
        }
        if let Some(heartbeat) = beat.filter(|_| current) {
            self.beat.note(place, at_ms);
            if verdict == Verdict::Applied && !heartbeat.digests.is_empty() {
                notice = self.compare(around, &heartbeat, now_ms);
            }
            if self.over_budget.is_some() && !heartbeat.digests.is_empty() {
                let blocks = heartbeat.digests.iter().map(|tier| tier.blocks);
                self.over_budget = Some(blocks.fold(0, u64::saturating_add));
            }
            self.facts = *heartbeat;
        }
        self.settle(around);
        let changed = beaten || before != (self.state(), self.sequencer.speaker());
        Outcome {
            verdict,
            notice,
            changed,
        }
    }

    /// Time has passed: leases, gaps and recoveries run out.
    pub fn on_tick(&mut self, around: &mut Surroundings<'_>, logs: &Logs, now_ms: u64) -> Outcome {
        let before = self.state();
        let mut steps = Vec::new();
        let mut notice = None;
        let WorkerKey { worker_id, dp_rank } = self.key;
        match self.sequencer.on_tick(now_ms, &mut steps) {
            Elapsed::Nothing => {}
            Elapsed::GapOutlasted => {
                around.counters.add(Count::GapsOutlasted);
                notice = Some(format!(
                    "worker {worker_id}/{dp_rank}: events {}..={} are missing; it is not matched until they or a snapshot come",
                    self.sequencer.applied() + 1,
                    self.sequencer.known(),
                ));
            }
            Elapsed::GivenUp => {
                around.counters.add(Count::RecoveriesGivenUp);
                notice = Some(format!(
                    "worker {worker_id}/{dp_rank}: no snapshot came; its set was emptied"
                ));
            }
        }
        self.run(around, steps, now_ms);
        let runs = self
            .heard
            .age_ms(logs)
            .is_some_and(|age| age <= around.lease_ms);
        if self.lease_runs && !runs && self.slot.is_some() {
            around.counters.add(Count::LeasesEnded);
            self.lease_ended = true;
        }
        self.lease_runs &= runs;
        self.settle(around);
        Outcome {
            verdict: Verdict::Applied,
            notice,
            changed: before != self.state(),
        }
    }

    /// How frontends may use it.
    pub fn state(&self) -> v1::WorkerState {
        match self.sequencer.standing() {
            Standing::Closed(_) => v1::WorkerState::Stale,
            _ if !self.lease_runs => v1::WorkerState::Stale,
            _ if self.over_budget.is_some() => v1::WorkerState::OverBudget,
            Standing::Whole if self.shown => v1::WorkerState::Live,
            Standing::Whole | Standing::Recovering => v1::WorkerState::Recovering,
        }
    }

    /// False once its engine is gone: then it is remembered only to fence its old records.
    pub fn is_listed(&self) -> bool {
        self.gone_since_ms.is_none()
    }

    /// Whether its publisher has not been heard for longer than a lease.
    pub fn is_silent(&self) -> bool {
        !self.lease_runs
    }

    /// Whether a snapshot should be sent for it, and would be taken.
    pub fn wants_snapshot(&self, room_blocks: u64) -> bool {
        self.sequencer.needs_snapshot() && self.blocks_left_out() <= room_blocks
    }

    /// Whether its publisher, if it lives, should be asked for what is missing.
    pub fn lacks_records(&self, room_blocks: u64) -> bool {
        let lacks = match self.sequencer.standing() {
            Standing::Whole => self.sequencer.known() > self.sequencer.applied(),
            Standing::Recovering => self.wants_snapshot(room_blocks),
            Standing::Closed(_) => false,
        };
        lacks && self.lease_runs && self.sequencer.speaker().epoch > 0
    }

    /// What it lacks, and where to ask for it.
    pub fn need(&self) -> WorkerNeed {
        WorkerNeed {
            key: self.key,
            publisher_rpc: self.facts.publisher_rpc.clone(),
            epoch: self.sequencer.speaker().epoch,
            applied: self.sequencer.applied(),
            known: self.sequencer.known(),
            recovering: self.sequencer.needs_snapshot(),
        }
    }

    /// Blocks held on any tier.
    pub fn blocks(&self, index: &Index) -> u64 {
        self.slot.map_or(0, |slot| index.summary(slot).blocks)
    }

    /// Count and digest per tier, as the index has them.
    pub fn digests(&self, index: &Index) -> [Digest; TIERS] {
        let summary = self
            .slot
            .map(|slot| index.summary(slot))
            .unwrap_or_default();
        summary.tiers.map(|tier| Digest {
            blocks: tier.count,
            xor: tier.digest,
        })
    }

    /// What is known of it, as the RPCs say it.
    pub fn info(&self, index: &Index, logs: &Logs) -> v1::WorkerInfo {
        let facts = &self.facts;
        v1::WorkerInfo {
            worker: Some(worker_message(self.key)),
            state: self.state().into(),
            epoch: self.sequencer.speaker().epoch,
            engine_url: facts.engine_url.clone(),
            publisher_rpc: facts.publisher_rpc.clone(),
            role: facts.role.clone(),
            labels: facts.labels.clone(),
            load: facts.load,
            capacity_blocks: facts.capacity_blocks,
            blocks: self.blocks(index),
            last_event_id: self.sequencer.applied(),
            heartbeat_age_ms: self.beat.age_ms(logs).unwrap_or_default(),
        }
    }

    fn renew(&mut self, around: &Surroundings<'_>, logs: &Logs) {
        if self.lease_runs {
            return; // only a tick ends it
        }
        let runs = self
            .heard
            .age_ms(logs)
            .is_some_and(|age| age <= around.lease_ms);
        if runs && self.lease_ended {
            around.counters.add(Count::LeasesResumed);
            self.lease_ended = false;
        }
        self.lease_runs |= runs;
    }

    fn run(&mut self, around: &mut Surroundings<'_>, mut steps: Vec<Step<EventList>>, now_ms: u64) {
        for step in steps.drain(..) {
            match step {
                Step::Empty => self.change_slot(around),
                Step::Apply { payload, .. } if self.over_budget.is_some() => {
                    around.changes.give_back(payload);
                }
                Step::Apply { payload, skip } => self.apply(around, payload, skip as usize),
                Step::Replace(parts) => self.load(around, &parts),
                Step::Close(closing) => self.close(around, closing, now_ms),
            }
        }
        around.steps = steps;
        if self.over_budget.is_some() {
            self.pass_over();
        }
        let closed = matches!(self.sequencer.standing(), Standing::Closed(_));
        if self.slot.is_none() && !closed {
            // The index has no slot for it: it waits, without a set, for its next snapshot.
            around.counters.add(Count::RejectedWorkers);
            self.sequencer.give_up(&mut Vec::new());
        }
    }

    fn apply(&mut self, around: &mut Surroundings<'_>, list: EventList, skip: usize) {
        let mut applied = 0;
        for event in &list.events[skip..] {
            let Some(slot) = self.slot else { break };
            applied += 1;
            match event {
                Event::Store(tier, hashes) => {
                    let hashes = &list.hashes[hashes.clone()];
                    around.changes.push(slot, *tier, true, hashes);
                }
                Event::Remove(tier, hashes) => {
                    let hashes = &list.hashes[hashes.clone()];
                    around.changes.push(slot, *tier, false, hashes);
                }
                Event::Clear(None) => self.change_slot(around),
                Event::Clear(Some(tier)) => self.clear(around, slot, *tier),
                Event::Shutdown(_) => {}
            }
        }
        around.changes.count_events(applied);
        around.changes.give_back(list);
    }

    fn clear(&mut self, around: &mut Surroundings<'_>, slot: SlotId, tier: Tier) {
        around.changes.flush();
        let summary = around.index.summary(slot);
        let alone = Tier::ALL
            .iter()
            .all(|&other| other == tier || summary.tier(other).count == 0);
        if alone {
            // A fresh slot costs next to nothing, a pass over the table a lot.
            self.change_slot(around);
        } else {
            around.index.clear(slot, tier);
        }
    }

    fn close(&mut self, around: &mut Surroundings<'_>, closing: Closing, now_ms: u64) {
        self.let_go(around);
        self.over_budget = None;
        match closing {
            Closing::EngineGone => {
                around.counters.add(Count::ShutdownsEngineGone);
                self.gone_since_ms = Some(now_ms);
            }
            Closing::PublisherLeaving => around.counters.add(Count::ShutdownsLeaving),
        }
    }

    /// Hold nothing, and be matched no more.
    pub fn let_go(&mut self, around: &mut Surroundings<'_>) {
        around.changes.flush();
        if let Some(slot) = self.slot.take() {
            around.retire(slot);
        }
        self.shown = false;
    }

    fn change_slot(&mut self, around: &mut Surroundings<'_>) {
        around.changes.flush();
        let is_empty = self
            .slot
            .is_some_and(|slot| around.index.summary(slot).blocks == 0);
        if !is_empty {
            self.change_slot_to(around, |_| ());
        }
    }

    /// Swap in a fresh slot once `fill` has filled it; look-ups see the old set or the new one.
    fn change_slot_to(&mut self, around: &mut Surroundings<'_>, fill: impl FnOnce(SlotId)) {
        around.changes.flush();
        let fresh = around.index.allocate(self.key).or_else(|_| {
            // Slots of the dead come back with the sweep; a full pass of it is the last resort.
            around.sweep_all();
            around.index.allocate(self.key)
        });
        if let Ok(slot) = fresh {
            fill(slot);
        }
        match (self.slot, fresh) {
            (Some(old), Ok(new)) if self.shown => around.replace(old, new),
            (Some(old), _) => around.retire(old),
            (None, _) => {}
        }
        self.shown &= fresh.is_ok();
        self.slot = fresh.ok();
    }

    fn settle(&mut self, around: &Surroundings<'_>) {
        let Some(slot) = self.slot else { return };
        let matches = self.sequencer.standing() == Standing::Whole
            && self.lease_runs
            && self.over_budget.is_none();
        if matches != self.shown {
            self.shown = matches;
            if matches {
                around.index.publish(slot)
            } else {
                around.index.suspend(slot)
            }
        }
    }

    /// Compare the publisher's digest with the index's at the same event.
    fn compare(
        &mut self,
        around: &mut Surroundings<'_>,
        heartbeat: &v1::Heartbeat,
        now_ms: u64,
    ) -> Option<String> {
        // The decoder has checked the tiers.
        let theirs = tier_digests(&heartbeat.digests).ok()?;
        around.changes.flush();
        let ours = self.digests(around.index);
        around.counters.add(Count::DigestsCompared);
        let tier = (0..TIERS).find(|&tier| ours[tier] != theirs[tier])?;
        around.counters.add(Count::DigestsMismatched);
        self.sequencer.distrust(now_ms);
        Some(format!(
            "worker {}/{}: digest differs at event {} on tier {:?}: publisher {} blocks {:016x}, indexer {} blocks {:016x}; a snapshot is needed",
            self.key.worker_id,
            self.key.dp_rank,
            heartbeat.last_event_id,
            Tier::ALL[tier],
            theirs[tier].blocks,
            theirs[tier].xor,
            ours[tier].blocks,
            ours[tier].xor,
        ))
    }
}
