//! Whatever path a block size takes, each hash is plain XXH3-64 over the block's bytes.

use std::num::NonZeroUsize;

use kvatlas_hashing::{
    BASE_SEED, chunk_hash, chunk_hashes_into, chunk_hashes_with_items_into, sequence_hashes_into,
    sequence_step,
};
use proptest::{collection::vec, prelude::*};
use xxhash_rust::xxh3::xxh3_64_with_seed;

fn plain(tokens: &[u32], seed: u64, items: &[u64]) -> u64 {
    let mut items = items.to_vec();
    items.sort_unstable();
    let mut bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
    bytes.extend(items.iter().flat_map(|item| item.to_le_bytes()));
    xxh3_64_with_seed(&bytes, seed)
}

proptest! {
    #[test]
    fn chunk_hashes_are_plain_xxh3(
        tokens in vec(any::<u32>(), 0..1_500),
        size in 1usize..700,
        seed in any::<u64>(),
    ) {
        let mut ours = vec![0; tokens.len() / size];
        let block_size = NonZeroUsize::new(size).unwrap();
        chunk_hashes_into(&tokens, block_size, seed, &mut ours);
        let expected: Vec<u64> = tokens.chunks_exact(size).map(|b| plain(b, seed, &[])).collect();
        prop_assert_eq!(ours, expected);
    }

    #[test]
    fn items_enter_sorted_after_the_tokens(
        tokens in vec(any::<u32>(), 16..200),
        items in vec(any::<u64>(), 0..20),
        seed in any::<u64>(),
    ) {
        prop_assert_eq!(chunk_hash(&tokens, seed, &items), plain(&tokens, seed, &items));
        let block_size = NonZeroUsize::new(16).unwrap();
        let last = tokens.len() / 16 - 1;
        let mut ours = vec![0; last + 1];
        chunk_hashes_with_items_into(&tokens, block_size, seed, &[(last, items.clone())], &mut ours);
        for (block, hash) in ours.into_iter().enumerate() {
            let held = if block == last { &items[..] } else { &[] };
            prop_assert_eq!(hash, plain(&tokens[block * 16..block * 16 + 16], seed, held));
        }
    }

    #[test]
    fn the_chain_is_its_steps(chunks in vec(any::<u64>(), 0..100)) {
        let mut ours = vec![0; chunks.len()];
        sequence_hashes_into(&chunks, &mut ours);
        for (index, &hash) in ours.iter().enumerate() {
            let expected = match index {
                0 => chunks[0],
                _ => sequence_step(ours[index - 1], chunks[index]),
            };
            prop_assert_eq!(hash, expected);
        }
    }
}

#[test]
fn a_block_longer_than_the_prompt_has_no_hash() {
    for size in [17, usize::MAX] {
        chunk_hashes_into(
            &[1; 16],
            NonZeroUsize::new(size).unwrap(),
            BASE_SEED,
            &mut [],
        );
    }
}
