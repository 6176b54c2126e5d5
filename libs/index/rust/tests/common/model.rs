//! The model: a nested dictionary per worker slot and generation, and the definitions of the answers, spelt out.

use std::collections::BTreeSet;

use kvatlas_index::{SlotId, Tier, TierSummary, WorkerKey};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Staged,
    Live,
    Suspended,
    Retired,
}

pub struct Slot {
    pub id: SlotId,
    pub key: WorkerKey,
    pub state: State,
    pub tiers: [BTreeSet<u64>; 4],
}

impl Slot {
    pub fn holds(&self, hash: u64) -> bool {
        self.tiers.iter().any(|tier| tier.contains(&hash))
    }

    pub fn on_any_tier(&self) -> BTreeSet<u64> {
        self.tiers.iter().flatten().copied().collect()
    }

    pub fn summary(&self, tier: Tier) -> TierSummary {
        let held = &self.tiers[tier as usize];
        TierSummary {
            count: held.len() as u64,
            digest: held.iter().fold(0, |a, b| a ^ b),
        }
    }
}

#[derive(Default)]
pub struct Model {
    pub slots: Vec<Slot>,
}

impl Model {
    pub fn store(&mut self, slot: usize, tier: Tier, hashes: &[u64]) -> usize {
        let slot = &mut self.slots[slot];
        if slot.state == State::Retired {
            return 0;
        }
        hashes
            .iter()
            .filter(|&&hash| slot.tiers[tier as usize].insert(hash))
            .count()
    }

    pub fn remove(&mut self, slot: usize, tier: Tier, hashes: &[u64]) -> usize {
        let slot = &mut self.slots[slot];
        if slot.state == State::Retired {
            return 0;
        }
        hashes
            .iter()
            .filter(|hash| slot.tiers[tier as usize].remove(hash))
            .count()
    }

    pub fn set_state(&mut self, slot: usize, state: State) {
        let slot = &mut self.slots[slot];
        match (slot.state, state) {
            (State::Retired, _) | (State::Staged, State::Suspended) => {}
            _ => slot.state = state,
        }
    }

    /// All workers with at least one leading block, in the order of answers.
    pub fn find(&self, sequence_hashes: &[u64]) -> Vec<(WorkerKey, u32)> {
        let mut found: Vec<(WorkerKey, u32)> = self
            .slots
            .iter()
            .filter(|slot| slot.state == State::Live)
            .map(|slot| {
                (
                    slot,
                    sequence_hashes
                        .iter()
                        .take_while(|&&h| slot.holds(h))
                        .count(),
                )
            })
            .filter(|&(_, depth)| depth > 0)
            .map(|(slot, depth)| (slot.key, depth as u32))
            .collect();
        found.sort_unstable_by_key(|&(key, depth)| (std::cmp::Reverse(depth), key));
        found
    }

    /// The rows that a limit leaves of an answer.
    pub fn limited(
        &self,
        found: &[(WorkerKey, u32)],
        limit: usize,
        sequence_hashes: &[u64],
    ) -> Vec<(WorkerKey, u32)> {
        let mut ranked: Vec<_> = found.to_vec();
        ranked.sort_by_key(|&(key, depth)| {
            let mut bytes = key.worker_id.to_le_bytes().to_vec();
            bytes.extend(key.dp_rank.to_le_bytes());
            bytes.extend(sequence_hashes[depth as usize - 1].to_le_bytes());
            (std::cmp::Reverse(depth), xxhash_rust::xxh3::xxh3_64(&bytes))
        });
        ranked.truncate(limit);
        ranked.sort_unstable_by_key(|&(key, depth)| (std::cmp::Reverse(depth), key));
        ranked
    }
}
