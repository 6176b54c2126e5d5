//! XXH3-64 of blocks longer than 240 bytes, many with one seed, with AVX2 where the processor has it.
//!
//! The plain function has two costs per block: it derives the same 192-byte secret from the seed each
//! time, and its vector width is fixed at compile time, which is SSE2 for a portable wheel. Here the
//! secret is derived once per prompt. On x86-64 an AVX2 loop is chosen at run time; elsewhere
//! `xxhash-rust` runs with the derived secret. The algorithm is published (xxHash's
//! doc/xxhash_spec.md, "XXH3 algorithm for large inputs"); the tests compare both versions with the
//! plain function.
//!
//! `unsafe`: calls the AVX2 version after asking the processor, and makes unaligned loads. They are
//! sound because each reads 32 bytes of a slice that was cut to 64 bytes before.

use xxhash_rust::const_xxh3::const_custom_default_secret;
use xxhash_rust::xxh3::xxh3_64_with_secret;

/// Longest input with another algorithm.
pub const SHORT_BYTES_MAX: usize = 240;

const SECRET_BYTES: usize = 192;
type Secret = [u8; SECRET_BYTES];

/// Writes the XXH3-64 of every whole block of `bytes`, with `seed`, into `out`.
///
/// `block_bytes` must be above [`SHORT_BYTES_MAX`].
pub fn hash_blocks(bytes: &[u8], block_bytes: usize, seed: u64, out: &mut [u64]) {
    debug_assert!(block_bytes > SHORT_BYTES_MAX);
    let secret = const_custom_default_secret(seed);
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, as just detected.
        return unsafe { avx2::hash_blocks(bytes, block_bytes, &secret, out) };
    }
    hash_blocks_portable(bytes, block_bytes, &secret, out);
}

fn hash_blocks_portable(bytes: &[u8], block_bytes: usize, secret: &Secret, out: &mut [u64]) {
    for (hash, block) in out.iter_mut().zip(bytes.chunks_exact(block_bytes)) {
        *hash = xxh3_64_with_secret(block, secret);
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi64, _mm256_loadu_si256, _mm256_mul_epu32, _mm256_set1_epi64x,
        _mm256_shuffle_epi32, _mm256_slli_epi64, _mm256_srli_epi64, _mm256_storeu_si256,
        _mm256_xor_si256,
    };

    use super::{SECRET_BYTES, Secret};

    const STRIPE_BYTES: usize = 64;
    const STRIPES_PER_ROUND: usize = (SECRET_BYTES - STRIPE_BYTES) / 8;
    const ROUND_BYTES: usize = STRIPES_PER_ROUND * STRIPE_BYTES;
    /// Offset of the last stripe's key in the secret; unaligned, so it differs from all other keys.
    const LAST_STRIPE_KEY: usize = SECRET_BYTES - STRIPE_BYTES - 7;
    const MERGE_KEY: usize = 11;

    const PRIME32_1: u64 = 0x9E37_79B1;
    const PRIME32_2: u64 = 0x85EB_CA77;
    const PRIME32_3: u64 = 0xC2B2_AE3D;
    const PRIME64_1: u64 = 0x9E37_79B1_85EB_CA87;
    const PRIME64_2: u64 = 0xC2B2_AE3D_27D4_EB4F;
    const PRIME64_3: u64 = 0x1656_67B1_9E37_79F9;
    const PRIME64_4: u64 = 0x85EB_CA77_C2B2_AE63;
    const PRIME64_5: u64 = 0x27D4_EB2F_1656_67C5;
    const AVALANCHE: u64 = 0x1656_6791_9E37_79F9;
    /// Swaps the two 64-bit halves of each 128-bit lane.
    const SWAP: i32 = 0b01_00_11_10;

    const INITIAL: [u64; 8] = [
        PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1,
    ];

    /// The eight 64-bit accumulators.
    type Lanes = [__m256i; 2];

    /// # Safety
    /// The processor must have AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn hash_blocks(bytes: &[u8], block_bytes: usize, secret: &Secret, out: &mut [u64]) {
        for (hash, block) in out.iter_mut().zip(bytes.chunks_exact(block_bytes)) {
            // SAFETY: this function's own condition.
            *hash = unsafe { hash_one(block, secret) };
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn hash_one(input: &[u8], secret: &Secret) -> u64 {
        // The last stripe ends at the input's end, so no round contains the last byte.
        let rounds = (input.len() - 1) / ROUND_BYTES;
        let (whole, rest) = input.split_at(rounds * ROUND_BYTES);
        let stripes = (rest.len() - 1) / STRIPE_BYTES;
        let initial = INITIAL.map(u64::to_ne_bytes);
        let initial = initial.as_flattened();
        // SAFETY: the caller's condition.
        unsafe {
            let mut lanes = load(initial);
            for round in whole.chunks_exact(ROUND_BYTES) {
                for (index, stripe) in round.chunks_exact(STRIPE_BYTES).enumerate() {
                    accumulate(&mut lanes, stripe, &secret[index * 8..]);
                }
                scramble(&mut lanes, &secret[SECRET_BYTES - STRIPE_BYTES..]);
            }
            for (index, stripe) in rest.chunks_exact(STRIPE_BYTES).take(stripes).enumerate() {
                accumulate(&mut lanes, stripe, &secret[index * 8..]);
            }
            let last = &input[input.len() - STRIPE_BYTES..];
            accumulate(&mut lanes, last, &secret[LAST_STRIPE_KEY..]);
            merge(&lanes, secret, input.len())
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn accumulate(lanes: &mut Lanes, stripe: &[u8], key: &[u8]) {
        // SAFETY: the caller's condition.
        unsafe {
            for (lane, (data, key)) in lanes
                .iter_mut()
                .zip(load(stripe).into_iter().zip(load(key)))
            {
                let mixed = _mm256_xor_si256(data, key);
                let product = _mm256_mul_epu32(mixed, _mm256_srli_epi64::<32>(mixed));
                let swapped = _mm256_shuffle_epi32::<SWAP>(data);
                *lane = _mm256_add_epi64(product, _mm256_add_epi64(*lane, swapped));
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn scramble(lanes: &mut Lanes, key: &[u8]) {
        // SAFETY: the caller's condition.
        unsafe {
            let prime = _mm256_set1_epi64x(PRIME32_1 as i64);
            for (lane, key) in lanes.iter_mut().zip(load(key)) {
                let shifted = _mm256_xor_si256(*lane, _mm256_srli_epi64::<47>(*lane));
                let mixed = _mm256_xor_si256(shifted, key);
                let low = _mm256_mul_epu32(mixed, prime);
                let high = _mm256_mul_epu32(_mm256_srli_epi64::<32>(mixed), prime);
                *lane = _mm256_add_epi64(low, _mm256_slli_epi64::<32>(high));
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn merge(lanes: &Lanes, secret: &Secret, input_bytes: usize) -> u64 {
        let mut keyed = [0u64; 8];
        // SAFETY: the caller's condition; the stores fill the array's two halves.
        unsafe {
            let key = load(&secret[MERGE_KEY..]);
            for half in 0..2 {
                let mixed = _mm256_xor_si256(lanes[half], key[half]);
                _mm256_storeu_si256(keyed[half * 4..].as_mut_ptr().cast(), mixed);
            }
        }
        let mut sum = (input_bytes as u64).wrapping_mul(PRIME64_1);
        for pair in keyed.chunks_exact(2) {
            let product = u128::from(pair[0]) * u128::from(pair[1]);
            sum = sum.wrapping_add(product as u64 ^ (product >> 64) as u64);
        }
        let mixed = (sum ^ (sum >> 37)).wrapping_mul(AVALANCHE);
        mixed ^ (mixed >> 32)
    }

    /// Loads the first 64 bytes.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load(bytes: &[u8]) -> Lanes {
        let (low, high) = bytes[..STRIPE_BYTES].split_at(STRIPE_BYTES / 2);
        // SAFETY: both halves hold 32 bytes; the loads need no alignment.
        unsafe {
            [
                _mm256_loadu_si256(low.as_ptr().cast()),
                _mm256_loadu_si256(high.as_ptr().cast()),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use xxhash_rust::xxh3::xxh3_64_with_seed;

    use super::*;

    fn input(len: usize) -> Vec<u8> {
        (0..len)
            .map(|i| (i * 131 + (i >> 8) * 7 + 1) as u8)
            .collect()
    }

    #[test]
    fn every_length_that_differs_in_rounds_and_stripes_equals_plain_xxh3() {
        for block_bytes in (244..=2_200).step_by(4).chain([4_096, 16_384, 65_536]) {
            let bytes = input(block_bytes * 3);
            for seed in [0, 1, 1337, u64::MAX] {
                let mut ours = [0; 3];
                hash_blocks(&bytes, block_bytes, seed, &mut ours);
                let mut portable = [0; 3];
                let secret = const_custom_default_secret(seed);
                hash_blocks_portable(&bytes, block_bytes, &secret, &mut portable);
                let plain: Vec<u64> = bytes
                    .chunks_exact(block_bytes)
                    .map(|block| xxh3_64_with_seed(block, seed))
                    .collect();
                assert_eq!(ours[..], plain, "{block_bytes} bytes, seed {seed}");
                assert_eq!(portable[..], plain, "{block_bytes} bytes, seed {seed}");
            }
        }
    }
}
