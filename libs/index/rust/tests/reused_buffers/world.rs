//! Two indexes whose workers and sets change, the answers that they must give, and buffers that are kept throughout.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use kvatlas_hashing::sequence_step;
use kvatlas_index::{
    FindOptions, Index, IndexConfig, Matches, Pairs, Query, SlotId, Tier, WorkerFilter, WorkerKey,
};
use proptest::prelude::*;

pub const BLOCKS: usize = 150;
/// The block at which each prompt forks from the first one.
pub const FORKS: [usize; 8] = [0, 1, 2, 7, 8, 9, 40, 100];
pub const BUFFERS: usize = 2;
/// Different workers.
pub const WORKERS: usize = 160;

type Row = (u32, WorkerKey);

/// A prompt as chunk hashes and as sequence hashes.
struct Prompt {
    chunks: Vec<u64>,
    hashes: Vec<u64>,
}

fn prompt(number: usize) -> Prompt {
    let chunk = |block| (block * 10 + if block < FORKS[number] { 0 } else { number }) as u64;
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
    filter: WorkerFilter,
    workers: BTreeSet<usize>,
    /// The fleet and the slots, if the filter is by slots.
    slots: Option<(usize, Vec<SlotId>)>,
}

#[derive(Clone, Debug)]
pub struct Question {
    pub fleet: usize,
    pub prompt: usize,
    /// First block of the prompt that the query has.
    pub from: usize,
    pub length: usize,
    pub limit: usize,
    pub min_depth: usize,
    pub exact: bool,
    pub filter: Option<usize>,
    pub buffer: usize,
    /// Whether it is by chunk hashes, and by packed bytes.
    pub form: (bool, bool),
}

/// A step of a history; the first number is the fleet.
#[derive(Clone, Debug)]
pub enum Action {
    /// A worker gets leading blocks of a prompt, and loses the rest of it.
    Hold(usize, usize, usize, usize),
    /// A worker joins, and is published.
    Join(usize, usize),
    /// A worker joins, and is not published yet.
    Stage(usize, usize),
    Leave(usize, usize),
    Replace(usize, usize),
    /// A worker leaves, and another gets its slot and the same blocks.
    Succeed(usize, usize, usize),
    Suspend(usize, usize),
    Publish(usize, usize),
    Sweep(usize),
    Filter(usize, bool, u64, u64),
    /// Asks one of the questions, and repeats it so many times.
    Ask(usize, u8),
    /// Asks some of them together.
    Batch(Vec<usize>),
}

pub struct World {
    questions: Vec<Question>,
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

    fn join(&mut self, number: usize, is_live: bool) {
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

    fn hold(&mut self, place: usize, wanted: &[u64], lost: &[u64]) {
        let index = &self.index;
        let count = self.workers.len();
        let Some(place) = place.checked_rem(count) else {
            return;
        };
        let worker = &mut self.workers[place];
        index.store(worker.slot, Tier::Device, wanted);
        worker.held.extend(wanted);
        index.remove(worker.slot, Tier::Device, lost);
        worker.held.retain(|hash| !lost.contains(hash));
    }
}

impl World {
    pub fn new(questions: Vec<Question>) -> Self {
        Self {
            questions,
            prompts: (0..FORKS.len()).map(prompt).collect(),
            fleets: vec![Fleet::new(), Fleet::new()],
            filters: Vec::new(),
            matches: (0..BUFFERS).map(|_| Matches::default()).collect(),
            pairs: (0..BUFFERS).map(|_| Pairs::default()).collect(),
        }
    }

    fn hashes(&self, question: &Question) -> &[u64] {
        let hashes = &self.prompts[question.prompt].hashes[question.from.min(BLOCKS)..];
        &hashes[..question.length.min(hashes.len())]
    }

    /// The answer that follows from the held blocks alone.
    fn expected(&self, question: &Question) -> Vec<Row> {
        let hashes = self.hashes(question);
        let filter = question.filter.and_then(|at| self.filters.get(at));
        let mut rows: Vec<Row> = Vec::new();
        for held in &self.fleets[question.fleet].workers {
            let is_included = filter.is_none_or(|filter| match &filter.slots {
                Some((fleet, slots)) => *fleet == question.fleet && slots.contains(&held.slot),
                None => filter.workers.contains(&held.number),
            });
            let depth = hashes
                .iter()
                .take_while(|hash| held.held.contains(hash))
                .count();
            if held.is_live && is_included && depth >= question.min_depth.max(1) {
                rows.push((depth as u32, worker(held.number)));
            }
        }
        rows.sort_by_key(|&(depth, worker)| {
            let mut bytes = worker.worker_id.to_le_bytes().to_vec();
            bytes.extend(worker.dp_rank.to_le_bytes());
            bytes.extend(hashes[depth as usize - 1].to_le_bytes());
            (Reverse(depth), xxhash_rust::xxh3::xxh3_64(&bytes), worker)
        });
        if question.limit > 0 {
            rows.truncate(question.limit);
        }
        rows.sort_by_key(|&(depth, worker)| (Reverse(depth), worker));
        rows
    }

    fn ask(&mut self, places: &[usize], repeats: u8) -> Result<(), TestCaseError> {
        let question = |&place: &usize| self.questions[place % self.questions.len()].clone();
        let batch: Vec<Question> = places.iter().map(question).collect();
        let first = &batch[0].clone();
        let filter = first.filter.filter(|&at| {
            let filter = self.filters.get(at);
            // Slots of another index name other workers.
            filter.is_some_and(|filter| {
                filter
                    .slots
                    .as_ref()
                    .is_none_or(|slots| slots.0 == first.fleet)
            })
        });
        let batch: Vec<Question> = batch
            .iter()
            .map(|question| Question {
                prompt: question.prompt,
                from: question.from,
                length: question.length,
                form: question.form,
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
            .map(|question| {
                let mut words = self.hashes(question).to_vec();
                if question.form.0 && !words.is_empty() {
                    let chunks = &self.prompts[question.prompt].chunks[question.from..];
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
            .map(|((question, words), bytes)| match question.form {
                (false, false) => Query::SequenceHashes(words),
                (false, true) => Query::SequenceHashesLe(bytes),
                (true, false) => Query::ChunkHashes(words),
                (true, true) => Query::ChunkHashesLe(bytes),
            })
            .collect();
        let expected: Vec<Vec<Row>> = batch
            .iter()
            .map(|question| self.expected(question))
            .collect();
        let fleet = &self.fleets[first.fleet];
        let (matches, pairs) = if batch.len() == 1 {
            let (matches, pairs) = (
                &mut self.matches[first.buffer..=first.buffer],
                &mut self.pairs[first.buffer..=first.buffer],
            );
            for _ in 0..=repeats {
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
            let named = pairs.slots.iter().map(|&slot| {
                let owner = fleet.workers.iter().find(|held| held.slot.slot() == slot);
                worker(owner.unwrap().number)
            });
            let mut named: Vec<Row> = pairs.depths.iter().copied().zip(named).collect();
            prop_assert!(named.is_sorted_by_key(|&(depth, _)| Reverse(depth)));
            named.sort_by_key(|&(depth, worker)| (Reverse(depth), worker));
            prop_assert_eq!(&named, expected);
        }
        Ok(())
    }

    /// Plays an action, and checks the answer if it asks a question. With `holes`, sets may have holes.
    pub fn play(&mut self, action: &Action, holes: bool) -> Result<(), TestCaseError> {
        match *action {
            Action::Hold(fleet, place, prompt, depth) => {
                let hashes = &self.prompts[prompt].hashes;
                let (wanted, rest) = hashes.split_at(depth);
                let mut lost = rest.to_vec();
                if holes {
                    lost.truncate(depth % 5);
                } else {
                    // A worker that loses a block loses all blocks that follow it in any prompt.
                    for other in &self.prompts {
                        let shared = other.hashes.iter().position(|hash| rest.contains(hash));
                        lost.extend(&other.hashes[shared.unwrap_or(BLOCKS)..]);
                    }
                }
                self.fleets[fleet].hold(place, wanted, &lost);
            }
            Action::Join(fleet, number) => self.fleets[fleet].join(number, true),
            Action::Stage(fleet, number) => self.fleets[fleet].join(number, false),
            Action::Leave(fleet, place) => {
                let fleet = &mut self.fleets[fleet];
                if let Some(place) = place.checked_rem(fleet.workers.len()) {
                    fleet.index.retire(fleet.workers.remove(place).slot);
                }
            }
            Action::Replace(fleet, place) => {
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
            Action::Succeed(fleet, place, number) => {
                let count = self.fleets[fleet].workers.len();
                let Some(place) = place.checked_rem(count) else {
                    return Ok(());
                };
                let held = self.fleets[fleet].workers[place].held.clone();
                self.play(&Action::Leave(fleet, place), holes)?;
                self.play(&Action::Sweep(fleet), holes)?;
                self.fleets[fleet].join(number, true);
                if let Some(next) = self.fleets[fleet].workers.last_mut() {
                    let held: Vec<u64> = held.into_iter().collect();
                    next.held.extend(&held);
                    let slot = next.slot;
                    self.fleets[fleet].index.store(slot, Tier::Device, &held);
                }
            }
            Action::Suspend(fleet, place) => {
                if let Some(worker) = self.fleets[fleet].at(place) {
                    let slot = worker.slot;
                    worker.is_live = false;
                    self.fleets[fleet].index.suspend(slot);
                }
            }
            Action::Publish(fleet, place) => {
                if let Some(worker) = self.fleets[fleet].at(place) {
                    let slot = worker.slot;
                    worker.is_live = true;
                    self.fleets[fleet].index.publish(slot);
                }
            }
            Action::Sweep(fleet) => {
                let index = &self.fleets[fleet].index;
                while index.sweep(1 << 16).more {}
            }
            Action::Filter(fleet, by_slot, even, odd) => {
                let (mut workers, mut slots) = (BTreeSet::new(), Vec::new());
                for held in &self.fleets[fleet].workers {
                    let bits = if held.number % 2 == 0 { even } else { odd };
                    if bits >> (held.number / 2 % 64) & 1 == 1 {
                        workers.insert(held.number);
                        slots.push(held.slot);
                    }
                }
                let filter = if by_slot {
                    WorkerFilter::of_slots(slots.iter().copied())
                } else {
                    WorkerFilter::of_workers(workers.iter().map(|&number| worker(number)))
                };
                let slots = by_slot.then_some((fleet, slots));
                self.filters.push(Filter {
                    filter,
                    workers,
                    slots,
                });
            }
            Action::Ask(at, repeats) => self.ask(&[at], repeats)?,
            Action::Batch(ref places) => self.ask(places, 0)?,
        }
        Ok(())
    }
}
