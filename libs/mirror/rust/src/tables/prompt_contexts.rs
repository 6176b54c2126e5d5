//! Adapter and salt of prompts; each pair is kept once, for as long as a block has it.
//!
//! Both belong to a prompt, not to a block. Salts can be as many as tenants or requests, so a pair is
//! dropped with its last block.

use hashbrown::HashTable;
use kvatlas_hashing::seed;
use xxhash_rust::xxh3::xxh3_64;

/// The context of prompts with neither adapter nor salt.
pub const PLAIN: u32 = 0;

#[derive(Debug)]
struct Context {
    lora_name: Option<Box<str>>,
    cache_salt: Option<Box<str>>,
    seed: u64,
    users: u64,
}

/// The (adapter, salt) pairs in use. Every `intern` and every `share` needs a `release`.
#[derive(Debug)]
pub struct PromptContexts {
    by_number: Vec<Context>,
    by_names: HashTable<u32>,
    free: Vec<u32>,
}

impl PromptContexts {
    pub fn new() -> Self {
        let plain = Context {
            lora_name: None,
            cache_salt: None,
            seed: seed(None, None),
            users: 1,
        };
        Self {
            by_number: vec![plain],
            by_names: HashTable::new(),
            free: Vec::new(),
        }
    }

    /// Adds a user of a pair and returns the pair's number. An empty name is none.
    pub fn intern(&mut self, lora_name: Option<&str>, cache_salt: Option<&str>) -> u32 {
        let lora_name = lora_name.filter(|name| !name.is_empty());
        let cache_salt = cache_salt.filter(|salt| !salt.is_empty());
        if lora_name.is_none() && cache_salt.is_none() {
            return PLAIN;
        }
        let hash = hash_of(lora_name, cache_salt);
        let known = self.by_names.find(hash, |&number| {
            let context = &self.by_number[number as usize];
            context.lora_name.as_deref() == lora_name && context.cache_salt.as_deref() == cache_salt
        });
        if let Some(&number) = known {
            self.share(number);
            return number;
        }
        let context = Context {
            lora_name: lora_name.map(Box::from),
            cache_salt: cache_salt.map(Box::from),
            seed: seed(lora_name, cache_salt),
            users: 1,
        };
        let number = if let Some(number) = self.free.pop() {
            self.by_number[number as usize] = context;
            number
        } else {
            self.by_number.push(context);
            (self.by_number.len() - 1) as u32
        };
        let by_number = &self.by_number;
        self.by_names.insert_unique(hash, number, |&other| {
            let other = &by_number[other as usize];
            hash_of(other.lora_name.as_deref(), other.cache_salt.as_deref())
        });
        number
    }

    /// Adds a user of the same pair.
    pub fn share(&mut self, number: u32) {
        if number != PLAIN {
            self.by_number[number as usize].users += 1;
        }
    }

    /// Removes a user; the last one drops the pair.
    pub fn release(&mut self, number: u32) {
        if number == PLAIN {
            return;
        }
        let context = &mut self.by_number[number as usize];
        context.users -= 1;
        if context.users > 0 {
            return;
        }
        let hash = hash_of(context.lora_name.as_deref(), context.cache_salt.as_deref());
        context.lora_name = None;
        context.cache_salt = None;
        if let Ok(found) = self.by_names.find_entry(hash, |&other| other == number) {
            found.remove();
        }
        self.free.push(number);
    }

    /// The seed of chunk hashes in such prompts.
    pub fn seed(&self, number: u32) -> u64 {
        self.by_number[number as usize].seed
    }

    /// Adapter and salt.
    pub fn names(&self, number: u32) -> (Option<&str>, Option<&str>) {
        let context = &self.by_number[number as usize];
        (context.lora_name.as_deref(), context.cache_salt.as_deref())
    }

    /// Whether a block of this adapter and salt may be a child in this context.
    pub fn agrees(&self, number: u32, lora_name: Option<&str>, cache_salt: Option<&str>) -> bool {
        let context = &self.by_number[number as usize];
        let same = |named: Option<&str>, own: &Option<Box<str>>| match named {
            None | Some("") => true,
            Some(_) => named == own.as_deref(),
        };
        same(lora_name, &context.lora_name) && same(cache_salt, &context.cache_salt)
    }

    /// The number of pairs in use, without the plain one.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.by_names.len()
    }

    /// Bytes on the heap, without the names themselves.
    pub fn memory_bytes(&self) -> usize {
        self.by_number.capacity() * size_of::<Context>()
            + self.by_names.allocation_size()
            + self.free.capacity() * size_of::<u32>()
    }
}

fn hash_of(lora_name: Option<&str>, cache_salt: Option<&str>) -> u64 {
    let of = |text: Option<&str>| text.map_or(0, |text| xxh3_64(text.as_bytes()));
    of(lora_name).wrapping_mul(31) ^ of(cache_salt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_kept_once_and_goes_with_its_last_user() {
        let mut contexts = PromptContexts::new();
        let number = contexts.intern(Some("sql"), Some("tenant"));
        assert_eq!(contexts.intern(Some("sql"), Some("tenant")), number);
        assert_ne!(contexts.intern(Some("tenant"), Some("sql")), number);
        assert_eq!(contexts.len(), 2);
        contexts.release(number);
        assert_eq!(contexts.len(), 2);
        contexts.release(number);
        assert_eq!(contexts.len(), 1);
        assert_eq!(contexts.intern(None, Some("other")), number); // its place is used again
    }

    #[test]
    fn empty_names_are_none_and_none_agrees_with_all() {
        let mut contexts = PromptContexts::new();
        assert_eq!(contexts.intern(Some(""), None), PLAIN);
        let number = contexts.intern(Some("sql"), None);
        assert!(contexts.agrees(number, None, Some("")));
        assert!(contexts.agrees(number, Some("sql"), None));
        assert!(!contexts.agrees(number, Some("other"), None));
        assert!(!contexts.agrees(number, None, Some("salt")));
    }
}
