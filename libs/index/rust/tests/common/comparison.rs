//! The index and the model side by side: every operation is played to both, and their results are compared.

use kvatlas_hashing::sequence_step;
use kvatlas_index::{FindOptions, Index, IndexConfig, Matches, Query, Tier, WorkerKey};

use super::model::{Model, Slot, State};
use super::ops::Op;

/// Prompts of a binary tree that forks at these depths: many share prefixes of all lengths.
const FORKS: [usize; 4] = [1, 5, 14, 33];
const DEPTH: usize = 60;
const PROMPTS: usize = 1 << FORKS.len();
/// More than a word of worker slots, so that bitmaps must widen.
const CROWD: usize = 70;

/// Chunk hashes of one prompt; two prompts share all blocks before the first fork at which they differ.
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

pub struct Comparison {
    index: Index,
    model: Model,
    chunks: Vec<Vec<u64>>,
    hashes: Vec<Vec<u64>>,
    closed: bool,
    out: Matches,
}

impl Comparison {
    pub fn new(shard_bits: u32, closed: bool) -> Self {
        let chunks: Vec<_> = (0..PROMPTS).map(chunks).collect();
        Self {
            index: Index::new(IndexConfig {
                shard_bits,
                initial_entries_per_shard: 1,
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
        self.model.slots.push(Slot {
            id,
            key,
            state: State::Staged,
            tiers: Default::default(),
        });
        self.model.slots.len() - 1
    }

    /// Changes a slot's state. Does not publish if another slot of the worker is matchable: only `Replace` does that.
    fn set_state(&mut self, slot: usize, state: State) {
        let Slot { id, key, .. } = self.model.slots[slot];
        let rival = |other: &Slot| other.key == key && other.id != id && other.state == State::Live;
        if state == State::Live && self.model.slots.iter().any(rival) {
            return;
        }
        match state {
            State::Live => self.index.publish(id),
            State::Suspended => self.index.suspend(id),
            State::Retired => self.index.retire(id),
            State::Staged => return,
        }
        self.model.set_state(slot, state);
    }

    fn replace(&mut self, old: usize) {
        let Slot { id, key, state, .. } = self.model.slots[old];
        if state != State::Live {
            return;
        }
        let new = self.allocate(key.worker_id * 2 + u64::from(key.dp_rank));
        let held: Vec<u64> = self.model.slots[old].on_any_tier().into_iter().collect();
        let half = if self.closed {
            &held[..]
        } else {
            &held[..held.len() / 2]
        };
        self.store(new, Tier::Device, half);
        self.index.replace(id, self.model.slots[new].id);
        self.model.set_state(old, State::Retired);
        self.model.set_state(new, State::Live);
    }

    fn store(&mut self, slot: usize, tier: Tier, hashes: &[u64]) {
        let id = self.model.slots[slot].id;
        assert_eq!(
            self.index.store(id, tier, hashes),
            self.model.store(slot, tier, hashes)
        );
    }

    fn remove(&mut self, slot: usize, tier: Tier, hashes: &[u64]) {
        let id = self.model.slots[slot].id;
        assert_eq!(
            self.index.remove(id, tier, hashes),
            self.model.remove(slot, tier, hashes)
        );
    }

    /// Removes a block and all that follow it, of every prompt through it, on every tier: tail first.
    fn remove_closed(&mut self, slot: usize, prompt: usize, from: usize) {
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
                self.remove(slot, tier, &tail);
            }
        }
    }

    fn play(&mut self, op: &Op) {
        let slots = self.model.slots.len();
        let pick = |slot: u8| usize::from(slot) % slots;
        let tier = |tier: u8| Tier::ALL[if tier > 140 { usize::from(tier) % 4 } else { 0 }];
        let prompt = |prompt: u8| usize::from(prompt) % PROMPTS;
        let span = |from: u8, to: u8| {
            let (from, to) = (usize::from(from) % DEPTH, usize::from(to) % DEPTH);
            from.min(to)..from.max(to) + 1
        };
        match *op {
            Op::Allocate { worker } => {
                let slot = self.allocate(u64::from(worker) % 100);
                self.set_state(slot, State::Live);
            }
            Op::SetState { slot, state } => {
                let states = [State::Live, State::Live, State::Suspended, State::Retired];
                self.set_state(pick(slot), states[usize::from(state) % 4]);
            }
            Op::Replace { slot } => self.replace(pick(slot)),
            Op::Store {
                slot,
                tier: t,
                prompt: p,
                from,
                to,
            } => {
                let span = span(if self.closed { 0 } else { from }, to);
                let hashes = self.hashes[prompt(p)][span].to_vec();
                self.store(pick(slot), tier(t), &hashes);
            }
            Op::Remove {
                slot,
                prompt: p,
                from,
                ..
            } if self.closed => {
                self.remove_closed(pick(slot), prompt(p), usize::from(from) % DEPTH);
            }
            Op::Remove {
                slot,
                tier: t,
                prompt: p,
                from,
                to,
            } => {
                let hashes = self.hashes[prompt(p)][span(from, to)].to_vec();
                self.remove(pick(slot), tier(t), &hashes);
            }
            Op::Offload {
                slot,
                tier: t,
                prompt: p,
                to,
            } => {
                let slot = pick(slot);
                let span = span(0, to);
                let mut held: Vec<u64> = self.hashes[prompt(p)][span].to_vec();
                held.retain(|&hash| self.model.slots[slot].holds(hash));
                let below = Tier::ALL[1 + usize::from(t) % 3];
                self.store(slot, below, &held);
                held.reverse();
                self.remove(slot, Tier::Device, &held);
            }
            Op::Clear { slot, tier: t } => {
                // A cleared tier leaves holes where other tiers go on, which only open histories may have.
                let (slot, tier) = (pick(slot), tier(t));
                let tiers = if self.closed {
                    &Tier::ALL[..]
                } else {
                    &[tier][..]
                };
                for &tier in tiers {
                    self.index.clear(self.model.slots[slot].id, tier);
                    if self.model.slots[slot].state != State::Retired {
                        self.model.slots[slot].tiers[tier as usize].clear();
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
        for slot in self
            .model
            .slots
            .iter()
            .filter(|slot| slot.state != State::Retired)
        {
            for tier in Tier::ALL {
                let held = &slot.tiers[tier as usize];
                let mut dumped = self.index.hashes(slot.id, tier);
                dumped.sort_unstable();
                assert_eq!(dumped, held.iter().copied().collect::<Vec<_>>());
                assert_eq!(self.index.summary(slot.id).tier(tier), slot.summary(tier));
                for &hash in &self.hashes[3] {
                    assert_eq!(self.index.holds(slot.id, tier, hash), held.contains(&hash));
                }
            }
            assert_eq!(
                self.index.summary(slot.id).blocks,
                slot.on_any_tier().len() as u64
            );
        }
        let alive = self
            .model
            .slots
            .iter()
            .filter(|slot| slot.state != State::Retired);
        let memberships: u64 = alive.map(|slot| slot.on_any_tier().len() as u64).sum();
        assert_eq!(self.index.memberships(), memberships);
    }

    fn sweep_all(&mut self) {
        while self.index.sweep(50).more {}
    }

    /// Few workers with a shared prefix, then many; then most of them go, and others come.
    fn prelude(&mut self) {
        for worker in 0..CROWD {
            let slot = self.allocate(worker as u64);
            self.set_state(slot, State::Live);
            let hashes = self.hashes[worker % PROMPTS][..1 + worker % DEPTH].to_vec();
            self.store(slot, Tier::Device, &hashes);
        }
        self.compare_all();
        // A third is retired with all it holds; the others but two remove their blocks.
        for slot in 20..40 {
            self.set_state(slot, State::Retired);
        }
        self.sweep_all();
        self.compare_all();
        for slot in (2..20).chain(40..CROWD) {
            self.remove_closed(slot, slot % PROMPTS, 0);
        }
        // The holders of one block come and go: into a bitmap, out of it, into the memory of an earlier one.
        for _ in 0..4 {
            for slot in 2..8 {
                let first = self.hashes[0][..1].to_vec();
                self.store(slot, Tier::Host, &first);
            }
            for slot in 2..8 {
                self.remove_closed(slot, 0, 0);
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
        // A sweep of the end state, then slots with their second owners.
        self.sweep_all();
        for worker in 200..205 {
            let slot = self.allocate(worker);
            self.set_state(slot, State::Live);
            let hashes = self.hashes[5].clone();
            self.store(slot, Tier::Device, &hashes);
        }
        self.compare_all();
        let events = self.index.events();
        for (reached, what) in [
            (events.growths, "growth"),
            (events.bitmaps_made, "a bitmap"),
            (events.bitmaps_inlined, "return from a bitmap"),
            (events.bitmaps_widened, "widening"),
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
