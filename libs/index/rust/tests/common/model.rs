//! The oracle: a nested dictionary per life of a worker, and the definitions of the answers, spelt out.

use std::collections::BTreeSet;

use kvatlas_index::{SlotId, Tier, TierSummary, WorkerKey};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Staged,
    Live,
    Suspended,
    Dead,
}

pub struct Life {
    pub id: SlotId,
    pub key: WorkerKey,
    pub phase: Phase,
    pub tiers: [BTreeSet<u64>; 4],
}

impl Life {
    pub fn holds(&self, hash: u64) -> bool {
        self.tiers.iter().any(|tier| tier.contains(&hash))
    }

    pub fn anywhere(&self) -> BTreeSet<u64> {
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
    pub lives: Vec<Life>,
}

impl Model {
    pub fn store(&mut self, life: usize, tier: Tier, hashes: &[u64]) -> usize {
        let life = &mut self.lives[life];
        if life.phase == Phase::Dead {
            return 0;
        }
        hashes
            .iter()
            .filter(|&&hash| life.tiers[tier as usize].insert(hash))
            .count()
    }

    pub fn remove(&mut self, life: usize, tier: Tier, hashes: &[u64]) -> usize {
        let life = &mut self.lives[life];
        if life.phase == Phase::Dead {
            return 0;
        }
        hashes
            .iter()
            .filter(|hash| life.tiers[tier as usize].remove(hash))
            .count()
    }

    pub fn enter(&mut self, life: usize, phase: Phase) {
        let life = &mut self.lives[life];
        match (life.phase, phase) {
            (Phase::Dead, _) | (Phase::Staged, Phase::Suspended) => {}
            _ => life.phase = phase,
        }
    }

    /// All workers with at least one leading block, by the order of answers.
    pub fn find(&self, sequence_hashes: &[u64]) -> Vec<(WorkerKey, u32)> {
        let mut found: Vec<(WorkerKey, u32)> = self
            .lives
            .iter()
            .filter(|life| life.phase == Phase::Live)
            .map(|life| {
                (
                    life,
                    sequence_hashes
                        .iter()
                        .take_while(|&&h| life.holds(h))
                        .count(),
                )
            })
            .filter(|&(_, depth)| depth > 0)
            .map(|(life, depth)| (life.key, depth as u32))
            .collect();
        found.sort_unstable_by_key(|&(key, depth)| (std::cmp::Reverse(depth), key));
        found
    }

    /// What is left of an answer under a limit.
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
