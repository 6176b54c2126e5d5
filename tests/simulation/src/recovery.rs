//! The recovery policy of the indexer's service: one attempt per worker at a time, and few at once, after a random pause
//! that doubles with every attempt; `Replay` first, then `Snapshot`.

use std::collections::{BTreeMap, BTreeSet};

use kvatlas_cell::RecoveryRequest;
use kvatlas_index::WorkerKey;

use crate::log::Record;
use crate::rng::Rng;

const AT_ONCE: usize = 2;
const START_MS_MAX: u64 = 200;
const RETRY_MS_MIN: u64 = 200;
const RETRY_MS_MAX: u64 = 2_000;

/// An attempt under way.
#[derive(Debug)]
pub struct Attempt {
    /// The worker, and what it lacks.
    pub request: RecoveryRequest,
    /// Number of the replica's start that made the attempt.
    pub start: u64,
    /// The publisher's answer on its way back; None: the call is on its way there.
    pub answer: Option<Vec<Record>>,
    /// Whether it asks for a snapshot instead of a replay.
    pub asks_snapshot: bool,
}

/// The history of one worker's recovery.
#[derive(Debug)]
struct Track {
    pause_ms: u64,
    not_before_ms: u64,
    requested_at_ms: u64,
    applied: u64,
}

/// All recoveries of one replica.
#[derive(Default, Debug)]
pub struct Recovery {
    tracks: BTreeMap<WorkerKey, Track>,
    running: BTreeSet<WorkerKey>,
}

impl Recovery {
    /// Selects the requests whose attempts begin now.
    pub fn due(
        &mut self,
        requests: Vec<RecoveryRequest>,
        rng: &mut Rng,
        now_ms: u64,
    ) -> Vec<RecoveryRequest> {
        let mut due = Vec::new();
        for request in requests {
            if self.running.len() == AT_ONCE {
                break;
            }
            let jitter_ms = rng.between(0, START_MS_MAX);
            let track = self.tracks.entry(request.key).or_insert(Track {
                pause_ms: RETRY_MS_MIN,
                not_before_ms: now_ms + jitter_ms,
                requested_at_ms: now_ms,
                applied: request.applied,
            });
            track.requested_at_ms = now_ms;
            let waits = self.running.contains(&request.key) || now_ms < track.not_before_ms;
            if waits || request.publisher_rpc.is_empty() {
                continue;
            }
            let moved = std::mem::replace(&mut track.applied, request.applied) != request.applied;
            if moved && !request.recovering {
                // Its gaps close by themselves: wait another moment.
                track.not_before_ms = now_ms + jitter_ms;
                continue;
            }
            self.running.insert(request.key);
            due.push(request);
        }
        let running = &self.running;
        self.tracks.retain(|key, track| {
            let last_ms = track.requested_at_ms.max(track.not_before_ms);
            running.contains(key) || now_ms.saturating_sub(last_ms) <= RETRY_MS_MAX
        });
        due
    }

    /// Ends an attempt, successful or not.
    pub fn end(&mut self, key: WorkerKey, rng: &mut Rng, now_ms: u64) {
        self.running.remove(&key);
        if let Some(track) = self.tracks.get_mut(&key) {
            let pause_ms = track.pause_ms / 2 + rng.between(0, track.pause_ms / 2);
            track.not_before_ms = now_ms + pause_ms;
            track.pause_ms = (track.pause_ms * 2).min(RETRY_MS_MAX);
        }
    }
}
