//! The wire formats of inference engines: bytes of a socket in, engine events out.
//!
//! ```text
//! socket ──zmtp──▶ payload ──payload──▶ raw events ──reader: vllm│sglang──▶ EventBatch
//! ```
//!
//! Everything that a release of an engine can change is here, so that a new release or a new engine
//! is a change in this crate alone. The crate is pure: no I/O, no clock. Memory is bounded by the
//! longest message ([`MESSAGE_BYTES_MAX`]); an [`EventBatch`] keeps little of a huge one.
//!
//! The Python readers in `tests/reference/engines` specify every rule; a differential test holds this
//! crate to them.

mod cache_groups;
mod engine;
mod event;
mod fields;
mod msgpack;
mod payload;
mod reader;
mod reader_state;
mod sglang;
mod vllm;
mod zmtp;

pub use cache_groups::IndexedGroup;
pub use engine::Engine;
pub use event::{EngineHash, Event, EventBatch, Refusal, RefusalReason, Stored, Tier};
pub use msgpack::Malformed;
pub use reader::{MessageInfo, Reader, dp_rank};
pub use reader_state::{BlindSpots, ReaderState};
pub use zmtp::{MESSAGE_BYTES_MAX, ProtocolError, Received, Subscriber};
