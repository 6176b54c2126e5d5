//! Compares the speed of the hash contract with plain XXH3, in one process and one binary.
//!
//! Plain XXH3 is measured twice: over each block, which is the same work as the contract's, and in one
//! pass over the whole buffer, which gives one value instead of one per block. Each round measures all
//! of them in turn, so that a noisy machine disturbs them equally. Figures are medians.

use std::{hint::black_box, num::NonZeroUsize, time::Instant};

use kvatlas_hashing::{BASE_SEED, chunk_hashes_into, sequence_hashes_into};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::latency::median;

const TOKENS: u32 = 32_768;
const CALLS_PER_ROUND: u32 = 10;
const BLOCK_SIZES: [usize; 6] = [16, 32, 64, 128, 256, 512];

/// Seconds of one call in each round, by what was called.
#[derive(Default)]
struct Timed {
    one_pass: Vec<f64>,
    chain: Vec<f64>,
    blocks: [(Vec<f64>, Vec<f64>); BLOCK_SIZES.len()],
}

/// The medians of so many rounds.
pub fn measure(rounds: u32) -> Value {
    let tokens: Vec<u32> = (0..TOKENS)
        .map(|i| i.wrapping_mul(2_654_435_761) % 150_000)
        .collect();
    let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
    let chunks: Vec<u64> = (0..8_192u64)
        .map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .collect();
    let mut out = vec![0; chunks.len()];
    let mut timed = Timed::default();
    for _ in 0..rounds {
        timed.one_pass.push(seconds(|| {
            black_box(xxh3_64_with_seed(black_box(&bytes), BASE_SEED));
        }));
        timed.chain.push(seconds(|| {
            sequence_hashes_into(black_box(&chunks), black_box(&mut out));
        }));
        for (size, (ours, plain)) in BLOCK_SIZES.into_iter().zip(&mut timed.blocks) {
            let hashes = &mut out[..tokens.len() / size];
            ours.push(seconds(|| hash_blocks(&tokens, size, hashes)));
            plain.push(seconds(|| hash_blocks_plainly(&bytes, size, hashes)));
        }
    }
    report(timed, bytes.len(), chunks.len())
}

fn hash_blocks(tokens: &[u32], size: usize, hashes: &mut [u64]) {
    let size = NonZeroUsize::new(size).unwrap_or(NonZeroUsize::MIN);
    chunk_hashes_into(
        black_box(tokens),
        size,
        black_box(BASE_SEED),
        black_box(hashes),
    );
}

fn hash_blocks_plainly(bytes: &[u8], size: usize, hashes: &mut [u64]) {
    let seed = black_box(BASE_SEED);
    let blocks = black_box(bytes).chunks_exact(black_box(size * 4));
    for (hash, block) in hashes.iter_mut().zip(blocks) {
        *hash = xxh3_64_with_seed(block, seed);
    }
    black_box(hashes);
}

fn report(timed: Timed, bytes: usize, steps: usize) -> Value {
    let blocks = BLOCK_SIZES.into_iter().zip(timed.blocks);
    let blocks = blocks.map(|(size, (ours, plain))| {
        json!({"block_size": size, "ours_s": median(ours), "plain_s": median(plain)})
    });
    json!({
        "bytes": bytes,
        "one_pass_s": median(timed.one_pass),
        "chain_step_ns": median(timed.chain) * 1e9 / steps as f64,
        "blocks": Value::from_iter(blocks),
    })
}

/// Seconds of one call, averaged over a short run.
fn seconds(mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..CALLS_PER_ROUND).for_each(|_| call());
    start.elapsed().as_secs_f64() / f64::from(CALLS_PER_ROUND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_and_ours_hash_the_same_blocks_to_the_same_values() {
        let tokens: Vec<u32> = (0..512).collect();
        let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        for size in BLOCK_SIZES {
            let (mut ours, mut plain) = (vec![0; 512 / size], vec![0; 512 / size]);
            hash_blocks(&tokens, size, &mut ours);
            hash_blocks_plainly(&bytes, size, &mut plain);
            assert_eq!(ours, plain, "{size}");
            assert!(ours.iter().all(|&hash| hash != 0));
        }
    }

    #[test]
    fn a_report_covers_all_block_sizes() {
        let report = measure(1);
        assert_eq!(
            report["blocks"].as_array().map(Vec::len),
            Some(BLOCK_SIZES.len())
        );
    }
}
