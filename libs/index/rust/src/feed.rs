//! The runs of one call, block by block.

use kvatlas_hashing::sequence_step;

use crate::roster::Change;
use crate::types::{Hashes, Run, SlotId, Tier};

/// Whose blocks are changed how, and what came of it in this window.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub slot: SlotId,
    pub tier: Tier,
    pub stores: bool,
    pub change: Change,
}

impl Part {
    pub fn new(slot: SlotId, tier: Tier, stores: bool) -> Self {
        Self {
            slot,
            tier,
            stores,
            change: Change::default(),
        }
    }
}

/// The hashes of a run that have not begun.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    hashes: &'a [u64],
    /// They are chunk hashes.
    chained: bool,
    /// The sequence hash before the next chunk, if any.
    parent: Option<u64>,
}

impl<'a> Left<'a> {
    pub const NOTHING: Self = Self {
        hashes: &[],
        chained: false,
        parent: None,
    };

    pub fn of(hashes: Hashes<'a>) -> Self {
        match hashes {
            Hashes::Sequences(hashes) => Self {
                hashes,
                ..Self::NOTHING
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
        // Computed while earlier ones wait for memory.
        let hash = self
            .parent
            .map_or(first, |parent| sequence_step(parent, first));
        self.parent = Some(hash);
        Some(hash)
    }
}

/// The runs of one call, as far as they have not begun.
pub(crate) struct Feed<'a, 'r> {
    runs: &'r mut dyn Iterator<Item = Run<'a>>,
    /// What follows the run that is under way.
    next: Option<Run<'a>>,
    /// The run under way, whose part has the highest number.
    pub left: Left<'a>,
    pub part: Part,
}

impl<'a, 'r> Feed<'a, 'r> {
    /// None if there are no runs.
    pub fn new(runs: &'r mut dyn Iterator<Item = Run<'a>>) -> Option<Self> {
        let first = runs.next()?;
        let next = runs.next();
        Some(Self {
            runs,
            next,
            left: Left::of(first.hashes),
            part: Part::new(first.slot, first.tier, first.stores),
        })
    }

    pub fn is_unfinished(&self) -> bool {
        !self.left.hashes.is_empty() || self.next.is_some()
    }

    /// The run that begins next.
    pub fn following(&self) -> Option<Run<'a>> {
        self.next
    }

    /// Whether the run under way has no more blocks.
    #[inline(always)]
    pub fn is_between_runs(&self) -> bool {
        self.left.hashes.is_empty()
    }

    /// Takes up the next run.
    pub fn advance(&mut self, run: Run<'a>) {
        self.next = self.runs.next();
        self.left = Left::of(run.hashes);
        self.part = Part::new(run.slot, run.tier, run.stores);
    }
}
