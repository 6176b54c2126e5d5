//! The crate reproduces the golden vectors that the pure-Python reference wrote.

use std::num::NonZeroUsize;

use kvatlas_hashing::{
    CONTRACT, Items, chunk_hashes_into, chunk_hashes_with_items_into, item_hash, seed,
    sequence_hashes_into, sequence_step,
};
use serde_json::Value;

fn golden() -> Value {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../golden.json");
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<u64> {
    let array = value.as_array().unwrap();
    array
        .iter()
        .map(|number| number.as_u64().unwrap())
        .collect()
}

#[test]
fn the_contract_has_the_same_name() {
    assert_eq!(golden()["contract"], CONTRACT);
}

#[test]
fn seeds_items_and_steps_are_the_references() {
    let golden = golden();
    for case in golden["seeds"].as_array().unwrap() {
        let ours = seed(case["lora_name"].as_str(), case["cache_salt"].as_str());
        assert_eq!(case["seed"].as_u64(), Some(ours), "{case}");
    }
    for case in golden["items"].as_array().unwrap() {
        let ours = item_hash(case["identifier"].as_str().unwrap());
        assert_eq!(case["hash"].as_u64(), Some(ours), "{case}");
    }
    for case in golden["steps"].as_array().unwrap() {
        let number = |name: &str| case[name].as_u64().unwrap();
        let ours = sequence_step(number("parent"), number("chunk"));
        assert_eq!(number("hash"), ours, "{case}");
    }
}

#[test]
fn every_case_gives_the_references_hashes() {
    let golden = golden();
    let tokens: Vec<u32> = numbers(&golden["tokens"])
        .into_iter()
        .map(|token| u32::try_from(token).unwrap())
        .collect();
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() > 20, "the file holds its cases");
    for case in cases {
        let count = case["token_count"].as_u64().unwrap() as usize;
        let size = case["block_size"].as_u64().unwrap() as usize;
        let size = NonZeroUsize::new(size).unwrap();
        let seed = seed(case["lora_name"].as_str(), case["cache_salt"].as_str());
        let items: Vec<Items> = match case["item_hashes"].as_array() {
            None => Vec::new(),
            Some(blocks) => blocks
                .iter()
                .enumerate()
                .filter(|(_, hashes)| !hashes.is_null())
                .map(|(block, hashes)| (block, numbers(hashes)))
                .collect(),
        };
        let mut chunks = vec![0; count / size];
        if items.is_empty() {
            chunk_hashes_into(&tokens[..count], size, seed, &mut chunks);
        } else {
            chunk_hashes_with_items_into(&tokens[..count], size, seed, &items, &mut chunks);
        }
        assert_eq!(numbers(&case["chunk_hashes"]), chunks, "{count} by {size}");
        let mut sequences = vec![0; chunks.len()];
        sequence_hashes_into(&chunks, &mut sequences);
        assert_eq!(
            numbers(&case["sequence_hashes"]),
            sequences,
            "{count} by {size}"
        );
    }
}
