//! From a body to what routing needs, in three steps: [`PromptReader::body`], [`PromptReader::tokens`],
//! [`PromptReader::chunk_hashes`].

use std::num::NonZeroUsize;
use std::sync::Arc;

use kvatlas_hashing::{chunk_hashes_into, seed};

use crate::body::{self, Body, Prompt, Route};
use crate::conversation::ChatTemplate;
use crate::encoder::Encoder;
use crate::segment_cache::{Owner, SegmentCache, Tenant};
use crate::template::{Budget, LocalTime, Refused};

/// Why a request is left to Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The body is no JSON, has no prompt or has a field of an unusual type.
    Body,
    /// Only the engine has the tokens, or no tokenizer is loaded here.
    Tokenizer,
    /// The template refuses the conversation, or does what is not certain to be as in Python.
    Template,
    /// The template takes more steps than allowed.
    TooLong,
}

impl Left {
    /// A metric's label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Body => "body",
            Self::Tokenizer => "tokenizer",
            Self::Template => "template",
            Self::TooLong => "too_long",
        }
    }
}

/// A prompt's tokens.
#[derive(Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Their ids.
    pub ids: Vec<u32>,
    /// False: they end before an item that is no text.
    pub is_whole: bool,
}

/// Reads prompts. Everything is loaded at start; any number of threads may read at once.
pub struct PromptReader {
    /// None: texts are left to Python.
    pub encoder: Option<Arc<Encoder>>,
    /// None: conversations are left to Python.
    pub template: Option<Arc<ChatTemplate>>,
    /// Tokens of earlier texts; none: every text is encoded as a whole.
    pub cache: Option<SegmentCache>,
    /// Tokens per block.
    pub block_size: NonZeroUsize,
    /// False: routing wants the fields alone, so the conversation is checked and dropped.
    pub wants_tokens: bool,
    /// The local time, which templates may print.
    pub now: Box<dyn Fn() -> LocalTime + Send + Sync>,
}

impl PromptReader {
    /// Reads the fields.
    ///
    /// # Errors
    /// [`Left::Body`].
    pub fn body<'a>(&self, route: Route, body: &'a [u8]) -> Result<Body<'a>, Left> {
        body::read(route, body, self.wants_tokens).map_err(|_| Left::Body)
    }

    /// Renders and encodes the prompt. `tenant`: whose prompts may share cached tokens with this one, if their `cache_salt`
    /// is the same.
    ///
    /// # Errors
    /// Any [`Left`] but [`Left::Body`].
    pub fn tokens<'a>(
        &'a self,
        body: &mut Body<'a>,
        tenant: Tenant<'_>,
        budget: Budget,
    ) -> Result<Tokens, Left> {
        let owner = self
            .cache
            .as_ref()
            .map(|cache| cache.owner(tenant, body.cache_salt()));
        let (ids, is_whole) = match &mut body.prompt {
            Prompt::Tokens(ids) => (std::mem::take(ids), true),
            Prompt::Text {
                text,
                add_special_tokens,
            } => (self.encode(text, *add_special_tokens, owner)?, true),
            Prompt::Chat(chat) => {
                let template = self.template.as_ref().ok_or(Left::Tokenizer)?;
                if chat.only_engine_renders || self.encoder.is_none() {
                    return Err(Left::Tokenizer);
                }
                let (text, is_whole) =
                    template
                        .render(chat, budget, &*self.now)
                        .map_err(|refused| match refused {
                            Refused::Unlike(_) => Left::Template,
                            Refused::TooLong => Left::TooLong,
                        })?;
                let mut ids = self.encode(&text, chat.add_special_tokens, owner)?;
                if !is_whole {
                    // The last token before an item may have merged with the text that follows.
                    ids.pop();
                    return Ok(Tokens { ids, is_whole });
                }
                (ids, is_whole)
            }
        };
        let ids = match body.keep_last {
            Some(keep) if keep < ids.len() => ids[ids.len() - keep..].to_vec(),
            _ => ids,
        };
        Ok(Tokens { ids, is_whole })
    }

    /// The chunk hashes of the blocks that an engine can take from its cache: it always computes a prompt's last token
    /// again, to sample from it.
    pub fn chunk_hashes(
        &self,
        tokens: &Tokens,
        adapter: Option<&str>,
        cache_salt: Option<&str>,
    ) -> Vec<u64> {
        let hashed = tokens.ids.len() - usize::from(tokens.is_whole && !tokens.ids.is_empty());
        let blocks = hashed / self.block_size;
        let mut hashes = vec![0; blocks];
        let ids = &tokens.ids[..blocks * self.block_size.get()];
        chunk_hashes_into(ids, self.block_size, seed(adapter, cache_salt), &mut hashes);
        hashes
    }

    fn encode(
        &self,
        text: &str,
        add_special_tokens: bool,
        owner: Option<Owner>,
    ) -> Result<Vec<u32>, Left> {
        let encoder = self.encoder.as_ref().ok_or(Left::Tokenizer)?;
        let ids = match (&self.cache, owner) {
            (Some(cache), Some(owner)) => {
                encoder.encode_cached(text, add_special_tokens, cache, owner)
            }
            _ => encoder.encode(text, add_special_tokens),
        };
        ids.map_err(|_| Left::Tokenizer)
    }
}
