//! Seeds and item hashes: what tells apart prompts of equal tokens.
//!
//! An adapter or a tenant's salt changes the cache's contents for equal tokens, so both go into the
//! seed of every chunk hash, and blocks of different adapters or salts can never match.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Seed of the chain, and of chunk hashes before the adapter's and the salt's share is added.
pub const BASE_SEED: u64 = 1337;

const LORA_SEED: u64 = 0;
const SALT_SEED: u64 = 1;
const ITEM_SEED: u64 = 0;

/// The seed of a prompt's chunk hashes. An empty name or salt is none, as engines have it.
#[must_use]
pub fn seed(lora_name: Option<&str>, cache_salt: Option<&str>) -> u64 {
    let share = |text: Option<&str>, share_seed| match text {
        None | Some("") => 0,
        Some(text) => xxh3_64_with_seed(text.as_bytes(), share_seed),
    };
    BASE_SEED
        .wrapping_add(share(lora_name, LORA_SEED))
        .wrapping_add(share(cache_salt, SALT_SEED))
}

/// The hash of a multimodal item, from the identifier under which the engine knows it.
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
