//! The memory of a live block, measured by a counting allocator and by the large pages in use. It checks
//! the crate's own figures, and bounds the idle memory while many mirrors grow.
//!
//! `unsafe` is for the allocator alone. It is sound because every call goes to the system's allocator
//! with the same arguments; the counter beside it touches no memory that is handed out.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use kvatlas_engines::{EngineHash, Event, EventBatch, Stored, Tier};
use kvatlas_mirror::{Mirror, PendingEvents};
use kvatlas_pages::Memory;

const BYTES_PER_BLOCK_MAX: usize = 96;
const BLOCK_SIZE: usize = 16;
const CHAIN: usize = 50;
/// Idle memory beside a sixteenth of the memory in use. Pages taken ahead may add two of 2 MiB.
const IDLE_BYTES_MAX: usize = 4 << 20;

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
/// Tests run on several threads; only one may be counted at a time.
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
fn chain(first: usize, blocks: usize, hash: fn(u64) -> EngineHash, batch: &mut EventBatch) {
    batch.clear();
    for block in first..first + blocks {
        batch.hashes.push(hash(block as u64));
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

fn short(number: u64) -> EngineHash {
    EngineHash::from_int(spread(number))
}

fn long(number: u64) -> EngineHash {
    let words = [1, 2, 3, 4].map(|salt| spread(number ^ salt << 60).to_be_bytes());
    EngineHash::from_bytes(words.as_flattened())
}

/// The bytes of a mirror of this many blocks: as counted, on both allocators, and as the mirror states.
fn cost(
    blocks: usize,
    hash: fn(u64) -> EngineHash,
    suspect: bool,
    memory: &Memory,
) -> (usize, usize) {
    let _alone = ALONE.lock();
    let mut batch = EventBatch::default();
    let mut pending = PendingEvents::default();
    chain(0, CHAIN, hash, &mut batch); // the columns grow to their size before anything is counted
    batch.clear();
    let before = HELD.load(Ordering::Relaxed);
    let mut mirror = Mirror::new(blocks, memory.clone());
    for first in (0..blocks).step_by(CHAIN) {
        chain(first, CHAIN.min(blocks - first), hash, &mut batch);
        mirror.apply(&batch, &mut pending);
        pending.clear();
    }
    if suspect {
        mirror.suspect_all();
    }
    drop(std::mem::take(&mut pending));
    assert_eq!(mirror.held_blocks(), blocks);
    let counted = HELD.load(Ordering::Relaxed) - before + memory.used_bytes();
    (counted, mirror.memory_bytes())
}

/// Both allocators: the figures must be right on either.
fn memories() -> [Memory; 2] {
    [Memory::general(), Memory::on_large_pages().0]
}

#[test]
fn a_live_block_costs_at_most_96_bytes_links_included() {
    for (name, hash) in [
        ("64 bits", short as fn(u64) -> EngineHash),
        ("32 bytes", long),
    ] {
        // 2^20 * 7/8 blocks fill both tables; one more doubles them, which is the worst case.
        for blocks in [1_000_000, 917_505] {
            for memory in memories() {
                let (counted, stated) = cost(blocks, hash, false, &memory);
                println!(
                    "{name}, {memory:?}: {blocks} blocks, {:.1} bytes each",
                    counted as f64 / blocks as f64
                );
                assert!(
                    counted <= blocks * BYTES_PER_BLOCK_MAX,
                    "{name}, {blocks} blocks"
                );
                assert!(
                    counted.abs_diff(stated) < 64 << 10,
                    "{counted} counted, {stated} stated"
                );
                assert_eq!((memory.used_bytes(), memory.idle_bytes()), (0, 0));
            }
        }
    }
}

#[test]
fn it_does_so_while_every_block_is_suspect() {
    let blocks = 917_505;
    for memory in memories() {
        let (counted, stated) = cost(blocks, short, true, &memory);
        assert!(counted <= blocks * BYTES_PER_BLOCK_MAX, "{counted}");
        assert!(
            counted.abs_diff(stated) < 64 << 10,
            "{counted} counted, {stated} stated"
        );
    }
}

#[test]
fn places_are_used_again_and_clearing_gives_them_back() {
    let _alone = ALONE.lock();
    let mut batch = EventBatch::default();
    let mut pending = PendingEvents::default();
    let (memory, _) = Memory::on_large_pages();
    let mut mirror = Mirror::new(10_000, memory.clone());
    for first in (0..200_000).step_by(CHAIN) {
        chain(first, CHAIN, short, &mut batch);
        mirror.apply(&batch, &mut pending);
        if first >= 5_000 {
            batch.clear();
            batch
                .hashes
                .extend((first - 5_000..first - 5_000 + CHAIN).map(|n| short(n as u64)));
            batch.events.push(Event::Removed(0..CHAIN, Tier::Device));
            mirror.apply(&batch, &mut pending);
        }
        pending.clear();
    }
    assert_eq!(mirror.held_blocks(), 5_000);
    assert!(mirror.memory_bytes() < 10_000 * BYTES_PER_BLOCK_MAX);
    assert!(memory.used_bytes() > 5_000 * BYTES_PER_BLOCK_MAX / 2);
    batch.clear();
    batch.events.push(Event::Cleared(None));
    mirror.apply(&batch, &mut pending);
    assert_eq!(mirror.held_blocks(), 0);
    assert!(
        mirror.memory_bytes() < 64 << 10,
        "{}",
        mirror.memory_bytes()
    );
    assert_eq!((memory.used_bytes(), memory.idle_bytes()), (0, 0));
}

#[test]
fn a_mirror_of_few_blocks_takes_no_large_page() {
    let _alone = ALONE.lock();
    let (memory, _) = Memory::on_large_pages();
    let mut mirror = Mirror::new(1_000, memory.clone());
    let (mut batch, mut pending) = (EventBatch::default(), PendingEvents::default());
    chain(0, 1_000, short, &mut batch);
    mirror.apply(&batch, &mut pending);
    assert_eq!(mirror.held_blocks(), 1_000);
    assert_eq!((memory.used_bytes(), memory.idle_bytes()), (0, 0));
}

#[test]
fn of_mirrors_that_grow_side_by_side_little_lies_idle() {
    let _alone = ALONE.lock();
    // First all mirrors have equally many blocks, so that their tables grow at once; then they differ.
    for skewed in [false, true] {
        let (memory, _) = Memory::on_large_pages();
        let mut mirrors = [(); 16].map(|()| Mirror::new(200_000, memory.clone()));
        let mut held = [0; 16];
        let (mut batch, mut pending) = (EventBatch::default(), PendingEvents::default());
        while held[0] < if skewed { 8_000 } else { 64_000 } {
            for (at, mirror) in mirrors.iter_mut().enumerate() {
                let blocks = if skewed { 5 * (at + 1) } else { CHAIN };
                chain(held[at], blocks, short, &mut batch);
                held[at] += blocks;
                mirror.apply(&batch, &mut pending);
                pending.clear();
                let (used, idle) = (memory.used_bytes(), memory.idle_bytes());
                assert!(
                    idle <= used / 16 + IDLE_BYTES_MAX,
                    "{idle} idle, {used} used"
                );
            }
        }
        assert!(memory.used_bytes() > 16 * 1_000 * 80);
        drop(mirrors);
        assert_eq!((memory.used_bytes(), memory.idle_bytes()), (0, 0));
    }
}
