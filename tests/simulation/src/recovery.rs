//! The recovery policy of an indexer, as its service has it: one attempt per worker at a time, few at
//! once, after a jittered pause that doubles with every attempt; `Replay` first, then `Snapshot`.

use std::collections::{BTreeMap, BTreeSet};

use kvatlas_cell::WorkerNeed;
use kvatlas_index::WorkerKey;

use crate::rng::Rng;

const AT_ONCE: usize = 2;
const START_MS_MAX: u64 = 200;
const RETRY_MS_MIN: u64 = 200;
const RETRY_MS_MAX: u64 = 2_000;

/// What is remembered of one worker's recovery.
#[derive(Debug)]
struct Track {
    pause_ms: u64,
    not_before_ms: u64,
    needed_at_ms: u64,
    applied: u64,
}

/// All recoveries of one replica.
#[derive(Default, Debug)]
pub struct Recovery {
    tracks: BTreeMap<WorkerKey, Track>,
    running: BTreeSet<WorkerKey>,
}

impl Recovery {
    /// Which attempts begin now, of all workers that lack records.
    pub fn due(&mut self, needs: Vec<WorkerNeed>, rng: &mut Rng, now_ms: u64) -> Vec<WorkerNeed> {
        let mut due = Vec::new();
        for need in needs {
            if self.running.len() == AT_ONCE {
                break;
            }
            let jitter_ms = rng.between(0, START_MS_MAX);
            let track = self.tracks.entry(need.key).or_insert(Track {
                pause_ms: RETRY_MS_MIN,
                not_before_ms: now_ms + jitter_ms,
                needed_at_ms: now_ms,
                applied: need.applied,
            });
            track.needed_at_ms = now_ms;
            let waits = self.running.contains(&need.key) || now_ms < track.not_before_ms;
            if waits || need.publisher_rpc.is_empty() {
                continue;
            }
            let moved = std::mem::replace(&mut track.applied, need.applied) != need.applied;
            if moved && !need.recovering {
                // Its gaps close by themselves: give it another moment.
                track.not_before_ms = now_ms + jitter_ms;
                continue;
            }
            self.running.insert(need.key);
            due.push(need);
        }
        let running = &self.running;
        self.tracks.retain(|key, track| {
            let last_ms = track.needed_at_ms.max(track.not_before_ms);
            running.contains(key) || now_ms.saturating_sub(last_ms) <= RETRY_MS_MAX
        });
        due
    }

    /// An attempt has ended, healed or not.
    pub fn ended(&mut self, key: WorkerKey, rng: &mut Rng, now_ms: u64) {
        self.running.remove(&key);
        if let Some(track) = self.tracks.get_mut(&key) {
            let pause_ms = track.pause_ms / 2 + rng.between(0, track.pause_ms / 2);
            track.not_before_ms = now_ms + pause_ms;
            track.pause_ms = (track.pause_ms * 2).min(RETRY_MS_MAX);
        }
    }
}
