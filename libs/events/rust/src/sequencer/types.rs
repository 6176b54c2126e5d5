//! The values that go into the sequencer and come out of it.

use super::SnapshotPart;

/// Largest lead of an epoch over the indexer's clock, in ms. An epoch is a wall clock in µs.
pub const EPOCH_AHEAD_MS_MAX: u64 = 600_000;

/// Largest distance of an event id from the highest id known in its epoch.
///
/// No publisher numbers this many events while an indexer is away. A larger jump is a mistake: if it were accepted,
/// the worker would wait for missing events for ever.
pub const EVENT_ID_JUMP_MAX: u64 = 1 << 38;

/// Bounds of one worker's state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Limits {
    /// Batches held back while an earlier one is missing. Beyond this, the oldest is dropped.
    pub hold_back_batches: usize,
    /// Time that a gap may stay open before the worker is no longer matched.
    pub hold_back_ms: u64,
    /// Time that a worker may recover before its set is emptied.
    pub recover_ms: u64,
    /// Parts of one snapshot.
    pub snapshot_parts: u32,
    /// Hashes of one snapshot.
    pub snapshot_hashes: usize,
}

/// One epoch of a worker, and the publisher process that opened it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Incarnation {
    /// A later epoch of the worker has a larger number.
    pub epoch: u64,
    /// Random number of the publisher process.
    pub instance: u64,
}

/// Why an epoch ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ShutdownReason {
    /// The engine is gone, and the worker with it.
    EngineGone,
    /// The publisher leaves; its engine goes on without one.
    PublisherLeaving,
}

/// The numbered events of one record; their ids are consecutive.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Events<P> {
    /// Id of the first event; at least 1.
    pub first_event_id: u64,
    /// Number of events; at least 1. `first_event_id + count` fits a u64.
    pub count: u32,
    /// Set if the last event is a shutdown.
    pub shutdown: Option<ShutdownReason>,
    /// The events in the caller's form.
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

/// One change of the worker's set. The caller carries out all steps in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step<P> {
    /// Empty the set: a new epoch began, or a recovery was given up.
    Empty,
    /// Apply the payload's events, except the first `skip`.
    Apply {
        /// The payload of an [`Events`].
        payload: P,
        /// Number of its events that were applied before.
        skip: u32,
    },
    /// Replace the set by these parts.
    Replace(Vec<SnapshotPart>),
    /// Close the worker: its epoch has ended.
    Close(ShutdownReason),
}

/// The sequencer's decision on one record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Applied, or noted.
    Applied,
    /// Kept until the events before it arrive.
    HeldBack,
    /// Kept; an older batch was dropped to make room.
    HeldBackOverflow,
    /// Dropped: all of it was applied before.
    Seen,
    /// Dropped: it belongs to an older epoch.
    OlderEpoch,
    /// Refused: it belongs to the current epoch, but comes from another instance.
    RivalInstance,
    /// Refused: its epoch is more than [`EPOCH_AHEAD_MS_MAX`] ahead of the clock.
    EpochAhead,
    /// Refused: its event ids are more than [`EVENT_ID_JUMP_MAX`] beyond the highest known id.
    EventIdJump,
    /// Dropped: a shutdown has closed its epoch.
    EpochClosed,
    /// Kept: a snapshot's part; others are missing.
    PartTaken,
    /// Dropped: a snapshot's part that is older than the applied events.
    SnapshotOld,
    /// All parts of a snapshot are there, but they do not match their digests.
    SnapshotMismatch,
    /// Refused: the snapshot has more parts or hashes than the limits allow.
    SnapshotTooLarge,
}

/// Whether the worker's set can be believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SequencerState {
    /// The set is complete, except for events that are still on their way.
    Whole,
    /// The set is incomplete until a snapshot or the missing records arrive.
    Recovering,
    /// The epoch has ended.
    Closed(ShutdownReason),
}

/// The result of [`super::Sequencer::on_tick`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TickOutcome {
    /// No bound has passed.
    Nothing,
    /// A gap stayed open longer than `hold_back_ms`: the worker recovers.
    GapTimedOut,
    /// The recovery took longer than `recover_ms`: the set was emptied.
    RecoveryTimedOut,
}
