//! `memory_bytes` against an allocator that counts, and the system's own account of the large pages: what the index says
//! it uses is what it took.
//!
//! A file of its own, because both are the whole process's and other tests would be counted as well.
//!
//! `unsafe` here: the allocator. Sound because it counts and passes every call on to the system's, whose promises
//! it so keeps; every test of this file runs on it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use kvatlas_index::{Index, IndexConfig, SlotId, Tier, WorkerKey};

struct Counting;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is the system allocator's own; counting touches nothing that it hands out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Blocks that one worker holds, and blocks that all do.
fn hashes(of: u64, count: u64) -> Vec<u64> {
    (0..count)
        .map(|n| (of << 32 | n).wrapping_mul(0x2545_f491_4f6c_dd1d))
        .collect()
}

/// Memory in mappings that are to be made of large pages. Nothing else in this process asks for such.
fn large_page_bytes() -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let (mut total, mut resident) = (0, 0);
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Rss:") => resident = words.next().map_or(0, |kib| kib.parse().unwrap()),
            Some("VmFlags:") if words.any(|flag| flag == "hg") => total += resident * 1024,
            _ => {}
        }
    }
    total
}

fn taken() -> usize {
    LIVE_BYTES.load(Relaxed) + large_page_bytes()
}

fn compare(index: &Index, before: usize, when: &str) {
    // A page that a thread is just taking ahead may be in the one and not yet in the other.
    let patience = Instant::now() + Duration::from_secs(10);
    loop {
        let counted = taken() - before;
        let said = index.memory_bytes().total();
        let off = counted.abs_diff(said);
        if off * 20 <= counted {
            return;
        }
        let is_late = Instant::now() > patience;
        assert!(!is_late, "{when}: {said} said, {counted} counted");
        thread::yield_now();
    }
}

#[test]
fn memory_is_told_to_within_five_percent_full_after_churn_and_emptied() {
    tell(false);
    tell(true);
}

/// `ahead`: a thread takes pages ahead.
fn tell(ahead: bool) {
    const WORKERS: u64 = 100;
    let shared = hashes(1 << 20, 2_000);
    let own: Vec<_> = (0..WORKERS).map(|worker| hashes(worker, 3_000)).collect();
    let others: Vec<_> = (0..WORKERS)
        .map(|worker| hashes(1 << 19 | worker, 1_500))
        .collect();
    let before = taken();
    let index = Index::new(IndexConfig {
        shard_bits: 6,
        ..IndexConfig::default()
    });
    let preparer = index.preparer();
    let preparing = ahead.then(|| thread::spawn(|| preparer.run()));
    let slots: Vec<SlotId> = (0..WORKERS)
        .map(|worker_id| {
            let key = WorkerKey {
                worker_id,
                dp_rank: 0,
            };
            let slot = index.allocate(key).unwrap();
            index.publish(slot);
            slot
        })
        .collect();
    for (&slot, own) in slots.iter().zip(&own) {
        index.store(slot, Tier::Device, own);
        index.store(slot, Tier::Device, &shared);
        index.store(slot, Tier::Host, &own[..200]);
    }
    compare(&index, before, "full");
    for ((&slot, own), others) in slots.iter().zip(&own).zip(&others) {
        index.remove(slot, Tier::Device, &own[..1_500]);
        index.store(slot, Tier::Device, others);
    }
    compare(&index, before, "after churn");
    for &slot in &slots[1..] {
        index.retire(slot);
    }
    while index.sweep(1 << 16).more {}
    compare(&index, before, "with one worker left");
    drop(index);
    if let Some(preparing) = preparing {
        preparing.join().unwrap();
    }
}
