//! Prints the cost of memory alone, which bounds the speed of the index.
//!
//! `cargo run --release -p kvatlas-index --example memory`. It reads and writes random lines of large pages, some tens of them
//! in flight: with next to no work between two lines, and with about as much as a store computes. It also reads lines each of
//! which names the next one, as a look-up does from round to round.
//!
//! `unsafe` here: hints to the system about large pages, and prefetches. Sound because both concern memory of our own. The
//! figures printed are the check; nothing that is shipped uses it.

use std::hint::black_box;
use std::time::Instant;

const LINES_AHEAD: usize = 32;
const WORDS_PER_LINE: usize = 8;

/// The output function of splitmix64.
fn mix(state: u64) -> u64 {
    let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn main() {
    println!("a random line read and written, {LINES_AHEAD} prefetched; ns a line");
    println!("  MiB   no work   with work   one by one   first touch, GB/s");
    for mib in [1, 128, 480] {
        let (mut words, touched) = large_pages(mib << 20);
        let mut fastest = |work| {
            let rounds = (0..3).map(|round| random_lines(&mut words, work, round));
            rounds.fold(f64::MAX, f64::min)
        };
        let (idle, busy) = (fastest(0), fastest(24));
        let alone = (0..3).map(|_| one_by_one(&words)).fold(f64::MAX, f64::min);
        println!("  {mib:3} {idle:9.1} {busy:11.1} {alone:12.1} {touched:19.2}");
    }
}

/// Memory of so many bytes, and the GB/s at which the system gave it on first touch.
fn large_pages(bytes: usize) -> (Vec<u64>, f64) {
    let mut words = vec![0u64; bytes / 8];
    #[cfg(target_os = "linux")]
    // SAFETY: a hint about memory that the vector owns; without large pages it is only slower.
    unsafe {
        let at = words.as_ptr().align_offset(4096);
        libc::madvise(
            words[at..].as_mut_ptr().cast(),
            bytes - 8 * at,
            libc::MADV_HUGEPAGE,
        );
    }
    let begun = Instant::now();
    words.fill(1);
    let gb_per_s = bytes as f64 / begun.elapsed().as_nanos() as f64;
    (words, gb_per_s)
}

fn random_lines(words: &mut [u64], work: u32, round: u64) -> f64 {
    const COUNT: u64 = 4_000_000;
    // A vector need not begin at a cache line.
    let first = words.as_ptr().align_offset(64);
    let words = &mut words[first..];
    let lines = (words.len() / WORDS_PER_LINE) as u128;
    let mut ahead = [0; LINES_AHEAD];
    let begun = Instant::now();
    for n in 0..COUNT {
        let place = n as usize % LINES_AHEAD;
        let line = &mut words[ahead[place]..ahead[place] + WORDS_PER_LINE];
        let same = (0..4).fold(0, |same, at| same | u64::from(line[2 * at] == n) << at);
        line[n as usize % 4 * 2] = n + same;
        let mut done = n;
        for _ in 0..work {
            done = black_box(done.wrapping_mul(3) ^ (done >> 7));
        }
        let drawn = u128::from(mix(n + round * COUNT) ^ (done & 1));
        let scaled = (drawn * lines) >> 64;
        ahead[place] = scaled as usize * WORDS_PER_LINE;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing that the program can see and cannot fault.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>((&raw const words[ahead[place]]).cast());
        }
    }
    begun.elapsed().as_nanos() as f64 / COUNT as f64
}

/// Nanoseconds a line where the content of a line is part of the address of the next one.
fn one_by_one(words: &[u64]) -> f64 {
    const COUNT: u64 = 1_000_000;
    let lines = (words.len() / WORDS_PER_LINE) as u128;
    let begun = Instant::now();
    let mut content = 0;
    for n in 0..COUNT {
        let scaled = (u128::from(mix(n ^ content << 40)) * lines) >> 64;
        content = words[scaled as usize * WORDS_PER_LINE];
    }
    black_box(content);
    begun.elapsed().as_nanos() as f64 / COUNT as f64
}
