//! A cache of where shared prefixes end: by the hash of the first block, the number of blocks.
//!
//! Many prompts share a prefix, such as a system prompt, and nothing after it. For most of them the match ends where it
//! ended for the prompt before. The search looks there first; if the set of holders is what it is at the first block, the
//! prefix needs no other look. A cached end may be outdated, or of another prefix with the same first block: it only says
//! where to look. Direct-mapped, 64 entries of 16 bytes, kept with the buffers of look-ups.

/// Prefixes that are cached.
const ENTRIES: usize = 64;

/// Ends of prefixes that many workers hold: the hash of the first block, and the number of blocks.
pub(crate) struct PrefixEndCache([(u64, u32); ENTRIES]);

impl Default for PrefixEndCache {
    fn default() -> Self {
        Self([(0, 0); ENTRIES])
    }
}

impl PrefixEndCache {
    /// Number of blocks of the shared prefix that begins with `first`.
    pub fn get(&self, first: u64) -> Option<usize> {
        let (hash, blocks) = self.0[first as usize % ENTRIES];
        (hash == first && blocks > 0).then_some(blocks as usize)
    }

    /// Stores the end of a prefix, in place of another one.
    pub fn insert(&mut self, first: u64, blocks: u32) {
        self.0[first as usize % ENTRIES] = (first, blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_cached_until_another_takes_its_place() {
        let mut ends = PrefixEndCache::default();
        assert_eq!((ends.get(0), ends.get(5)), (None, None));
        ends.insert(5, 32);
        assert_eq!(
            (ends.get(5), ends.get(5 + ENTRIES as u64)),
            (Some(32), None)
        );
        ends.insert(5 + ENTRIES as u64, 4);
        assert_eq!((ends.get(5), ends.get(5 + ENTRIES as u64)), (None, Some(4)));
    }
}
