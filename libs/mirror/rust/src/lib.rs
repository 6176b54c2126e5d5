//! What runs per block in the publisher: an engine's messages in, what to publish out.
//!
//! ```text
//! payload ──payload──▶ raw events ──vllm│sglang──▶ columns (model) ──mirror──▶ operations (said)
//! ```
//!
//! `subscriber` is the step before it: from a socket's bytes to payloads.
//!
//! The readers' rules are those of the Python package `kvatlas_engines`, the mirror's those of the
//! Python reference under `tests/reference`; differential tests hold this crate to both. It is pure:
//! bytes and columns in, columns out; no I/O, no clock, no protobuf.

mod ahead;
mod clearing;
mod contexts;
mod engine;
mod entries;
mod extra_keys;
mod fields;
mod groups;
mod mirror;
mod model;
mod msgpack;
mod passing;
mod payload;
mod said;
mod sglang;
mod slab;
mod state;
mod subscriber;
mod tree;
mod vllm;

pub use engine::{EngineMirror, Report, Told};
pub use mirror::Mirror;
pub use model::{Batch, EngineKey, Event, Reason, Refusal, Stored, TIERS, Tier, TierDigest};
pub use msgpack::Malformed;
pub use payload::Engine;
pub use said::{BATCH_EVENTS_MAX, BATCH_HASHES_MAX, Kind, Operation, Said};
pub use state::BadState;
pub use subscriber::{Broken, MESSAGE_BYTES_MAX, Run, Subscriber};
