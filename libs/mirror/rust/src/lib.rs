//! The publisher's mirror: engine messages in, events to publish out.
//!
//! ```text
//! payload ──kvatlas-engines──▶ EventBatch ──mirror──▶ PendingEvents ──▶ sealed by the binding
//! ```
//!
//! `engine_mirror` runs these steps, `mirror` holds the rules, `tables` the memory behind them, and
//! `state` writes a mirror into a checkpoint. The crate is pure: no I/O, no clock, no protobuf.
//!
//! The Python mirror in `tests/reference/mirror.py` specifies the rules; a differential test holds
//! this crate to it.

mod engine_mirror;
mod mirror;
mod pending;
mod state;
mod tables;

pub use engine_mirror::{ApplyOutcome, EngineMirror};
pub use mirror::{Mirror, TierDigest};
pub use pending::{
    BATCH_EVENTS_MAX, BATCH_HASHES_MAX, EventKind, PendingEvent, PendingEvents, with_hashes,
};
pub use state::BadState;
