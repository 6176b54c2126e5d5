//! Reads a request's body as routing needs it: the fields, the prompt's tokens, the chunk hashes of its blocks.
//!
//! ```text
//!  body ─▶ json, body ─▶ token ids ─────────────────────────┐
//!                    ├─▶ text ───────────────────▶ encoder ─┼─▶ tokens ─▶ chunk hashes
//!                    └─▶ conversation ─▶ template ─▶ encoder ┘
//! ```
//!
//! The frontend can do all of this in Python, and stays the judge of it: whatever is unusual here is [`Left`] to Python, with
//! no error of its own. So there is one behaviour, and a client gets one kind of message.

mod body;
mod conversation;
mod encoder;
mod json;
mod reader;
mod segment_cache;
mod template;

pub use body::{Body, Route};
pub use conversation::ChatTemplate;
pub use encoder::{Encoder, EncoderError};
pub use reader::{Left, PromptReader, Tokens};
pub use segment_cache::{CacheStats, Cuts, NoCuts, Owner, SegmentCache, Tenant};
pub use template::{Budget, LocalTime, Refused, Template};
