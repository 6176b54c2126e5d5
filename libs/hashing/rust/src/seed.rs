//! Seeds and item hashes, which distinguish prompts with equal tokens.
//!
//! An adapter or a tenant's salt changes the cache's contents for equal tokens. Both are part of the
//! seed of every chunk hash, so blocks of different adapters or salts never match.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Seed of the chain, and of chunk hashes without adapter and salt.
pub const BASE_SEED: u64 = 1337;

const LORA_SEED: u64 = 0;
const SALT_SEED: u64 = 1;
const ITEM_SEED: u64 = 0;

/// Returns the seed of a prompt's chunk hashes. An empty name or salt means none, as in engines.
#[must_use]
pub fn seed(lora_name: Option<&str>, cache_salt: Option<&str>) -> u64 {
    let part = |text: Option<&str>, part_seed| match text {
        None | Some("") => 0,
        Some(text) => xxh3_64_with_seed(text.as_bytes(), part_seed),
    };
    BASE_SEED
        .wrapping_add(part(lora_name, LORA_SEED))
        .wrapping_add(part(cache_salt, SALT_SEED))
}

/// Returns the hash of a multimodal item from the engine's identifier of it.
#[must_use]
pub fn item_hash(identifier: &str) -> u64 {
    xxh3_64_with_seed(identifier.as_bytes(), ITEM_SEED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_names_are_none() {
        assert_eq!(seed(None, None), BASE_SEED);
        assert_eq!(seed(Some(""), Some("")), BASE_SEED);
        assert_eq!(seed(Some("a"), Some("")), seed(Some("a"), None));
    }

    #[test]
    fn an_adapter_and_a_salt_of_the_same_text_differ() {
        assert_ne!(seed(Some("x"), None), seed(None, Some("x")));
    }
}
