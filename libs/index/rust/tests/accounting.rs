//! `memory_bytes` against a counting allocator and the system's own account of large pages, within 5 %.
//!
//! In a file of its own, because both are the whole process's, and other tests would be counted as well.
//!
//! `unsafe` here: the allocator. Sound because it counts and passes every call on to the system's allocator, whose promises
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

/// Hashes of blocks, different for each `of`.
fn hashes(of: u64, count: u64) -> Vec<u64> {
    (0..count)
        .map(|n| (of << 32 | n).wrapping_mul(0x2545_f491_4f6c_dd1d))
        .collect()
}

/// Resident bytes of mappings with large pages. Nothing else in this process asks for such.
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

fn process_bytes() -> usize {
    LIVE_BYTES.load(Relaxed) + large_page_bytes()
}

fn compare(index: &Index, before: usize, when: &str) {
    // A page that is just being prefaulted may be in one account and not yet in the other.
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let counted = process_bytes() - before;
        let reported = index.memory_bytes().total();
        let error = counted.abs_diff(reported);
        if error * 20 <= counted {
            return;
        }
        let is_late = Instant::now() > deadline;
        assert!(!is_late, "{when}: {reported} reported, {counted} counted");
        thread::yield_now();
    }
}

#[test]
#[cfg_attr(feature = "without-large-pages", ignore = "large pages are counted")]
fn memory_is_reported_within_five_percent_when_full_after_churn_and_when_emptied() {
    check_report(false);
    check_report(true);
}

/// `prefaults`: with a thread that prefaults pages.
fn check_report(prefaults: bool) {
    const WORKERS: u64 = 100;
    let shared = hashes(1 << 20, 2_000);
    let own: Vec<_> = (0..WORKERS).map(|worker| hashes(worker, 3_000)).collect();
    let others: Vec<_> = (0..WORKERS)
        .map(|worker| hashes(1 << 19 | worker, 1_500))
        .collect();
    let before = process_bytes();
    let index = Index::new(IndexConfig {
        shard_bits: 6,
        ..IndexConfig::default()
    });
    let prefaulter = index.prefaulter();
    let prefaulting = prefaults.then(|| thread::spawn(|| prefaulter.run()));
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
    if let Some(prefaulting) = prefaulting {
        prefaulting.join().unwrap();
    }
}
