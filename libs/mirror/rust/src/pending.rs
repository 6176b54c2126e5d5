//! The events that wait to be published, as columns; cut into batches when they are sealed.
//!
//! A chain of blocks stored one by one becomes one `Store`, and removals on one tier become one
//! `Remove`. The order never changes, so every border between two events is a state that the mirror
//! was in.

use kvatlas_engines::Tier;

/// The largest number of events in a batch.
pub const BATCH_EVENTS_MAX: usize = 4_096;
/// The largest number of hashes in a batch, and so in an event.
pub const BATCH_HASHES_MAX: usize = 65_536;

/// The effect of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// Stores a chain, head first, below the parent; `None`: the chain begins a prompt.
    Store(Option<u64>),
    /// Removes blocks, tail first.
    Remove,
    /// Removes everything, or everything on a tier.
    Clear,
}

/// One event. Its hashes follow those of the event before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PendingEvent {
    /// The effect.
    pub kind: EventKind,
    /// The tier; `None` only in a `Clear` of all tiers.
    pub tier: Option<Tier>,
    /// The number of hashes.
    pub hashes: u32,
}

/// The pending events and their hashes, in order; see the module.
#[derive(Default, Debug)]
pub struct PendingEvents {
    events: Vec<PendingEvent>,
    hashes: Vec<u64>,
    /// The last event may still grow.
    is_open: bool,
}

impl PendingEvents {
    /// All events, in order.
    #[must_use]
    pub fn events(&self) -> &[PendingEvent] {
        &self.events
    }

    /// The hashes of all events, in order.
    #[must_use]
    pub fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// Whether the events fill a batch.
    #[must_use]
    pub fn is_batch_full(&self) -> bool {
        self.events.len() >= BATCH_EVENTS_MAX || self.hashes.len() >= BATCH_HASHES_MAX
    }

    /// Removes all events.
    pub fn clear(&mut self) {
        self.events.clear();
        self.hashes.clear();
        self.is_open = false;
    }

    /// Cuts the events into batches: the events of each, and their hashes.
    pub fn batches(&self) -> impl Iterator<Item = (&[PendingEvent], &[u64])> {
        let mut rest = &self.events[..];
        let mut at = 0;
        std::iter::from_fn(move || {
            let (batch, after) = rest.split_at(first_batch(rest));
            if batch.is_empty() {
                return None;
            }
            rest = after;
            let start = at;
            at += batch.iter().map(|each| each.hashes as usize).sum::<usize>();
            Some((batch, &self.hashes[start..at]))
        })
    }

    pub(crate) fn push_store(&mut self, parent: Option<u64>, sequence: u64, tier: Tier) {
        if self.is_open
            && parent.is_some()
            && self.hashes.last().copied() == parent
            && let Some(last) = self.events.last_mut()
            && matches!(last.kind, EventKind::Store(_))
            && last.tier == Some(tier)
            && (last.hashes as usize) < BATCH_HASHES_MAX
        {
            last.hashes += 1;
        } else {
            self.begin(EventKind::Store(parent), Some(tier), 1);
        }
        self.hashes.push(sequence);
    }

    pub(crate) fn push_remove(&mut self, sequence: u64, tier: Tier) {
        if self.is_open
            && let Some(last) = self.events.last_mut()
            && last.kind == EventKind::Remove
            && last.tier == Some(tier)
            && (last.hashes as usize) < BATCH_HASHES_MAX
        {
            last.hashes += 1;
        } else {
            self.begin(EventKind::Remove, Some(tier), 1);
        }
        self.hashes.push(sequence);
    }

    pub(crate) fn push_clear(&mut self, tier: Option<Tier>) {
        self.begin(EventKind::Clear, tier, 0);
    }

    /// Ends an engine's message. The next one begins a new event, so that events do not depend on
    /// how messages were grouped into calls.
    pub(crate) fn end_message(&mut self) {
        self.is_open = false;
    }

    fn begin(&mut self, kind: EventKind, tier: Option<Tier>, hashes: u32) {
        self.is_open = true;
        self.events.push(PendingEvent { kind, tier, hashes });
    }
}

/// Gives each of a batch's events its own hashes.
pub fn with_hashes<'a>(
    events: &'a [PendingEvent],
    hashes: &'a [u64],
) -> impl Iterator<Item = (PendingEvent, &'a [u64])> + Clone {
    let mut rest = hashes;
    events.iter().map(move |event| {
        let (own, after) = rest.split_at(event.hashes as usize);
        rest = after;
        (*event, own)
    })
}

/// The number of events in the first batch.
fn first_batch(events: &[PendingEvent]) -> usize {
    let mut hashes = 0;
    for (count, event) in events.iter().enumerate() {
        hashes += event.hashes as usize;
        if count > 0 && (count == BATCH_EVENTS_MAX || hashes > BATCH_HASHES_MAX) {
            return count;
        }
    }
    events.len()
}
