//! Every kind of look-up gives the same answer: one query or several together, by worker or by slot, with or without options.
//!
//! The contract and the differential tests check the plain answer, all workers at any depth. Here the others are checked
//! against it, over random fleets: the rows that a filter, a minimal depth and a limit leave.

use std::collections::BTreeSet;

use kvatlas_hashing::sequence_step;
use kvatlas_index::{
    FindOptions, Index, IndexConfig, Matches, Pairs, Query, SlotId, Tier, WorkerFilter, WorkerKey,
    WorkerSlot,
};
use proptest::prelude::*;

const PROMPTS: usize = 6;
const BLOCKS: usize = 150;

type Row = (u32, WorkerKey);

struct Fleet {
    index: Index,
    slots: Vec<(WorkerKey, SlotId)>,
    chunks: Vec<Vec<u64>>,
    hashes: Vec<Vec<u64>>,
}

/// Prompts that share prefixes of different lengths.
fn chunks(prompt: usize) -> Vec<u64> {
    (0..BLOCKS)
        .map(|block| (block * 10 + if block < 9 * prompt { 0 } else { prompt }) as u64)
        .collect()
}

fn chain(chunks: &[u64]) -> Vec<u64> {
    let mut last = None;
    let step = |&chunk: &u64| {
        let hash = last.map_or(chunk, |parent| sequence_step(parent, chunk));
        last = Some(hash);
        hash
    };
    chunks.iter().map(step).collect()
}

impl Fleet {
    /// Every worker holds leading blocks of one prompt; `held` has the prompt and how many.
    fn new(held: &[(u8, u8)]) -> Self {
        let chunks: Vec<_> = (0..PROMPTS).map(chunks).collect();
        let hashes: Vec<_> = chunks.iter().map(|chunks| chain(chunks)).collect();
        let index = Index::new(IndexConfig {
            shard_bits: 2,
            ..IndexConfig::default()
        });
        let allocate = |number: usize| {
            // Not in the order of slots, and two ranks a worker.
            let key = WorkerKey {
                worker_id: (number as u64 / 2).wrapping_mul(0x9e37_79b9_7f4a_7c15),
                dp_rank: number as u32 % 2,
            };
            let slot = index.allocate(key).unwrap();
            index.publish(slot);
            (key, slot)
        };
        let slots: Vec<_> = (0..held.len()).map(allocate).collect();
        for (&(_, slot), &(prompt, depth)) in slots.iter().zip(held) {
            let hashes = &hashes[usize::from(prompt) % PROMPTS];
            index.store(slot, Tier::Device, &hashes[..usize::from(depth) % BLOCKS]);
        }
        Self {
            index,
            slots,
            chunks,
            hashes,
        }
    }

    fn find(&self, query: Query<'_>, options: &FindOptions<'_>) -> Vec<Row> {
        let mut out = Matches::default();
        self.index.find(query, options, &mut out);
        rows(&out)
    }

    fn find_pairs(&self, query: Query<'_>, options: &FindOptions<'_>) -> BTreeSet<Row> {
        let mut out = Pairs::default();
        self.index.find_pairs(query, options, &mut out);
        self.named(&out)
    }

    /// Pairs with their workers. Depths must descend, and no worker may come twice.
    fn named(&self, pairs: &Pairs) -> BTreeSet<Row> {
        assert!(pairs.depths.windows(2).all(|two| two[0] >= two[1]));
        let owner = |slot: WorkerSlot| {
            let found = self.slots.iter().find(|(_, id)| id.slot() == slot);
            found.unwrap().0
        };
        let slots = pairs.slots.iter().map(|&slot| owner(slot));
        let named: BTreeSet<Row> = pairs.depths.iter().copied().zip(slots).collect();
        assert_eq!(named.len(), pairs.slots.len());
        named
    }

    /// The rows that options must leave of the plain answer.
    fn expected(
        &self,
        prompt: usize,
        length: usize,
        options: &FindOptions<'_>,
        named: Option<&[bool]>,
    ) -> Vec<Row> {
        let hashes = &self.hashes[prompt][..length];
        let plain = self.find(Query::SequenceHashes(hashes), &FindOptions::default());
        let mut left: Vec<Row> = plain
            .into_iter()
            .filter(|&(depth, worker)| {
                let place = self.slots.iter().position(|&(key, _)| key == worker);
                depth as usize >= options.min_depth
                    && named.is_none_or(|named| named[place.unwrap()])
            })
            .collect();
        if options.limit > 0 {
            left.sort_by_key(|&(depth, worker)| {
                let mut bytes = worker.worker_id.to_le_bytes().to_vec();
                bytes.extend(worker.dp_rank.to_le_bytes());
                bytes.extend(hashes[depth as usize - 1].to_le_bytes());
                let tie_break = xxhash_rust::xxh3::xxh3_64(&bytes);
                (std::cmp::Reverse(depth), tie_break, worker)
            });
            left.truncate(options.limit);
            left.sort_by_key(|&(depth, worker)| (std::cmp::Reverse(depth), worker));
        }
        left
    }
}

fn rows(out: &Matches) -> Vec<Row> {
    assert_eq!(out.workers.len(), out.depths.len());
    out.depths
        .iter()
        .copied()
        .zip(out.workers.iter().copied())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn a_filter_a_minimal_depth_and_a_limit_leave_the_right_rows(
        held in prop::collection::vec(any::<(u8, u8)>(), 0..150),
        named in prop::option::of(prop::collection::vec(any::<bool>(), 150)),
        by_slot: bool,
        asked in prop::collection::vec((0..PROMPTS, 0..=BLOCKS, 0usize..60, 0usize..40, any::<bool>()), 1..24),
    ) {
        let fleet = Fleet::new(&held);
        let make_filter = |named: &[bool]| {
            let included = fleet.slots.iter().zip(named).filter(|&(_, &named)| named).map(|(slot, _)| *slot);
            let included: Vec<_> = included.collect();
            if by_slot {
                WorkerFilter::of_slots(included.iter().map(|&(_, slot)| slot))
            } else {
                WorkerFilter::of_workers(included.iter().map(|&(worker, _)| worker))
            }
        };
        let filter = named.as_deref().map(make_filter);
        let mut out = Matches::default();
        for (prompt, length, limit, min_depth, exact) in asked {
            let options = FindOptions { limit, exact, min_depth, filter: filter.as_ref() };
            let expected = fleet.expected(prompt, length, &options, named.as_deref());
            let (chunks, hashes) = (&fleet.chunks[prompt][..length], &fleet.hashes[prompt][..length]);
            for query in [Query::ChunkHashes(chunks), Query::SequenceHashes(hashes)] {
                // Twice, with the same buffers: the second time with caches of the first.
                for _ in 0..2 {
                    fleet.index.find(query, &options, &mut out);
                    prop_assert_eq!(rows(&out), expected.clone());
                }
                let pairs = fleet.find_pairs(query, &options);
                prop_assert_eq!(pairs, expected.iter().copied().collect::<BTreeSet<_>>());
            }
        }
    }

    #[test]
    fn several_queries_together_are_answered_as_one_by_one(
        held in prop::collection::vec(any::<(u8, u8)>(), 0..150),
        asked in prop::collection::vec((0..PROMPTS, 0..=BLOCKS, any::<bool>()), 0..40),
        limit in 0usize..60,
        min_depth in 0usize..30,
        exact: bool,
    ) {
        let fleet = Fleet::new(&held);
        let options = FindOptions { limit, exact, min_depth, filter: None };
        let queries: Vec<_> = asked
            .iter()
            .map(|&(prompt, length, chunks)| {
                if chunks {
                    Query::ChunkHashes(&fleet.chunks[prompt][..length])
                } else {
                    Query::SequenceHashes(&fleet.hashes[prompt][..length])
                }
            })
            .collect();
        let mut matches: Vec<Matches> = queries.iter().map(|_| Matches::default()).collect();
        let mut pairs: Vec<Pairs> = queries.iter().map(|_| Pairs::default()).collect();
        for _ in 0..2 {
            fleet.index.find_batch(&queries, &options, &mut matches);
            fleet.index.find_pairs_batch(&queries, &options, &mut pairs);
            for ((&query, matches), pairs) in queries.iter().zip(&matches).zip(&pairs) {
                let expected = fleet.find(query, &options);
                prop_assert_eq!(rows(matches), expected.clone());
                prop_assert_eq!(fleet.named(pairs), expected.into_iter().collect::<BTreeSet<_>>());
            }
        }
    }
}
