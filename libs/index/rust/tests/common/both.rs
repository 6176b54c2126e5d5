//! The index and the oracle side by side: every operation is played to both, and their results compared.

use kvatlas_hashing::sequence_step;
use kvatlas_index::{FindOptions, Index, IndexConfig, Matches, Query, Tier, WorkerKey};

use super::model::{Life, Model, Phase};
use super::ops::Op;

/// Prompts of a binary tree that forks at these depths: many share heads of all lengths.
const FORKS: [usize; 4] = [1, 5, 14, 33];
const DEPTH: usize = 60;
const PROMPTS: usize = 1 << FORKS.len();
/// More than a word of worker slots, so that bitmaps must widen.
const CROWD: usize = 70;

/// Chunk hashes of one prompt; two prompts share all blocks before the first fork they differ at.
fn chunks(prompt: usize) -> Vec<u64> {
    let branch = |depth: usize| {
        FORKS
            .iter()
            .enumerate()
            .filter(|&(_, &fork)| depth >= fork)
            .map(|(i, _)| prompt & 1 << i)
            .sum::<usize>()
    };
    (0..DEPTH)
        .map(|depth| (depth * PROMPTS + branch(depth)) as u64)
        .collect()
}

fn chain(chunks: &[u64]) -> Vec<u64> {
    let mut out: Vec<u64> = Vec::new();
    for &chunk in chunks {
        out.push(
            out.last()
                .map_or(chunk, |&parent| sequence_step(parent, chunk)),
        );
    }
    out
}

pub struct Both {
    index: Index,
    model: Model,
    chunks: Vec<Vec<u64>>,
    hashes: Vec<Vec<u64>>,
    closed: bool,
    out: Matches,
}

impl Both {
    pub fn new(shard_bits: u32, closed: bool) -> Self {
        let chunks: Vec<_> = (0..PROMPTS).map(chunks).collect();
        Self {
            index: Index::new(IndexConfig {
                shard_bits,
                initial_slots_per_shard: 1,
            }),
            model: Model::default(),
            hashes: chunks.iter().map(|chunks| chain(chunks)).collect(),
            chunks,
            closed,
            out: Matches::default(),
        }
    }

    fn allocate(&mut self, worker: u64) -> usize {
        let key = WorkerKey {
            worker_id: worker / 2,
            dp_rank: (worker % 2) as u32,
        };
        let id = self.index.allocate(key).unwrap();
        self.model.lives.push(Life {
            id,
            key,
            phase: Phase::Staged,
            tiers: Default::default(),
        });
        self.model.lives.len() - 1
    }

    /// Publishes, unless another life of the worker is matchable: then it is `Replace`'s to do.
    fn enter(&mut self, life: usize, phase: Phase) {
        let Life { id, key, .. } = self.model.lives[life];
        let rival = |other: &Life| other.key == key && other.id != id && other.phase == Phase::Live;
        if phase == Phase::Live && self.model.lives.iter().any(rival) {
            return;
        }
        match phase {
            Phase::Live => self.index.publish(id),
            Phase::Suspended => self.index.suspend(id),
            Phase::Dead => self.index.retire(id),
            Phase::Staged => return,
        }
        self.model.enter(life, phase);
    }

    fn replace(&mut self, old: usize) {
        let Life { id, key, phase, .. } = self.model.lives[old];
        if phase != Phase::Live {
            return;
        }
        let new = self.allocate(key.worker_id * 2 + u64::from(key.dp_rank));
        let held: Vec<u64> = self.model.lives[old].anywhere().into_iter().collect();
        let half = if self.closed {
            &held[..]
        } else {
            &held[..held.len() / 2]
        };
        self.store(new, Tier::Device, half);
        self.index.replace(id, self.model.lives[new].id);
        self.model.enter(old, Phase::Dead);
        self.model.enter(new, Phase::Live);
    }

    fn store(&mut self, life: usize, tier: Tier, hashes: &[u64]) {
        let id = self.model.lives[life].id;
        assert_eq!(
            self.index.store(id, tier, hashes),
            self.model.store(life, tier, hashes)
        );
    }

    fn remove(&mut self, life: usize, tier: Tier, hashes: &[u64]) {
        let id = self.model.lives[life].id;
        assert_eq!(
            self.index.remove(id, tier, hashes),
            self.model.remove(life, tier, hashes)
        );
    }

    /// Removes a block and all that follow it, of every prompt through it, on every tier: tail first.
    fn remove_closed(&mut self, life: usize, prompt: usize, from: usize) {
        let root = self.hashes[prompt][from];
        let through: Vec<Vec<u64>> = self
            .hashes
            .iter()
            .filter(|hashes| hashes[from] == root)
            .cloned()
            .collect();
        for hashes in through {
            let tail: Vec<u64> = hashes[from..].iter().rev().copied().collect();
            for tier in Tier::ALL {
                self.remove(life, tier, &tail);
            }
        }
    }

    fn play(&mut self, op: &Op) {
        let lives = self.model.lives.len();
        let pick = |life: u8| usize::from(life) % lives;
        let tier = |tier: u8| Tier::ALL[if tier > 140 { usize::from(tier) % 4 } else { 0 }];
        let prompt = |prompt: u8| usize::from(prompt) % PROMPTS;
        let span = |from: u8, to: u8| {
            let (from, to) = (usize::from(from) % DEPTH, usize::from(to) % DEPTH);
            from.min(to)..from.max(to) + 1
        };
        match *op {
            Op::Allocate { worker } => {
                let life = self.allocate(u64::from(worker) % 100);
                self.enter(life, Phase::Live);
            }
            Op::Enter { life, phase } => {
                let phases = [Phase::Live, Phase::Live, Phase::Suspended, Phase::Dead];
                self.enter(pick(life), phases[usize::from(phase) % 4]);
            }
            Op::Replace { life } => self.replace(pick(life)),
            Op::Store {
                life,
                tier: t,
                prompt: p,
                from,
                to,
            } => {
                let span = span(if self.closed { 0 } else { from }, to);
                let hashes = self.hashes[prompt(p)][span].to_vec();
                self.store(pick(life), tier(t), &hashes);
            }
            Op::Remove {
                life,
                prompt: p,
                from,
                ..
            } if self.closed => {
                self.remove_closed(pick(life), prompt(p), usize::from(from) % DEPTH);
            }
            Op::Remove {
                life,
                tier: t,
                prompt: p,
                from,
                to,
            } => {
                let hashes = self.hashes[prompt(p)][span(from, to)].to_vec();
                self.remove(pick(life), tier(t), &hashes);
            }
            Op::Offload {
                life,
                tier: t,
                prompt: p,
                to,
            } => {
                let life = pick(life);
                let span = span(0, to);
                let mut held: Vec<u64> = self.hashes[prompt(p)][span].to_vec();
                held.retain(|&hash| self.model.lives[life].holds(hash));
                let below = Tier::ALL[1 + usize::from(t) % 3];
                self.store(life, below, &held);
                held.reverse();
                self.remove(life, Tier::Device, &held);
            }
            Op::Clear { life, tier: t } => {
                // A cleared tier leaves holes where other tiers go on, so only where holes may be.
                let (life, tier) = (pick(life), tier(t));
                let tiers = if self.closed {
                    &Tier::ALL[..]
                } else {
                    &[tier][..]
                };
                for &tier in tiers {
                    self.index.clear(self.model.lives[life].id, tier);
                    if self.model.lives[life].phase != Phase::Dead {
                        self.model.lives[life].tiers[tier as usize].clear();
                    }
                }
            }
            Op::Sweep { budget } => {
                let _ = self.index.sweep(usize::from(budget));
            }
            Op::Find {
                prompt: p,
                limit,
                exact,
            } => {
                self.compare_find(prompt(p), usize::from(limit) % 12, exact || !self.closed);
            }
        }
    }

    fn compare_find(&mut self, prompt: usize, limit: usize, exact: bool) {
        let (chunks, hashes) = (&self.chunks[prompt], &self.hashes[prompt]);
        let mut expected = self.model.find(hashes);
        if limit > 0 {
            expected = self.model.limited(&expected, limit, hashes);
        }
        let bytes = |words: &[u64]| {
            words
                .iter()
                .flat_map(|w| w.to_le_bytes())
                .collect::<Vec<u8>>()
        };
        let (chunk_bytes, hash_bytes) = (bytes(chunks), bytes(hashes));
        let options = FindOptions {
            limit,
            exact,
            ..FindOptions::default()
        };
        for query in [
            Query::ChunkHashes(chunks),
            Query::SequenceHashes(hashes),
            Query::ChunkHashesLe(&chunk_bytes),
            Query::SequenceHashesLe(&hash_bytes),
        ] {
            self.index.find(query, &options, &mut self.out);
            let Matches {
                workers, depths, ..
            } = &self.out;
            let found: Vec<_> = workers
                .iter()
                .copied()
                .zip(depths.iter().copied())
                .collect();
            assert_eq!(found, expected, "exact {exact}, limit {limit}");
        }
    }

    fn compare_all(&mut self) {
        for prompt in 0..PROMPTS {
            for exact in [false, true] {
                self.compare_find(prompt, 0, exact || !self.closed);
            }
        }
        for life in self
            .model
            .lives
            .iter()
            .filter(|life| life.phase != Phase::Dead)
        {
            for tier in Tier::ALL {
                let held = &life.tiers[tier as usize];
                let mut dumped = self.index.hashes(life.id, tier);
                dumped.sort_unstable();
                assert_eq!(dumped, held.iter().copied().collect::<Vec<_>>());
                assert_eq!(self.index.summary(life.id).tier(tier), life.summary(tier));
                for &hash in &self.hashes[3] {
                    assert_eq!(self.index.holds(life.id, tier, hash), held.contains(&hash));
                }
            }
            assert_eq!(
                self.index.summary(life.id).blocks,
                life.anywhere().len() as u64
            );
        }
        let alive = self
            .model
            .lives
            .iter()
            .filter(|life| life.phase != Phase::Dead);
        let memberships: u64 = alive.map(|life| life.anywhere().len() as u64).sum();
        assert_eq!(self.index.memberships(), memberships);
    }

    fn sweep_all(&mut self) {
        while self.index.sweep(50).more {}
    }

    /// Few workers with a shared head, then many; then most of them go, and others come.
    fn prelude(&mut self) {
        for worker in 0..CROWD {
            let life = self.allocate(worker as u64);
            self.enter(life, Phase::Live);
            let hashes = self.hashes[worker % PROMPTS][..1 + worker % DEPTH].to_vec();
            self.store(life, Tier::Device, &hashes);
        }
        self.compare_all();
        // A third dies with all it holds; the others but two give theirs back.
        for life in 20..40 {
            self.enter(life, Phase::Dead);
        }
        self.sweep_all();
        self.compare_all();
        for life in (2..20).chain(40..CROWD) {
            self.remove_closed(life, life % PROMPTS, 0);
        }
        // One block's holders come and go: into a bitmap, out of it, into the memory of an earlier one.
        for _ in 0..4 {
            for life in 2..8 {
                let head = self.hashes[0][..1].to_vec();
                self.store(life, Tier::Host, &head);
            }
            for life in 2..8 {
                self.remove_closed(life, 0, 0);
            }
        }
        self.compare_all();
    }

    pub fn run(&mut self, ops: &[Op]) {
        self.prelude();
        for op in ops {
            self.play(op);
        }
        self.compare_all();
        // A pass over the end state, then slots in their second life.
        self.sweep_all();
        for worker in 200..205 {
            let life = self.allocate(worker);
            self.enter(life, Phase::Live);
            let hashes = self.hashes[5].clone();
            self.store(life, Tier::Device, &hashes);
        }
        self.compare_all();
        let events = self.index.events();
        for (reached, what) in [
            (events.growths, "growth"),
            (events.spills, "spill"),
            (events.unspills, "return from a bitmap"),
            (events.widenings, "widening"),
            (events.bitmap_reuses, "reuse of a bitmap"),
            (events.slot_reuses, "reuse of a worker slot"),
            (events.sweeps, "sweep"),
            (events.swept_memberships, "removal by the sweep"),
            (events.shrinks, "shrinking"),
        ] {
            assert!(
                reached > 0,
                "the history never reached: {what} ({events:?})"
            );
        }
    }
}
