//! A probe: the search for the entry of one key by a writer, line by line.
//!
//! Between two lines its caller may let other probes go on, so that the cache misses of many overlap ([`crate::apply`]).

use crate::memory::prefetch::prefetch;
use crate::memory::reclamation::Pin;
use crate::table::directory::{Directory, Home};
use crate::table::entry::Entry;
use crate::table::line::{ENTRIES_PER_LINE, Line};
use crate::table::lines::Lines;
use crate::table::spilled_sets::SpilledSets;

/// A search for the entry of a key, between two lines.
#[derive(Clone, Copy, Default)]
pub(crate) struct Probe<'p> {
    pub hash: u64,
    lines: Lines<'p>,
    shard: u16,
    change: u16,
    /// Number of the probe within its call.
    pub order: u32,
    /// The line that it reads next.
    at: u32,
    /// Lines that were read, full of other keys.
    step: u32,
    /// The first entry on the way that may take another key, plus one; 0 if there was none.
    tombstone: u32,
}

/// The outcome of a look at one line.
pub(crate) enum ProbeStep<Changed = bool> {
    /// The probe reads another line.
    NextLine,
    /// The probe may take a tombstone on a line that it has passed: by `reuse_tombstone`, if no other probe for the same
    /// hash is in flight. Such a one may have passed that line too, or be short of it.
    ReuseTombstone,
    /// The probe has ended, and changed so much: whether a holder was added or removed.
    Done(Changed),
    /// The probe must begin anew: its table was resized, or the entry that it meant to fill is taken. Until it has ended,
    /// no probe for the same hash that began after it may go on.
    Restart,
}

impl ProbeStep {
    /// The same step, with `with(changed)` as its result.
    #[inline(always)]
    pub fn map<C>(self, with: impl FnOnce(bool) -> C) -> ProbeStep<C> {
        match self {
            Self::NextLine => ProbeStep::NextLine,
            Self::ReuseTombstone => ProbeStep::ReuseTombstone,
            Self::Done(changed) => ProbeStep::Done(with(changed)),
            Self::Restart => ProbeStep::Restart,
        }
    }
}

impl<'p> Probe<'p> {
    /// The start of a probe for a block of change number `change`. [`Self::fetch`] starts fetching its first line.
    #[inline(always)]
    pub fn start(hash: u64, change: usize, directory: &Directory, pin: &'p Pin<'_>) -> Self {
        let Home { shard, fraction } = directory.home_of(hash);
        let lines = directory.lines(shard, pin).unwrap_or_default();
        Self {
            hash,
            lines,
            // There are at most 2^16 shards, and fewer changes; a shard's table has far less than 2^32 entries.
            shard: shard as u16,
            change: change as u16,
            order: 0,
            at: lines.home_line(fraction) as u32,
            step: 0,
            tombstone: 0,
        }
    }

    /// The same probe from its start.
    pub fn restarted(&self, directory: &Directory, pin: &'p Pin<'_>) -> Self {
        Self {
            order: self.order,
            ..Self::start(self.hash, self.change(), directory, pin)
        }
    }

    /// Starts fetching the line that it reads next.
    #[inline(always)]
    pub fn fetch(&self) {
        if let Some(line) = self.line() {
            prefetch(line);
        }
    }

    pub fn shard(&self) -> usize {
        self.shard.into()
    }

    /// Number of the change that the block belongs to.
    pub fn change(&self) -> usize {
        self.change.into()
    }

    pub fn lines(&self) -> Lines<'p> {
        self.lines
    }

    /// The line that it reads next; none if the shard has no table.
    #[inline(always)]
    pub fn line(&self) -> Option<&'p Line> {
        self.lines.line(self.at as usize)
    }

    /// Goes on to the next line, and starts fetching it.
    #[inline(always)]
    pub fn advance(&mut self, directory: &Directory) {
        self.step += 1;
        let Home { fraction, .. } = directory.home_of(self.hash);
        self.at = self.lines.next_line(self.at as usize, fraction, self.step) as u32;
        self.fetch();
    }

    /// Remembers the first tombstone on the way that may take another key.
    #[inline(always)]
    pub fn note_tombstone(&mut self, line: &Line, epoch: u64) {
        if self.tombstone == 0 {
            let free = line.free_entries(epoch);
            if free != 0 {
                self.tombstone = self.at * ENTRIES_PER_LINE as u32 + free.trailing_zeros() + 1;
            }
        }
    }

    #[inline(always)]
    pub fn has_tombstone(&self) -> bool {
        self.tombstone != 0
    }

    pub fn tombstone(&self, spilled: &'p SpilledSets) -> Option<Entry<'p>> {
        let at = (self.tombstone as usize).checked_sub(1)?;
        self.lines.entry(at, spilled)
    }
}
