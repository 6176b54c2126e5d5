//! Prints how fast the contract is beside plain XXH3: `cargo run --release --example speed`.
//!
//! Plain is measured twice: the same function over each block, which is what the contract asks for,
//! and one pass over the whole buffer, which no per-block hash can be expected to reach for blocks
//! of a few dozen bytes. Each figure is the best of many short runs, over 32,768 tokens that stay in
//! the second-level cache.

use std::{hint::black_box, num::NonZeroUsize, time::Instant};

use kvatlas_hashing::{BASE_SEED, chunk_hashes_into, sequence_hashes_into};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const TOKENS: u32 = 32_768;
const RUNS: u32 = 50;
const CALLS_PER_RUN: u32 = 20;

fn main() {
    let tokens: Vec<u32> = (0..TOKENS)
        .map(|i| i.wrapping_mul(2_654_435_761) % 150_000)
        .collect();
    let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
    let gb_per_s = |seconds: f64| bytes.len() as f64 / seconds / 1e9;

    let pass_s = best_s(|| {
        black_box(xxh3_64_with_seed(black_box(&bytes), BASE_SEED));
    });
    println!(
        "plain XXH3, one pass over {} bytes: {:.1} GB/s",
        bytes.len(),
        gb_per_s(pass_s)
    );
    for block_size in [8, 16, 32, 48, 64, 128, 256, 512] {
        let blocks = tokens.len() / block_size;
        let size = NonZeroUsize::new(block_size).unwrap_or(NonZeroUsize::MIN);
        let mut out = vec![0; blocks];
        let ours_s = best_s(|| {
            chunk_hashes_into(
                black_box(&tokens),
                size,
                black_box(BASE_SEED),
                black_box(&mut out),
            );
        });
        let plain_s = best_s(|| {
            let seed = black_box(BASE_SEED);
            for (slot, block) in out
                .iter_mut()
                .zip(bytes.chunks_exact(black_box(block_size * 4)))
            {
                *slot = xxh3_64_with_seed(block, seed);
            }
            black_box(&mut out);
        });
        println!(
            "blocks of {block_size:3} tokens: {:6.2} ns a block, {:5.1} GB/s; plain per block \
             {:6.2} ns; {:.2} of its speed, {:.2} of one pass",
            ours_s * 1e9 / blocks as f64,
            gb_per_s(ours_s),
            plain_s * 1e9 / blocks as f64,
            plain_s / ours_s,
            pass_s / ours_s,
        );
    }

    let chunks: Vec<u64> = (0..8_192u64)
        .map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .collect();
    let mut out = vec![0; chunks.len()];
    let chain_s = best_s(|| sequence_hashes_into(black_box(&chunks), black_box(&mut out)));
    println!(
        "chain: {:.2} ns a step",
        chain_s * 1e9 / chunks.len() as f64
    );
}

/// Seconds of one call, in the best of the runs.
fn best_s(mut call: impl FnMut()) -> f64 {
    (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            (0..CALLS_PER_RUN).for_each(|_| call());
            start.elapsed().as_secs_f64() / f64::from(CALLS_PER_RUN)
        })
        .fold(f64::MAX, f64::min)
}
