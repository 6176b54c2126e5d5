//! A sequencer under test, and helpers that feed it with records of one epoch.

use kvatlas_events::sequencer::{
    Events, Incarnation, Limits, Sequencer, SequencerState, ShutdownReason, SnapshotPart, Step,
    TickOutcome, TierDigest, Verdict,
};
use kvatlas_types::Tier;

pub const LIMITS: Limits = Limits {
    hold_back_batches: 3,
    hold_back_ms: 100,
    recover_ms: 1_000,
    snapshot_parts: 8,
    snapshot_hashes: 100,
};
pub const NOW_MS: u64 = 1_000_000;
pub const INCARNATION: Incarnation = Incarnation {
    epoch: 5_000,
    instance: 7,
};

/// A sequencer under test; payloads are their batches' first ids.
pub struct Bench {
    pub sequencer: Sequencer<u64>,
    pub steps: Vec<Step<u64>>,
}

impl Bench {
    pub fn new() -> Self {
        Self {
            sequencer: Sequencer::new(LIMITS),
            steps: Vec::new(),
        }
    }

    pub fn whole_at(applied: u64) -> Self {
        let mut bench = Self::new();
        if applied == 0 {
            bench.heartbeat(0);
        } else {
            bench.events(1, u32::try_from(applied).unwrap());
        }
        bench.steps.clear();
        bench
    }

    pub fn events_of(&mut self, incarnation: Incarnation, first: u64, count: u32) -> Verdict {
        let events = Events {
            first_event_id: first,
            count,
            shutdown: None,
            payload: first,
        };
        self.sequencer
            .on_events(incarnation, events, NOW_MS, &mut self.steps)
    }

    pub fn events(&mut self, first: u64, count: u32) -> Verdict {
        self.events_of(INCARNATION, first, count)
    }

    pub fn close(&mut self, first: u64, reason: ShutdownReason) -> Verdict {
        let events = Events {
            first_event_id: first,
            count: 1,
            shutdown: Some(reason),
            payload: first,
        };
        self.sequencer
            .on_events(INCARNATION, events, NOW_MS, &mut self.steps)
    }

    pub fn heartbeat(&mut self, last: u64) -> Verdict {
        self.sequencer
            .on_heartbeat(INCARNATION, last, NOW_MS, &mut self.steps)
    }

    pub fn part(&mut self, part: SnapshotPart) -> Verdict {
        self.sequencer
            .on_snapshot_part(INCARNATION, part, NOW_MS, &mut self.steps)
    }

    pub fn tick(&mut self, after_ms: u64) -> TickOutcome {
        self.sequencer.on_tick(NOW_MS + after_ms, &mut self.steps)
    }

    pub fn applied(&self) -> Vec<(u64, u32)> {
        let applied = self.steps.iter().filter_map(|step| match step {
            Step::Apply { payload, skip } => Some((*payload, *skip)),
            _ => None,
        });
        applied.collect()
    }

    pub fn replaced(&self) -> Option<Vec<u64>> {
        self.steps.iter().find_map(|step| match step {
            Step::Replace(parts) => Some(
                parts
                    .iter()
                    .flat_map(|part| part.hashes.iter().copied())
                    .collect(),
            ),
            _ => None,
        })
    }

    pub fn state(&self) -> SequencerState {
        self.sequencer.state()
    }
}

pub fn snapshot(as_of: u64, sets: &[&[u64]]) -> Vec<SnapshotPart> {
    let mut digests = [TierDigest::default(); Tier::COUNT];
    digests[0] = TierDigest::of(&sets.concat());
    let parts = u32::try_from(sets.len()).unwrap();
    (0..parts)
        .zip(sets)
        .map(|(part, set)| SnapshotPart {
            as_of,
            part,
            parts,
            tier: 0,
            hashes: set.to_vec(),
            digests,
        })
        .collect()
}
