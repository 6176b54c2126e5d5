//! One life of a publisher: what it published, the numbering of what it says, and the newest records.
//!
//! The mirror is modelled here as what it is defined to publish: exactly what of the cache can be
//! reached from a prompt's first block. After every event of the engine the difference to what was
//! published is said, tails leaving first, heads coming first.

use std::collections::VecDeque;

use kvatlas_wire::v1::shutdown::Reason;

use crate::engine::{Cache, TIERS, Told};
use crate::log::Record;
use crate::record::{Change, Speaker};
use crate::tree::{Set, Tree, blocks};

/// One life.
#[derive(Debug)]
pub struct Life {
    /// Who speaks.
    pub speaker: Speaker,
    /// What was heard of the engine's cache.
    pub cache: Cache,
    /// Of the events said so far.
    pub last_event_id: u64,
    published: [Set; TIERS],
    pending: Vec<Change>,
    recent: VecDeque<(u64, Record)>,
    recent_max: usize,
    farewell: Option<Record>,
}

impl Life {
    /// A life that begins with what is remembered; if it remembers anything it must open with a snapshot,
    /// which counts as event 1.
    #[must_use]
    pub fn begin(speaker: Speaker, cache: Option<Cache>, recent_max: usize, tree: &Tree) -> Self {
        let last_event_id = u64::from(cache.is_some());
        let cache = cache.unwrap_or_default();
        Self {
            speaker,
            cache,
            last_event_id,
            published: cache.reachable(tree),
            pending: Vec::new(),
            recent: VecDeque::new(),
            recent_max,
            farewell: None,
        }
    }

    /// Take an event of the engine; what it changes waits to be sealed.
    pub fn hear(&mut self, told: Told, tree: &Tree) {
        self.cache.hear(told, tree);
        let next = self.cache.reachable(tree);
        let before = std::mem::replace(&mut self.published, next);
        if told == Told::Cleared {
            if before != [0; TIERS] {
                self.say(Change::Clear);
            }
            return;
        }
        let left = runs(before, next, tree);
        for (tier, blocks) in left.into_iter().rev() {
            self.say(Change::Remove(tier, blocks.into_iter().rev().collect()));
        }
        for (tier, blocks) in runs(next, before, tree) {
            self.say(Change::Store(tier, blocks));
        }
    }

    /// The records of all that waits.
    pub fn seal(&mut self, batch_events: usize, tree: &Tree) -> Vec<Record> {
        let mut next = self.last_event_id + 1 - self.pending.len() as u64;
        let mut records = Vec::new();
        for changes in std::mem::take(&mut self.pending).chunks(batch_events) {
            let record = self.speaker.events(next, changes, tree);
            self.recent.push_back((next, record.clone()));
            while self.recent.len() > self.recent_max {
                self.recent.pop_front();
            }
            next += changes.len() as u64;
            records.push(record);
        }
        records
    }

    /// The record that ends this life. Nothing may be pending.
    pub fn shut_down(&mut self, reason: Reason) -> Record {
        self.last_event_id += 1;
        let farewell = self.speaker.shutdown(self.last_event_id, reason);
        self.farewell.insert(farewell).clone()
    }

    /// The whole set, and the end if it has come. Nothing may be pending.
    #[must_use]
    pub fn snapshot(&self, part_hashes: usize, tree: &Tree) -> Vec<Record> {
        let as_of = self.last_event_id - u64::from(self.farewell.is_some());
        let mut records = self
            .speaker
            .snapshot(as_of, self.published, part_hashes, tree);
        records.extend(self.farewell.clone());
        records
    }

    /// What a receiver should have by now. Nothing may be pending.
    #[must_use]
    pub fn heartbeat(&self, tree: &Tree) -> Record {
        self.speaker
            .heartbeat(self.last_event_id, self.published, tree)
    }

    /// The records from the one that holds `event_id` on; `None`: they are not kept.
    #[must_use]
    pub fn since(&self, event_id: u64) -> Option<Vec<Record>> {
        let next = self.last_event_id + 1;
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
        Some(
            self.recent
                .range(from..)
                .map(|(_, record)| record.clone())
                .collect(),
        )
    }

    fn say(&mut self, change: Change) {
        self.pending.push(change);
        self.last_event_id += 1;
    }
}

/// What is in `these` and not in `those`, heads first, in runs of one tier.
fn runs(these: [Set; TIERS], those: [Set; TIERS], tree: &Tree) -> Vec<(usize, Vec<usize>)> {
    let mut found: Vec<(usize, usize, usize)> = Vec::new();
    for tier in 0..TIERS {
        let blocks = blocks(these[tier] & !those[tier]);
        found.extend(blocks.map(|block| (tree.depths[block], block, tier)));
    }
    found.sort_unstable();
    let mut runs: Vec<(usize, Vec<usize>)> = Vec::new();
    for (_, block, tier) in found {
        match runs.last_mut() {
            Some((last, blocks)) if *last == tier => blocks.push(block),
            _ => runs.push((tier, vec![block])),
        }
    }
    runs
}
