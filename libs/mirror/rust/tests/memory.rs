//! What a live block costs, by an allocator that counts and by what large pages are in use: the crate's own account is
//! held to it, and what lies idle while many mirrors grow to a share of it.
//!
//! `unsafe` stands here for the allocator alone. It is sound because every call goes to the system's
//! with the same arguments; the counter beside it touches no memory that is handed out.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use kvatlas_mirror::{Batch, EngineKey, Event, Mirror, Said, Stored, Tier};
use kvatlas_pages::Memory;

const BYTES_PER_BLOCK_MAX: usize = 96;
const BLOCK_SIZE: usize = 16;
const CHAIN: usize = 50;
/// Beside a sixteenth of what is in use. Who takes pages ahead may add two of 2 MiB.
const IDLE_BYTES_MAX: usize = 4 << 20;

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

/// Bytes that were given out for a mirror of so many blocks, by the general allocator and on large pages, and what the
/// mirror says.
fn cost(
    blocks: usize,
    key: fn(u64) -> EngineKey,
    suspect: bool,
    memory: &Memory,
) -> (usize, usize) {
    let _alone = ALONE.lock();
    let mut batch = Batch::default();
    let mut said = Said::default();
    chain(0, CHAIN, key, &mut batch); // the columns grow to their size before anything is counted
    batch.clear();
    let before = HELD.load(Ordering::Relaxed);
    let mut mirror = Mirror::new(blocks, memory.clone());
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
    let counted = HELD.load(Ordering::Relaxed) - before + memory.used_bytes();
    (counted, mirror.memory_bytes())
}

/// Both kinds: every account must be right on either.
fn memories() -> [Memory; 2] {
    [Memory::general(), Memory::on_large_pages().0]
}

#[test]
fn a_live_block_costs_at_most_96_bytes_links_included() {
    for (name, key) in [
        ("64 bits", short as fn(u64) -> EngineKey),
        ("32 bytes", long),
    ] {
        // 2^20 * 7/8 blocks fill both tables; one more doubles them, which is the worst case.
        for blocks in [1_000_000, 917_505] {
            for memory in memories() {
                let (counted, told) = cost(blocks, key, false, &memory);
                println!(
                    "{name}, {memory:?}: {blocks} blocks, {:.1} bytes each",
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
                assert_eq!((memory.used_bytes(), memory.idle_bytes()), (0, 0));
            }
        }
    }
}

#[test]
fn it_does_so_while_every_block_is_suspect() {
    let blocks = 917_505;
    for memory in memories() {
        let (counted, told) = cost(blocks, short, true, &memory);
        assert!(counted <= blocks * BYTES_PER_BLOCK_MAX, "{counted}");
        assert!(
            counted.abs_diff(told) < 64 << 10,
            "{counted} counted, {told} told"
        );
    }
}

#[test]
fn places_are_used_again_and_clearing_gives_them_back() {
    let _alone = ALONE.lock();
    let mut batch = Batch::default();
    let mut said = Said::default();
    let (memory, _) = Memory::on_large_pages();
    let mut mirror = Mirror::new(10_000, memory.clone());
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
    assert!(memory.used_bytes() > 5_000 * BYTES_PER_BLOCK_MAX / 2);
    batch.clear();
    batch.events.push(Event::Cleared(None));
    mirror.apply(&batch, &mut said);
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
    let (mut batch, mut said) = (Batch::default(), Said::default());
    chain(0, 1_000, short, &mut batch);
    mirror.apply(&batch, &mut said);
    assert_eq!(mirror.held_blocks(), 1_000);
    assert_eq!((memory.used_bytes(), memory.idle_bytes()), (0, 0));
}

#[test]
fn of_mirrors_that_grow_side_by_side_little_lies_idle() {
    let _alone = ALONE.lock();
    // As many blocks as each other, so that all tables grow at once; and each as many as its number says.
    for skewed in [false, true] {
        let (memory, _) = Memory::on_large_pages();
        let mut mirrors = [(); 16].map(|()| Mirror::new(200_000, memory.clone()));
        let mut held = [0; 16];
        let (mut batch, mut said) = (Batch::default(), Said::default());
        while held[0] < if skewed { 8_000 } else { 64_000 } {
            for (at, mirror) in mirrors.iter_mut().enumerate() {
                let blocks = if skewed { 5 * (at + 1) } else { CHAIN };
                chain(held[at], blocks, short, &mut batch);
                held[at] += blocks;
                mirror.apply(&batch, &mut said);
                said.clear();
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
