//! What a live block costs, by an allocator that counts: the crate's own account is held to it.
//!
//! `unsafe` stands here for the allocator alone. It is sound because every call goes to the system's
//! with the same arguments; the counter beside it touches no memory that is handed out.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use kvatlas_mirror::{Batch, EngineKey, Event, Mirror, Said, Stored, Tier};

const BYTES_PER_BLOCK_MAX: usize = 96;
const BLOCK_SIZE: usize = 16;
const CHAIN: usize = 50;

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
/// Tests of one program run on several threads; only one may be counted at a time.
static ALONE: Mutex<()> = Mutex::new(());

// SAFETY: as the module says.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's condition.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's condition.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A chain of new blocks, numbered from `first`, that begins a prompt.
fn chain(first: usize, blocks: usize, key: fn(u64) -> EngineKey, batch: &mut Batch) {
    batch.clear();
    for block in first..first + blocks {
        batch.hashes.push(key(block as u64));
        batch.tokens.extend([block as u32; BLOCK_SIZE]);
    }
    batch.events.push(Event::Stored(Stored {
        hashes: 0..batch.hashes.len(),
        parent: None,
        tokens: 0..batch.tokens.len(),
        tier: Tier::Device,
        lora_name: None,
        cache_salt: None,
        items: Vec::new(),
    }));
}

fn spread(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn short(number: u64) -> EngineKey {
    EngineKey::from_int(spread(number))
}

fn long(number: u64) -> EngineKey {
    let words = [1, 2, 3, 4].map(|salt| spread(number ^ salt << 60).to_be_bytes());
    EngineKey::from_bytes(words.as_flattened())
}

/// Bytes that the allocator gave out for a mirror of so many blocks, and what the mirror says.
fn cost(blocks: usize, key: fn(u64) -> EngineKey, suspect: bool) -> (usize, usize) {
    let _alone = ALONE.lock();
    let mut batch = Batch::default();
    let mut said = Said::default();
    chain(0, CHAIN, key, &mut batch); // the columns grow to their size before anything is counted
    batch.clear();
    let before = HELD.load(Ordering::Relaxed);
    let mut mirror = Mirror::new(blocks);
    for first in (0..blocks).step_by(CHAIN) {
        chain(first, CHAIN.min(blocks - first), key, &mut batch);
        mirror.apply(&batch, &mut said);
        said.clear();
    }
    if suspect {
        mirror.suspect_all();
    }
    drop(std::mem::take(&mut said));
    assert_eq!(mirror.held_blocks(), blocks);
    (HELD.load(Ordering::Relaxed) - before, mirror.memory_bytes())
}

#[test]
fn a_live_block_costs_at_most_96_bytes_links_included() {
    for (name, key) in [
        ("64 bits", short as fn(u64) -> EngineKey),
        ("32 bytes", long),
    ] {
        // 2^20 * 7/8 blocks fill both tables; one more doubles them, which is the worst case.
        for blocks in [1_000_000, 917_505] {
            let (counted, told) = cost(blocks, key, false);
            println!(
                "{name}: {blocks} blocks, {:.1} bytes each",
                counted as f64 / blocks as f64
            );
            assert!(
                counted <= blocks * BYTES_PER_BLOCK_MAX,
                "{name}, {blocks} blocks"
            );
            assert!(
                counted.abs_diff(told) < 64 << 10,
                "{counted} counted, {told} told"
            );
        }
    }
}

#[test]
fn it_does_so_while_every_block_is_suspect() {
    let blocks = 917_505;
    let (counted, told) = cost(blocks, short, true);
    assert!(counted <= blocks * BYTES_PER_BLOCK_MAX, "{counted}");
    assert!(
        counted.abs_diff(told) < 64 << 10,
        "{counted} counted, {told} told"
    );
}

#[test]
fn places_are_used_again_and_clearing_gives_them_back() {
    let _alone = ALONE.lock();
    let mut batch = Batch::default();
    let mut said = Said::default();
    let mut mirror = Mirror::new(10_000);
    for first in (0..200_000).step_by(CHAIN) {
        chain(first, CHAIN, short, &mut batch);
        mirror.apply(&batch, &mut said);
        if first >= 5_000 {
            batch.clear();
            batch
                .hashes
                .extend((first - 5_000..first - 5_000 + CHAIN).map(|n| short(n as u64)));
            batch.events.push(Event::Removed(0..CHAIN, Tier::Device));
            mirror.apply(&batch, &mut said);
        }
        said.clear();
    }
    assert_eq!(mirror.held_blocks(), 5_000);
    assert!(mirror.memory_bytes() < 10_000 * BYTES_PER_BLOCK_MAX);
    batch.clear();
    batch.events.push(Event::Cleared(None));
    mirror.apply(&batch, &mut said);
    assert_eq!(mirror.held_blocks(), 0);
    assert!(
        mirror.memory_bytes() < 64 << 10,
        "{}",
        mirror.memory_bytes()
    );
}
