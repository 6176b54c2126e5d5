//! Two indexes whose rosters and sets change, what they must answer, and buffers that are kept throughout.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use kvatlas_hashing::sequence_step;
use kvatlas_index::{
    FindOptions, Index, IndexConfig, Matches, Pairs, Query, SlotFilter, SlotId, Tier, WorkerKey,
};
use proptest::prelude::*;

pub const BLOCKS: usize = 150;
/// Where each prompt parts from the first one.
pub const PARTS: [usize; 8] = [0, 1, 2, 7, 8, 9, 40, 100];
pub const BUFFERS: usize = 2;
/// There can be.
pub const WORKERS: usize = 160;

type Row = (u32, WorkerKey);

/// A prompt as chunk hashes and as sequence hashes.
struct Prompt {
    chunks: Vec<u64>,
    hashes: Vec<u64>,
}

fn prompt(number: usize) -> Prompt {
    let chunk = |block| (block * 10 + if block < PARTS[number] { 0 } else { number }) as u64;
    let chunks: Vec<u64> = (0..BLOCKS).map(chunk).collect();
    let mut hashes = vec![chunks[0]];
    for &chunk in &chunks[1..] {
        hashes.push(sequence_step(hashes[hashes.len() - 1], chunk));
    }
    Prompt { chunks, hashes }
}

fn worker(number: usize) -> WorkerKey {
    WorkerKey {
        worker_id: (number as u64 / 2).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        dp_rank: number as u32 % 2,
    }
}

struct Worker {
    number: usize,
    slot: SlotId,
    is_live: bool,
    held: BTreeSet<u64>,
}

struct Fleet {
    index: Index,
    workers: Vec<Worker>,
}

struct Filter {
    filter: SlotFilter,
    workers: BTreeSet<usize>,
    /// Of which fleet, if it is by slots.
    slots: Option<(usize, Vec<SlotId>)>,
}

#[derive(Clone, Debug)]
pub struct Asked {
    pub fleet: usize,
    pub prompt: usize,
    /// The query begins that far inside the prompt.
    pub from: usize,
    pub length: usize,
    pub limit: usize,
    pub min_depth: usize,
    pub exact: bool,
    pub filter: Option<usize>,
    pub buffer: usize,
    /// Chunk hashes, and packed ones.
    pub form: (bool, bool),
}

#[derive(Clone, Debug)]
pub enum Act {
    /// A worker that is there comes to hold so much of a prompt.
    Hold(usize, usize, usize, usize),
    Come(usize, usize),
    Stage(usize, usize),
    Leave(usize, usize),
    Replace(usize, usize),
    /// Its slot is soon another one's, who holds the same.
    Succeed(usize, usize, usize),
    Hide(usize, usize),
    Show(usize, usize),
    Sweep(usize),
    Filter(usize, bool, u64, u64),
    /// Asks one of the questions, so many times more than once.
    Ask(usize, u8),
    /// Asks some of them together.
    Batch(Vec<usize>),
}

pub struct World {
    questions: Vec<Asked>,
    prompts: Vec<Prompt>,
    fleets: Vec<Fleet>,
    filters: Vec<Filter>,
    matches: Vec<Matches>,
    pairs: Vec<Pairs>,
}

impl Fleet {
    fn new() -> Self {
        let index = Index::new(IndexConfig {
            shard_bits: 1,
            ..IndexConfig::default()
        });
        let workers = Vec::new();
        Self { index, workers }
    }

    fn at(&mut self, place: usize) -> Option<&mut Worker> {
        let count = self.workers.len();
        self.workers.get_mut(place.checked_rem(count)?)
    }

    fn come(&mut self, number: usize, is_live: bool) {
        if self.workers.iter().any(|worker| worker.number == number) {
            return;
        }
        let slot = self.index.allocate(worker(number)).unwrap();
        if is_live {
            self.index.publish(slot);
        }
        let held = BTreeSet::new();
        self.workers.push(Worker {
            number,
            slot,
            is_live,
            held,
        });
    }

    fn hold(&mut self, place: usize, wanted: &[u64], gone: &[u64]) {
        let index = &self.index;
        let count = self.workers.len();
        let Some(place) = place.checked_rem(count) else {
            return;
        };
        let worker = &mut self.workers[place];
        index.store(worker.slot, Tier::Device, wanted);
        worker.held.extend(wanted);
        // What is gone may be in the middle of another prompt's head, which goes with it.
        index.remove(worker.slot, Tier::Device, gone);
        worker.held.retain(|hash| !gone.contains(hash));
    }
}

impl World {
    pub fn new(questions: Vec<Asked>) -> Self {
        Self {
            questions,
            prompts: (0..PARTS.len()).map(prompt).collect(),
            fleets: vec![Fleet::new(), Fleet::new()],
            filters: Vec::new(),
            matches: (0..BUFFERS).map(|_| Matches::default()).collect(),
            pairs: (0..BUFFERS).map(|_| Pairs::default()).collect(),
        }
    }

    fn hashes(&self, asked: &Asked) -> &[u64] {
        let hashes = &self.prompts[asked.prompt].hashes[asked.from.min(BLOCKS)..];
        &hashes[..asked.length.min(hashes.len())]
    }

    /// The answer that follows from what is held alone.
    fn expected(&self, asked: &Asked) -> Vec<Row> {
        let hashes = self.hashes(asked);
        let filter = asked.filter.and_then(|at| self.filters.get(at));
        let mut rows: Vec<Row> = Vec::new();
        for held in &self.fleets[asked.fleet].workers {
            let is_meant = filter.is_none_or(|filter| match &filter.slots {
                Some((fleet, slots)) => *fleet == asked.fleet && slots.contains(&held.slot),
                None => filter.workers.contains(&held.number),
            });
            let depth = hashes
                .iter()
                .take_while(|hash| held.held.contains(hash))
                .count();
            if held.is_live && is_meant && depth >= asked.min_depth.max(1) {
                rows.push((depth as u32, worker(held.number)));
            }
        }
        rows.sort_by_key(|&(depth, worker)| {
            let mut bytes = worker.worker_id.to_le_bytes().to_vec();
            bytes.extend(worker.dp_rank.to_le_bytes());
            bytes.extend(hashes[depth as usize - 1].to_le_bytes());
            (Reverse(depth), xxhash_rust::xxh3::xxh3_64(&bytes), worker)
        });
        if asked.limit > 0 {
            rows.truncate(asked.limit);
        }
        rows.sort_by_key(|&(depth, worker)| (Reverse(depth), worker));
        rows
    }

    fn ask(&mut self, places: &[usize], more: u8) -> Result<(), TestCaseError> {
        let asked = |&place: &usize| self.questions[place % self.questions.len()].clone();
        let batch: Vec<Asked> = places.iter().map(asked).collect();
        let first = &batch[0].clone();
        let filter = first.filter.filter(|&at| {
            let filter = self.filters.get(at);
            // Slots of another index mean nothing here.
            filter.is_some_and(|filter| {
                filter
                    .slots
                    .as_ref()
                    .is_none_or(|slots| slots.0 == first.fleet)
            })
        });
        let batch: Vec<Asked> = batch
            .iter()
            .map(|asked| Asked {
                prompt: asked.prompt,
                from: asked.from,
                length: asked.length,
                form: asked.form,
                filter,
                ..first.clone()
            })
            .collect();
        let options = FindOptions {
            limit: first.limit,
            exact: first.exact,
            min_depth: first.min_depth,
            filter: filter.map(|at| &self.filters[at].filter),
        };
        let words: Vec<Vec<u64>> = batch
            .iter()
            .map(|asked| {
                let mut words = self.hashes(asked).to_vec();
                if asked.form.0 && !words.is_empty() {
                    let chunks = &self.prompts[asked.prompt].chunks[asked.from..];
                    let count = words.len();
                    words[1..].copy_from_slice(&chunks[1..count]);
                }
                words
            })
            .collect();
        let bytes: Vec<Vec<u8>> = words
            .iter()
            .map(|words| {
                words
                    .iter()
                    .flat_map(|word| word.to_le_bytes())
                    .chain([1, 2, 3])
                    .collect()
            })
            .collect();
        let queries: Vec<Query<'_>> = batch
            .iter()
            .zip(&words)
            .zip(&bytes)
            .map(|((asked, words), bytes)| match asked.form {
                (false, false) => Query::SequenceHashes(words),
                (false, true) => Query::SequenceHashesLe(bytes),
                (true, false) => Query::ChunkHashes(words),
                (true, true) => Query::ChunkHashesLe(bytes),
            })
            .collect();
        let expected: Vec<Vec<Row>> = batch.iter().map(|asked| self.expected(asked)).collect();
        let fleet = &self.fleets[first.fleet];
        let (matches, pairs) = if batch.len() == 1 {
            let (matches, pairs) = (
                &mut self.matches[first.buffer..=first.buffer],
                &mut self.pairs[first.buffer..=first.buffer],
            );
            for _ in 0..=more {
                fleet.index.find(queries[0], &options, &mut matches[0]);
                fleet.index.find_pairs(queries[0], &options, &mut pairs[0]);
            }
            (matches, pairs)
        } else {
            let (matches, pairs) = (
                &mut self.matches[..batch.len()],
                &mut self.pairs[..batch.len()],
            );
            fleet.index.find_batch(&queries, &options, matches);
            fleet.index.find_pairs_batch(&queries, &options, pairs);
            (matches, pairs)
        };
        for ((matches, pairs), expected) in matches.iter().zip(&*pairs).zip(&expected) {
            let found = matches
                .depths
                .iter()
                .copied()
                .zip(matches.workers.iter().copied());
            prop_assert_eq!(&found.collect::<Vec<_>>(), expected);
            let named = pairs.slots.iter().map(|&number| {
                let owner = fleet
                    .workers
                    .iter()
                    .find(|held| held.slot.number() == number);
                worker(owner.unwrap().number)
            });
            let mut named: Vec<Row> = pairs.depths.iter().copied().zip(named).collect();
            prop_assert!(named.is_sorted_by_key(|&(depth, _)| Reverse(depth)));
            named.sort_by_key(|&(depth, worker)| (Reverse(depth), worker));
            prop_assert_eq!(&named, expected);
        }
        Ok(())
    }

    /// Does it, and checks what was answered, if anything was asked. Sets have holes if they may.
    pub fn act(&mut self, act: &Act, holes: bool) -> Result<(), TestCaseError> {
        match *act {
            Act::Hold(fleet, place, prompt, depth) => {
                let hashes = &self.prompts[prompt].hashes;
                let (wanted, rest) = hashes.split_at(depth);
                let mut gone = rest.to_vec();
                if holes {
                    gone.truncate(depth % 5);
                } else {
                    // Whoever loses a block loses what follows it in any prompt.
                    for other in &self.prompts {
                        let shared = other.hashes.iter().position(|hash| rest.contains(hash));
                        gone.extend(&other.hashes[shared.unwrap_or(BLOCKS)..]);
                    }
                }
                self.fleets[fleet].hold(place, wanted, &gone);
            }
            Act::Come(fleet, number) => self.fleets[fleet].come(number, true),
            Act::Stage(fleet, number) => self.fleets[fleet].come(number, false),
            Act::Leave(fleet, place) => {
                let fleet = &mut self.fleets[fleet];
                if let Some(place) = place.checked_rem(fleet.workers.len()) {
                    fleet.index.retire(fleet.workers.remove(place).slot);
                }
            }
            Act::Replace(fleet, place) => {
                let fleet = &mut self.fleets[fleet];
                if let Some(place) = place.checked_rem(fleet.workers.len()) {
                    let old = &mut fleet.workers[place];
                    let slot = fleet.index.allocate(worker(old.number)).unwrap();
                    let held: Vec<u64> = old.held.iter().copied().collect();
                    fleet.index.store(slot, Tier::Device, &held);
                    fleet.index.replace(old.slot, slot);
                    (old.slot, old.is_live) = (slot, true);
                }
            }
            Act::Succeed(fleet, place, number) => {
                let count = self.fleets[fleet].workers.len();
                let Some(place) = place.checked_rem(count) else {
                    return Ok(());
                };
                let held = self.fleets[fleet].workers[place].held.clone();
                self.act(&Act::Leave(fleet, place), holes)?;
                self.act(&Act::Sweep(fleet), holes)?;
                self.fleets[fleet].come(number, true);
                if let Some(next) = self.fleets[fleet].workers.last_mut() {
                    let held: Vec<u64> = held.into_iter().collect();
                    next.held.extend(&held);
                    let slot = next.slot;
                    self.fleets[fleet].index.store(slot, Tier::Device, &held);
                }
            }
            Act::Hide(fleet, place) => {
                if let Some(worker) = self.fleets[fleet].at(place) {
                    let slot = worker.slot;
                    worker.is_live = false;
                    self.fleets[fleet].index.suspend(slot);
                }
            }
            Act::Show(fleet, place) => {
                if let Some(worker) = self.fleets[fleet].at(place) {
                    let slot = worker.slot;
                    worker.is_live = true;
                    self.fleets[fleet].index.publish(slot);
                }
            }
            Act::Sweep(fleet) => {
                let index = &self.fleets[fleet].index;
                while index.sweep(1 << 16).more {}
            }
            Act::Filter(fleet, by_slot, some, others) => {
                let (mut workers, mut slots) = (BTreeSet::new(), Vec::new());
                for held in &self.fleets[fleet].workers {
                    let bits = if held.number % 2 == 0 { some } else { others };
                    if bits >> (held.number / 2 % 64) & 1 == 1 {
                        workers.insert(held.number);
                        slots.push(held.slot);
                    }
                }
                let filter = if by_slot {
                    SlotFilter::of_slots(slots.iter().copied())
                } else {
                    SlotFilter::of_workers(workers.iter().map(|&number| worker(number)))
                };
                let slots = by_slot.then_some((fleet, slots));
                self.filters.push(Filter {
                    filter,
                    workers,
                    slots,
                });
            }
            Act::Ask(at, more) => self.ask(&[at], more)?,
            Act::Batch(ref places) => self.ask(places, 0)?,
        }
        Ok(())
    }
}
