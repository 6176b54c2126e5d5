//! Reads the changes of one call block by block.

use kvatlas_hashing::sequence_step;

use crate::types::{Change, Hashes, SlotId, Tier};
use crate::workers::worker_slots::SlotDelta;

/// A change, without its blocks, and what came of it in this window.
#[derive(Clone, Copy)]
pub(crate) struct ChangeInWindow {
    pub slot: SlotId,
    pub tier: Tier,
    pub stores: bool,
    pub delta: SlotDelta,
}

impl ChangeInWindow {
    fn of(change: &Change<'_>) -> Self {
        Self {
            slot: change.slot,
            tier: change.tier,
            stores: change.stores,
            delta: SlotDelta::default(),
        }
    }
}

/// The hashes of a change whose probes have not begun.
#[derive(Clone, Copy)]
pub(crate) struct HashesLeft<'a> {
    hashes: &'a [u64],
    /// They are chunk hashes.
    chained: bool,
    /// The sequence hash before the next chunk, if any.
    parent: Option<u64>,
}

impl<'a> HashesLeft<'a> {
    pub const NONE: Self = Self {
        hashes: &[],
        chained: false,
        parent: None,
    };

    fn of(hashes: Hashes<'a>) -> Self {
        match hashes {
            Hashes::Sequences(hashes) => Self {
                hashes,
                ..Self::NONE
            },
            Hashes::Chunks { parent, chunks } => Self {
                hashes: chunks,
                chained: true,
                parent,
            },
        }
    }

    /// The next sequence hash.
    #[inline(always)]
    pub fn next(&mut self) -> Option<u64> {
        let (&first, others) = self.hashes.split_first()?;
        self.hashes = others;
        if !self.chained {
            return Some(first);
        }
        // Computed while earlier probes wait for memory.
        let hash = self
            .parent
            .map_or(first, |parent| sequence_step(parent, first));
        self.parent = Some(hash);
        Some(hash)
    }
}

/// The changes of one call, as far as they have not begun.
pub(crate) struct ChangeReader<'a, 'r> {
    changes: &'r mut dyn Iterator<Item = Change<'a>>,
    /// The change after the current one.
    next: Option<Change<'a>>,
    /// The blocks of the current change.
    pub left: HashesLeft<'a>,
    pub current: ChangeInWindow,
}

impl<'a, 'r> ChangeReader<'a, 'r> {
    /// None if there are no changes.
    pub fn new(changes: &'r mut dyn Iterator<Item = Change<'a>>) -> Option<Self> {
        let first = changes.next()?;
        let next = changes.next();
        Some(Self {
            changes,
            next,
            left: HashesLeft::of(first.hashes),
            current: ChangeInWindow::of(&first),
        })
    }

    pub fn is_unfinished(&self) -> bool {
        !self.left.hashes.is_empty() || self.next.is_some()
    }

    /// The change that begins next.
    pub fn following(&self) -> Option<Change<'a>> {
        self.next
    }

    /// Whether the current change has no more blocks.
    #[inline(always)]
    pub fn is_between_changes(&self) -> bool {
        self.left.hashes.is_empty()
    }

    /// Makes `change`, which [`Self::following`] has given, the current one.
    pub fn advance(&mut self, change: Change<'a>) {
        self.next = self.changes.next();
        self.left = HashesLeft::of(change.hashes);
        self.current = ChangeInWindow::of(&change);
    }
}
