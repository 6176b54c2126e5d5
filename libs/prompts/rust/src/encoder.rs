//! Text to token ids, by `fastokens`.

use std::path::Path;

use thiserror::Error;

use crate::segment_cache::{Cuts, NoCuts, Owner, SegmentCache};

/// A `tokenizer.json` cannot be used, or a text not be encoded.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct EncoderError(String);

/// A loaded tokenizer. It encodes on any number of threads at once.
pub struct Encoder(fastokens::Tokenizer);

impl Encoder {
    /// Loads a `tokenizer.json`. Its settings for truncation and padding are dropped, as engines ignore them.
    ///
    /// # Errors
    /// The file is missing, or has a part that `fastokens` does not know.
    pub fn load(file: &Path) -> Result<Self, EncoderError> {
        let mut tokenizer = fastokens::Tokenizer::from_file(file).map_err(named)?;
        tokenizer.set_truncation(None);
        tokenizer.set_padding(None);
        Ok(Self(tokenizer))
    }

    /// The ids of a text, with or without the tokens that open and close it.
    ///
    /// # Errors
    /// A pattern of the tokenizer ran into its limit.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, EncoderError> {
        self.0
            .encode_with_special_tokens(text, add_special_tokens)
            .map_err(named)
    }

    /// Does the same; the tokens of segments that `owner` has had before come from `cache`.
    ///
    /// # Errors
    /// A pattern of the tokenizer ran into its limit.
    pub fn encode_cached(
        &self,
        text: &str,
        add_special_tokens: bool,
        cache: &SegmentCache,
        owner: Owner,
    ) -> Result<Vec<u32>, EncoderError> {
        let ids = cache.encode(owner, text, |part| self.encode(part, false))?;
        Ok(match self.0.post_processor() {
            Some(processor) if add_special_tokens => processor.post_process_single(ids, true),
            _ => ids,
        })
    }

    /// Where a text of this tokenizer can be cut.
    ///
    /// # Errors
    /// Nowhere.
    pub fn cuts(&self) -> Result<Cuts, NoCuts> {
        Cuts::new(self.0.added_token_configs())
    }
}

fn named(error: fastokens::Error) -> EncoderError {
    EncoderError(error.to_string())
}
