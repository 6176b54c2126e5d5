//! What goes into the sequencer and what comes out of it: plain values.

use super::SnapshotPart;

/// How far ahead of the indexer's clock an epoch, which is a wall clock in µs, may be.
pub const EPOCH_AHEAD_MS_MAX: u64 = 600_000;

/// A record may be so many events beyond all that its life is known to have numbered: far more than any life numbers
/// while an indexer is away, so that what jumps further is a mistake, which nothing could ever make whole.
pub const EVENT_ID_JUMP_MAX: u64 = 1 << 38;

/// Bounds of one worker's state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Limits {
    /// Batches held back while an earlier one is missing; the oldest goes first.
    pub hold_back_batches: usize,
    /// How long a gap may stay open before the worker is no longer matched.
    pub hold_back_ms: u64,
    /// How long a worker may recover before its set is emptied.
    pub recover_ms: u64,
    /// Parts of one snapshot.
    pub snapshot_parts: u32,
    /// Hashes of one snapshot.
    pub snapshot_hashes: usize,
}

/// Who speaks: one life of a publisher's state, and the process that lives it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Speaker {
    /// One life of a publisher's state for the worker; a later one is larger.
    pub epoch: u64,
    /// Random, per publisher process.
    pub instance: u64,
}

/// How an epoch ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Closing {
    /// The engine is gone, and the worker with it.
    EngineGone,
    /// The publisher leaves; the engine lives on without one.
    PublisherLeaving,
}

/// Numbered events of one record, consecutive from `first_event_id`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Events<P> {
    /// Id of the first event; at least 1.
    pub first_event_id: u64,
    /// Number of events; at least 1, and `first_event_id + count` fits an u64.
    pub count: u32,
    /// Set if the last of them is a shutdown.
    pub closing: Option<Closing>,
    /// The caller's form of them.
    pub payload: P,
}

impl<P> Events<P> {
    /// Id of the last event.
    #[must_use]
    pub fn last_event_id(&self) -> u64 {
        self.first_event_id
            .saturating_add(u64::from(self.count).saturating_sub(1))
    }
}

/// What the caller must do with the worker's set, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step<P> {
    /// The set is empty from here on: a new epoch, or a recovery given up.
    Empty,
    /// Apply the payload's events, without the first `skip`.
    Apply {
        /// What [`Events`] brought in.
        payload: P,
        /// Events of it that had been applied before.
        skip: u32,
    },
    /// The set is these parts from here on.
    Replace(Vec<SnapshotPart>),
    /// The epoch has ended.
    Close(Closing),
}

/// What became of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Applied, or noted.
    Applied,
    /// Kept until what is missing before it arrives.
    HeldBack,
    /// Kept, and an older held batch had to go for it.
    HeldBackOverflow,
    /// All of it had been applied before.
    Seen,
    /// Of an older epoch.
    OlderEpoch,
    /// Of the current epoch, by another instance than the one seen first.
    RivalInstance,
    /// Of an epoch too far ahead of the clock.
    EpochAhead,
    /// Of the current life, and more than [`EVENT_ID_JUMP_MAX`] events beyond all that is known of it.
    EventIdJump,
    /// Of an epoch that a shutdown has closed.
    EpochClosed,
    /// A snapshot's part, kept.
    PartTaken,
    /// A snapshot's part that is older than what has been applied.
    SnapshotOld,
    /// All parts were there and were not the set that their digests state.
    SnapshotMismatch,
    /// More parts or hashes than the limits allow.
    SnapshotTooLarge,
}

/// How the worker's set stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It is what the publisher says, up to what is still on its way.
    Whole,
    /// It is not, until a snapshot or the missing records come.
    Recovering,
    /// The epoch has ended.
    Closed(Closing),
}

/// What time did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Elapsed {
    /// Nothing.
    Nothing,
    /// A gap outlasted the hold-back: the worker recovers.
    GapOutlasted,
    /// The recovery took too long: the set was emptied.
    GivenUp,
}
