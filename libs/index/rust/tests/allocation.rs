//! Look-ups allocate nothing once their buffers have grown: a counting allocator checks it.
//!
//! In a file of its own, because the allocator is the whole process's. It counts for each thread by itself.
//!
//! `unsafe` here: the allocator. Sound because it counts and passes every call on to the system's allocator, whose promises
//! it so keeps; every test of this file runs on it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use kvatlas_index::{
    FindOptions, Index, IndexConfig, Matches, Pairs, Query, Tier, WorkerFilter, WorkerKey,
};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
}

// SAFETY: every call is the system allocator's own; counting touches nothing that it hands out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(place, layout, size) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const WORKERS: u64 = 300;
const BLOCKS: u64 = 200;

/// Prompts that share a prefix which all workers hold; a few workers hold more of each.
fn prompt(number: u64) -> Vec<u64> {
    let own = |block: u64| (number << 32 | block).wrapping_mul(0x2545_f491_4f6c_dd1d);
    (0..BLOCKS)
        .map(|block| if block < 12 { block } else { own(block) })
        .collect()
}

#[test]
fn look_ups_allocate_nothing_once_the_buffers_have_grown() {
    let index = Index::new(IndexConfig::default());
    let prompts: Vec<_> = (0..40).map(prompt).collect();
    let key = |worker_id| WorkerKey {
        worker_id,
        dp_rank: 0,
    };
    for worker in 0..WORKERS {
        let slot = index.allocate(key(worker)).unwrap();
        index.publish(slot);
        for number in [worker, worker * 3, worker * 7] {
            let prompt = &prompts[number as usize % prompts.len()];
            index.store(
                slot,
                Tier::Device,
                &prompt[..=number as usize % prompt.len()],
            );
        }
    }
    let queries: Vec<_> = prompts
        .iter()
        .enumerate()
        .map(|(place, hashes)| match place % 2 {
            0 => Query::SequenceHashes(hashes),
            _ => Query::ChunkHashes(hashes),
        })
        .collect();
    let filter = WorkerFilter::of_workers((0..WORKERS).step_by(2).map(key));
    let limits = [0, 1, 7, 32, 200];
    let variants = limits.map(|limit| FindOptions {
        limit,
        exact: limit == 7,
        min_depth: limit % 5,
        filter: (limit != 32).then_some(&filter),
    });
    let (mut matches, mut pairs) = (Matches::default(), Pairs::default());
    let mut batch: Vec<Matches> = queries.iter().map(|_| Matches::default()).collect();
    let mut pairs_batch: Vec<Pairs> = queries.iter().map(|_| Pairs::default()).collect();
    let mut found = 0;
    let mut round = || {
        for options in &variants {
            for &query in &queries {
                index.find(query, options, &mut matches);
                index.find_pairs(query, options, &mut pairs);
                found += matches.workers.len() + pairs.slots.len();
            }
            index.find_batch(&queries, options, &mut batch);
            index.find_pairs_batch(&queries, options, &mut pairs_batch);
        }
    };
    // A tie break is cached when its hash comes for the second time.
    (0..3).for_each(|_| round());
    let before = ALLOCATIONS.get();
    (0..5).for_each(|_| round());
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert!(found > 10_000, "found only {found}");
}
