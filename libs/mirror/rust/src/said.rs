//! Collects what the mirror has to say into as few operations as say the same, as columns.
//!
//! A chain of blocks stored one by one is one `Store`, removals on one tier are one `Remove`. The
//! order never changes, so every border between two operations is a state that the mirror was in.

use crate::model::Tier;

/// Operations in a batch at most.
pub const BATCH_EVENTS_MAX: usize = 4_096;
/// Hashes in a batch at most, and so in an operation.
pub const BATCH_HASHES_MAX: usize = 65_536;

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A chain, head first, below the parent; None: it begins a prompt.
    Store(Option<u64>),
    /// Tail first.
    Remove,
    /// Everything, or everything on a tier.
    Clear,
}

/// One operation; its hashes follow those of the operation before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// What it does.
    pub kind: Kind,
    /// None only in a `Clear` of all tiers.
    pub tier: Option<Tier>,
    /// How many hashes it has.
    pub hashes: u32,
}

/// What was said and not yet taken.
#[derive(Default, Debug)]
pub struct Said {
    operations: Vec<Operation>,
    hashes: Vec<u64>,
    open: bool,
}

impl Said {
    /// All operations, in order.
    #[must_use]
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Their hashes, in order.
    #[must_use]
    pub fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// Whether what waits fills a batch.
    #[must_use]
    pub fn is_batch_full(&self) -> bool {
        self.operations.len() >= BATCH_EVENTS_MAX || self.hashes.len() >= BATCH_HASHES_MAX
    }

    /// Forgets all that was said.
    pub fn clear(&mut self) {
        self.operations.clear();
        self.hashes.clear();
        self.open = false;
    }

    /// Cuts what waits into batches: the operations of each, and where their hashes lie.
    pub fn batches(&self) -> impl Iterator<Item = (&[Operation], &[u64])> {
        let mut rest = &self.operations[..];
        let mut at = 0;
        std::iter::from_fn(move || {
            let (batch, after) = rest.split_at(one_batch(rest));
            if batch.is_empty() {
                return None;
            }
            rest = after;
            let start = at;
            at += batch.iter().map(|each| each.hashes as usize).sum::<usize>();
            Some((batch, &self.hashes[start..at]))
        })
    }

    pub(crate) fn store(&mut self, parent: Option<u64>, sequence: u64, tier: Tier) {
        if self.open
            && parent.is_some()
            && self.hashes.last().copied() == parent
            && let Some(last) = self.operations.last_mut()
            && matches!(last.kind, Kind::Store(_))
            && last.tier == Some(tier)
            && (last.hashes as usize) < BATCH_HASHES_MAX
        {
            last.hashes += 1;
        } else {
            self.begin(Kind::Store(parent), Some(tier), 1);
        }
        self.hashes.push(sequence);
    }

    pub(crate) fn remove(&mut self, sequence: u64, tier: Tier) {
        if self.open
            && let Some(last) = self.operations.last_mut()
            && last.kind == Kind::Remove
            && last.tier == Some(tier)
            && (last.hashes as usize) < BATCH_HASHES_MAX
        {
            last.hashes += 1;
        } else {
            self.begin(Kind::Remove, Some(tier), 1);
        }
        self.hashes.push(sequence);
    }

    pub(crate) fn empty(&mut self, tier: Option<Tier>) {
        self.begin(Kind::Clear, tier, 0);
    }

    /// What comes next is said apart, so that what is said does not depend on who batches when.
    pub(crate) fn end(&mut self) {
        self.open = false;
    }

    fn begin(&mut self, kind: Kind, tier: Option<Tier>, hashes: u32) {
        self.open = true;
        self.operations.push(Operation { kind, tier, hashes });
    }
}

/// How many operations the next batch has.
fn one_batch(operations: &[Operation]) -> usize {
    let mut hashes = 0;
    for (count, operation) in operations.iter().enumerate() {
        hashes += operation.hashes as usize;
        if count > 0 && (count == BATCH_EVENTS_MAX || hashes > BATCH_HASHES_MAX) {
            return count;
        }
    }
    operations.len()
}
