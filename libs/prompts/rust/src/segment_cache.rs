//! The tokens of text that earlier requests of the same tenant had too.
//!
//! A conversation is sent again with every turn. Its text is cut at added tokens such as `<|im_end|>`,
//! and the tokens of each segment between two cuts are kept by the segment's content. So a segment is
//! found again even if the text before it has changed, as when a template drops earlier reasoning.
//!
//! ```text
//!  <|im_start|>user\nHello …<|im_end|>\n<|im_start|>assistant\nHi …<|im_end|>
//!              └── segment ──┘         ▲              └── segment ──┘
//!                                     short: encoded again together with the added tokens around it
//! ```
//!
//! Why the result equals the encoding of the whole text: a tokenizer finds these added tokens in the raw
//! text before anything else, leftmost and longest first. The text on either side is then normalized,
//! split and encoded on its own. [`Cuts::new`] refuses tokenizers for which that does not hold.
//!
//! Why no tenant learns of another's prompts: a segment is found only by its [`Owner`], a key made from the
//! [`Tenant`] and the request's `cache_salt` with a secret of this process. A segment is compared byte by
//! byte, so a hash that collides costs a miss and is never a wrong result.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aho_corasick::{AhoCorasick, MatchKind};
use fastokens::AddedTokenConfig;
use lru::LruCache;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A shorter segment is encoded again: that takes no longer than to look it up.
const SEGMENT_BYTES_MIN: usize = 128;
/// Memory of an entry besides its text and tokens: the node, its place in the table, two allocations.
const ENTRY_BYTES: usize = 192;
/// A segment above this share of the bound is not kept: it would push out all others.
const ENTRY_SHARE_MAX: usize = 8;

/// Why the text of a tokenizer cannot be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoCuts {
    /// It has no added tokens that are matched in raw text.
    NoAddedTokens,
    /// This added token takes in the white space beside it, or matches whole words alone, so what it
    /// matches depends on its neighbours.
    DependsOnNeighbours(String),
    /// The second added token is matched in normalized text, and can begin before the first one and share bytes with it.
    Overlap(String, String),
}

impl fmt::Display for NoCuts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAddedTokens => write!(f, "it has no added tokens that raw text can be cut at"),
            Self::DependsOnNeighbours(token) => {
                write!(
                    f,
                    "the match of its added token {token:?} depends on the text beside it"
                )
            }
            Self::Overlap(token, normalized) => write!(
                f,
                "its added token {normalized:?}, which is normalized, can take the begin of {token:?}"
            ),
        }
    }
}

/// Finds where a tokenizer's text can be cut.
pub struct Cuts {
    tokens: AhoCorasick,
}

impl Cuts {
    /// Takes a tokenizer's added tokens.
    ///
    /// # Errors
    /// The text of this tokenizer cannot be cut.
    pub fn new(added: &[AddedTokenConfig]) -> Result<Self, NoCuts> {
        let (normalized, raw): (Vec<_>, Vec<_>) = added
            .iter()
            .filter(|token| !token.content.is_empty())
            .partition(|token| token.normalized);
        if raw.is_empty() {
            return Err(NoCuts::NoAddedTokens);
        }
        if let Some(token) = added
            .iter()
            .find(|token| token.lstrip || token.rstrip || token.single_word)
        {
            return Err(NoCuts::DependsOnNeighbours(token.content.clone()));
        }
        for token in &raw {
            for other in &normalized {
                if can_take_begin(other.content.as_bytes(), token.content.as_bytes()) {
                    return Err(NoCuts::Overlap(
                        token.content.clone(),
                        other.content.clone(),
                    ));
                }
            }
        }
        let tokens = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(raw.iter().map(|token| &token.content))
            .map_err(|_| NoCuts::NoAddedTokens)?;
        Ok(Self { tokens })
    }

    /// The segments of `text`: byte ranges between added tokens, in order; empty ones are left out.
    fn segments<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (usize, usize)> + 'a {
        let mut begin = 0;
        self.tokens
            .find_iter(text)
            .map(|found| (found.start(), found.end()))
            .chain(std::iter::once((text.len(), text.len())))
            .map(move |(start, end)| (std::mem::replace(&mut begin, end), start))
            .filter(|(start, end)| start < end)
    }
}

/// Whether in some text `one` begins before `other`, or with it, and has its first byte too. The leftmost match wins, so
/// `other` would then not be found there.
fn can_take_begin(one: &[u8], other: &[u8]) -> bool {
    let meets = (1..=one.len().min(other.len())).any(|shared| one.ends_with(&other[..shared]));
    meets || one.windows(other.len()).any(|part| part == other)
}

/// Whose prompt it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tenant<'a> {
    /// Named by a header that a gateway sets.
    Named(&'a [u8]),
    /// Known by the request's credentials.
    Credentials(&'a [u8]),
    /// Anybody.
    Unknown,
}

/// Who may find an entry again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner(u64, u64);

#[derive(PartialEq, Eq, Hash)]
struct Key {
    owner: Owner,
    text_hash: u64,
}

struct Entry {
    text: Box<str>,
    tokens: Box<[u32]>,
}

impl Entry {
    fn bytes(&self) -> usize {
        ENTRY_BYTES + self.text.len() + size_of_val(&*self.tokens)
    }
}

/// Counts since the start, and the present size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Bytes of text whose tokens were found.
    pub hit_bytes: u64,
    /// Bytes of text that were encoded.
    pub miss_bytes: u64,
    /// Memory in use.
    pub bytes: usize,
    /// Segments kept.
    pub entries: usize,
}

struct Kept {
    entries: LruCache<Key, Entry>,
    stats: CacheStats,
}

/// Tokens of segments, by owner and content; the least recently used ones go first. Thread-safe.
pub struct SegmentCache {
    cuts: Cuts,
    bytes_max: usize,
    owner_secrets: [RandomState; 2],
    text_secret: u64,
    kept: Mutex<Kept>,
}

impl SegmentCache {
    /// Keeps at most `bytes_max` bytes.
    pub fn new(cuts: Cuts, bytes_max: usize) -> Self {
        Self {
            cuts,
            bytes_max,
            owner_secrets: Default::default(),
            text_secret: RandomState::new().hash_one(0_u8),
            kept: Mutex::new(Kept {
                entries: LruCache::unbounded(),
                stats: CacheStats::default(),
            }),
        }
    }

    /// The owner of the prompts of one tenant that have this `cache_salt`.
    pub fn owner(&self, tenant: Tenant<'_>, cache_salt: Option<&str>) -> Owner {
        let half = |secret: &RandomState| secret.hash_one((tenant, cache_salt));
        Owner(half(&self.owner_secrets[0]), half(&self.owner_secrets[1]))
    }

    /// The tokens of `text`, equal to those of `encode`, which encodes a text without the tokens that
    /// open and close it.
    ///
    /// # Errors
    /// Those of `encode`.
    pub fn encode<E>(
        &self,
        owner: Owner,
        text: &str,
        encode: impl Fn(&str) -> Result<Vec<u32>, E>,
    ) -> Result<Vec<u32>, E> {
        let mut tokens = Vec::with_capacity(text.len() / 3);
        let mut encoded_to = 0;
        let mut found_bytes = 0;
        let mut missed = Vec::new();
        for (start, end) in self.cuts.segments(text) {
            let segment = &text[start..end];
            if segment.len() < SEGMENT_BYTES_MIN {
                continue;
            }
            let key = self.key(owner, segment);
            // The short segments that were passed over, and the added tokens before this one.
            let before = &text[encoded_to..start];
            if !before.is_empty() {
                tokens.append(&mut encode(before)?);
            }
            if self.find(&key, segment, &mut tokens) {
                found_bytes += segment.len();
            } else {
                let own = encode(segment)?;
                tokens.extend_from_slice(&own);
                missed.push((key, segment, own));
            }
            encoded_to = end;
        }
        let rest = &text[encoded_to..];
        if !rest.is_empty() {
            tokens.append(&mut encode(rest)?);
        }
        self.keep(missed, found_bytes, text.len() - found_bytes);
        Ok(tokens)
    }

    /// Counts so far.
    pub fn stats(&self) -> CacheStats {
        let kept = self.lock();
        CacheStats {
            entries: kept.entries.len(),
            ..kept.stats
        }
    }

    fn key(&self, owner: Owner, segment: &str) -> Key {
        Key {
            owner,
            text_hash: xxh3_64_with_seed(segment.as_bytes(), owner.0 ^ self.text_secret),
        }
    }

    fn find(&self, key: &Key, segment: &str, tokens: &mut Vec<u32>) -> bool {
        let mut kept = self.lock();
        match kept.entries.get(key) {
            Some(entry) if *entry.text == *segment => {
                tokens.extend_from_slice(&entry.tokens);
                true
            }
            _ => false,
        }
    }

    fn keep(&self, missed: Vec<(Key, &str, Vec<u32>)>, hit_bytes: usize, miss_bytes: usize) {
        // Copies are made before the lock is taken, and freed after it is released.
        let entries: Vec<(Key, Entry)> = missed
            .into_iter()
            .map(|(key, text, tokens)| {
                let entry = Entry {
                    text: text.into(),
                    tokens: tokens.into_boxed_slice(),
                };
                (key, entry)
            })
            .filter(|(_, entry)| entry.bytes() <= self.bytes_max / ENTRY_SHARE_MAX)
            .collect();
        let mut dropped = Vec::new();
        let mut kept = self.lock();
        kept.stats.hit_bytes += hit_bytes as u64;
        kept.stats.miss_bytes += miss_bytes as u64;
        for (key, entry) in entries {
            kept.stats.bytes += entry.bytes();
            if let Some((_, replaced)) = kept.entries.push(key, entry) {
                kept.stats.bytes -= replaced.bytes();
                dropped.push(replaced);
            }
        }
        while kept.stats.bytes > self.bytes_max {
            let Some((_, oldest)) = kept.entries.pop_lru() else {
                break;
            };
            kept.stats.bytes -= oldest.bytes();
            dropped.push(oldest);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // A panic may leave a count wrong, and never an entry.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::LazyLock;

    use fastokens::Tokenizer;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn added(id: u32, content: &str, normalized: bool) -> Value {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": normalized, "special": !normalized})
    }

    /// A byte-level BPE with a few merges that would cross the cuts if they could.
    fn tokenizer(normalizer: &Value, prefix_space: bool) -> Tokenizer {
        let letters = byte_alphabet();
        let mut vocab: Vec<String> = letters;
        let merges = [
            "h e", "l l", "he ll", "hell o", "Ġ hello", "< |", "| >", "> <", "Ċ Ċ", "a b",
        ];
        vocab.extend(merges.iter().map(|merge| merge.replace(' ', "")));
        let next = u32::try_from(vocab.len()).expect("a small vocabulary");
        let ids: serde_json::Map<String, Value> = vocab
            .into_iter()
            .enumerate()
            .map(|(id, token)| (token, json!(id)))
            .collect();
        let specials = ["<|a|>", "<|a|><|b|>", "<|b|>", "<|", "é|>"];
        let mut tokens: Vec<Value> = (next..)
            .zip(specials)
            .map(|(id, content)| added(id, content, false))
            .collect();
        tokens.push(added(next + 9, "hello hello", true));
        tokens.push(added(next + 10, "|>a", true));
        let description = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": tokens,
            "normalizer": normalizer,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": prefix_space,
                              "trim_offsets": true, "use_regex": true},
            "post_processor": null, "decoder": null,
            "model": {"type": "BPE", "dropout": null, "unk_token": null,
                      "continuing_subword_prefix": null, "end_of_word_suffix": null,
                      "fuse_unk": false, "byte_fallback": false, "vocab": ids, "merges": merges},
        });
        Tokenizer::from_json(description).expect("a tokenizer")
    }

    /// The characters that stand for bytes in byte-level vocabularies (GPT-2's `bytes_to_unicode`).
    fn byte_alphabet() -> Vec<String> {
        let printable = |byte: &u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let others = (0..256).filter(|byte| !printable(byte)).count() as u32;
        (0..256)
            .filter(printable)
            .chain(256..256 + others)
            .map(|code| char::from_u32(code).expect("a character").to_string())
            .collect()
    }

    static TOKENIZERS: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
        vec![
            tokenizer(&Value::Null, false),
            tokenizer(&json!({"type": "NFC"}), false),
            tokenizer(&json!({"type": "Lowercase"}), false),
            tokenizer(&Value::Null, true),
        ]
    });

    fn cache(tokenizer: &Tokenizer, bytes_max: usize) -> SegmentCache {
        let cuts = Cuts::new(tokenizer.added_token_configs()).expect("it can be cut");
        SegmentCache::new(cuts, bytes_max)
    }

    fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, Infallible> {
        Ok(tokenizer
            .encode_with_special_tokens(text, false)
            .expect("text encodes"))
    }

    /// Pieces of conversations: tokens, halves of tokens, text that is long enough to be kept.
    fn piece() -> impl Strategy<Value = String> {
        prop_oneof![
            Just("<|a|>".to_owned()),
            Just("<|b|>".to_owned()),
            Just("<|".to_owned()),
            Just("|>".to_owned()),
            Just("e\u{301}|>".to_owned()),
            Just(" hello hello ".to_owned()),
            Just("HELLO\n\n".repeat(40)),
            "[hello <|>ab\n\u{e9}\u{301}\u{1f600}]{0,200}",
            "\\PC{120,160}",
        ]
    }

    proptest! {
        #[test]
        fn equals_the_encoding_of_the_whole(
            turns in vec(vec(piece(), 0..6), 1..8),
            kept_from in 0..3_usize,
            bytes_max in prop_oneof![Just(0), 0..20_000_usize, Just(1 << 20)],
        ) {
            for tokenizer in TOKENIZERS.iter() {
                let cache = cache(tokenizer, bytes_max);
                let owner = cache.owner(Tenant::Named(b"tenant"), None);
                let turns: Vec<String> = turns.iter().map(|pieces| pieces.concat()).collect();
                for end in 0..=turns.len() {
                    // Each turn sends what came before again; a template may drop the oldest.
                    let text = turns[kept_from.min(end)..end].concat();
                    let whole = encode(tokenizer, &text).unwrap();
                    let found = cache.encode(owner, &text, |part| encode(tokenizer, part)).unwrap();
                    prop_assert_eq!(found, whole);
                    prop_assert!(cache.stats().bytes <= bytes_max);
                }
            }
        }
    }

    fn long(text: &str) -> String {
        format!("<|a|>{}<|b|>", text.repeat(SEGMENT_BYTES_MIN))
    }

    #[test]
    fn a_second_turn_encodes_only_what_is_new() {
        let tokenizer = tokenizer(&Value::Null, false);
        let cache = cache(&tokenizer, 1 << 20);
        let owner = cache.owner(Tenant::Unknown, None);
        let run = |text: &str| {
            cache
                .encode(owner, text, |part| encode(&tokenizer, part))
                .unwrap();
            cache.stats()
        };
        let first = run(&long("x "));
        assert_eq!((first.hit_bytes, first.entries), (0, 1));
        let second = run(&(long("x ") + &long("y ")));
        assert_eq!(
            (second.hit_bytes, second.entries),
            (2 * SEGMENT_BYTES_MIN as u64, 2)
        );
        // Also where the text before it has changed.
        assert_eq!(run(&long("y ")).hit_bytes, 4 * SEGMENT_BYTES_MIN as u64);
    }

    #[test]
    fn another_tenant_and_another_salt_find_nothing() {
        let tokenizer = tokenizer(&Value::Null, false);
        let cache = cache(&tokenizer, 1 << 20);
        let text = long("secret ");
        for owner in [
            cache.owner(Tenant::Named(b"one"), None),
            cache.owner(Tenant::Named(b"two"), None),
            cache.owner(Tenant::Named(b"one"), Some("")),
            cache.owner(Tenant::Named(b"one"), Some("salt")),
            cache.owner(Tenant::Named(b"onesalt"), None),
            cache.owner(Tenant::Credentials(b"one"), None),
            cache.owner(Tenant::Unknown, None),
        ] {
            cache
                .encode(owner, &text, |part| encode(&tokenizer, part))
                .unwrap();
        }
        assert_eq!(cache.stats().hit_bytes, 0);
        assert_eq!(cache.stats().entries, 7);
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let tokenizer = tokenizer(&Value::Null, false);
        let cache = cache(&tokenizer, 80_000);
        let owner = cache.owner(Tenant::Unknown, None);
        let run = |number: usize| {
            let text = long(&format!("{number:08} "));
            let before = cache.stats().hit_bytes;
            cache
                .encode(owner, &text, |part| encode(&tokenizer, part))
                .unwrap();
            cache.stats().hit_bytes > before
        };
        assert!(!run(0));
        for number in 1..200 {
            assert!(!run(number));
            assert!(run(0), "the first one is used all the time");
            assert!(cache.stats().bytes <= 80_000);
        }
        assert!(!run(1));
    }

    #[test]
    fn a_segment_that_would_push_out_the_others_is_not_kept() {
        let tokenizer = tokenizer(&Value::Null, false);
        let cache = cache(&tokenizer, 8_000);
        let owner = cache.owner(Tenant::Unknown, None);
        let text = long("0123456789");
        cache
            .encode(owner, &text, |part| encode(&tokenizer, part))
            .unwrap();
        assert_eq!(cache.stats().entries, 0);
    }

    #[test]
    fn tokenizers_whose_matches_depend_on_their_neighbours_are_refused() {
        let config = |content: &str, change: &dyn Fn(&mut AddedTokenConfig)| {
            let mut config: AddedTokenConfig =
                serde_json::from_value(added(1, content, false)).expect("a token");
            change(&mut config);
            config
        };
        let refused = |tokens: &[AddedTokenConfig]| Cuts::new(tokens).err();
        let plain = config("<s>", &|_| ());
        assert_eq!(refused(&[]), Some(NoCuts::NoAddedTokens));
        let normalized = config("<n>", &|token| token.normalized = true);
        assert_eq!(
            refused(std::slice::from_ref(&normalized)),
            Some(NoCuts::NoAddedTokens)
        );
        assert_eq!(refused(&[plain.clone(), normalized]), None);
        for change in [
            (&|token: &mut AddedTokenConfig| token.lstrip = true) as &dyn Fn(&mut AddedTokenConfig),
            &|token| token.rstrip = true,
            &|token| token.single_word = true,
        ] {
            let token = config("<m>", change);
            let expected = NoCuts::DependsOnNeighbours("<m>".to_owned());
            assert_eq!(refused(&[plain.clone(), token]), Some(expected));
        }
        for other in ["s", ">", "s>x"] {
            let other = config(other, &|token| token.normalized = true);
            assert_eq!(refused(&[plain.clone(), other]), None);
        }
        for other in ["s><", "><s", "<s>", "x<s>y", "<s>y"] {
            let other = config(other, &|token| token.normalized = true);
            let expected = NoCuts::Overlap("<s>".to_owned(), other.content.clone());
            assert_eq!(refused(&[plain.clone(), other]), Some(expected));
        }
    }
}
