//! An event log as its clients see it: entries in order, a head that is trimmed, a tail that can be
//! lost, and times in which nobody gets an answer.

use std::collections::VecDeque;
use std::rc::Rc;

/// A sealed record; every copy is the same bytes.
pub type Record = Rc<[u8]>;

/// What a reader gets.
#[derive(Debug)]
pub struct Slice {
    /// Each with the time at which the log took it.
    pub records: Vec<(Record, u64)>,
    /// Nothing newer was there.
    pub at_head: bool,
    /// Where to read on.
    pub place: Place,
    /// Entries are gone that were to be read.
    pub trimmed: bool,
}

/// Where a reader stands, in which log.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Place {
    identity: u64,
    offset: u64,
}

impl Place {
    /// As a state keeps it: the log's identity, and an entry.
    #[must_use]
    pub fn said(self) -> (String, String) {
        (self.identity.to_string(), self.offset.to_string())
    }

    /// The place that was said so.
    #[must_use]
    pub fn read(identity: &str, entry: &str) -> Option<Self> {
        Some(Self {
            identity: identity.parse().ok()?,
            offset: entry.parse().ok()?,
        })
    }
}

/// One log.
#[derive(Debug)]
pub struct Log {
    entries: VecDeque<(Record, u64)>,
    first: u64,
    identity: u64,
    keeps: usize,
    /// Until when it does not answer.
    pub down_until_ms: u64,
    skew_ms: i64,
}

impl Log {
    /// An empty log that keeps about so many entries.
    #[must_use]
    pub fn new(keeps: usize, skew_ms: i64) -> Self {
        Self {
            entries: VecDeque::new(),
            first: 0,
            identity: 1,
            keeps,
            down_until_ms: 0,
            skew_ms,
        }
    }

    /// Whether it answers.
    #[must_use]
    pub fn answers(&self, now_ms: u64) -> bool {
        now_ms >= self.down_until_ms
    }

    /// Append; the identity tells a writer whether it still is the log that it was.
    /// `None`: no answer, and nothing was stored.
    pub fn append(&mut self, records: &[Record], now_ms: u64) -> Option<u64> {
        if !self.answers(now_ms) {
            return None;
        }
        let at_ms = now_ms.saturating_add_signed(self.skew_ms);
        let entries = records.iter().map(|record| (record.clone(), at_ms));
        self.entries.extend(entries);
        while self.entries.len() > self.keeps {
            self.entries.pop_front();
            self.first += 1;
        }
        Some(self.identity)
    }

    /// Read at most so many entries. A place that is no more is the beginning. `None`: no answer.
    #[must_use]
    pub fn read(&self, place: Place, records_max: usize, now_ms: u64) -> Option<Slice> {
        if !self.answers(now_ms) {
            return None;
        }
        let end = self.first + self.entries.len() as u64;
        let is_there =
            place.identity == self.identity && (self.first..=end).contains(&place.offset);
        let offset = if is_there { place.offset } else { self.first };
        let skipped = (offset - self.first) as usize;
        let rest = self.entries.iter().skip(skipped);
        let records: Vec<_> = rest.take(records_max).cloned().collect();
        let offset = offset + records.len() as u64;
        Some(Slice {
            trimmed: place.identity == self.identity && place.offset < self.first,
            records,
            at_head: offset == end,
            place: Place {
                identity: self.identity,
                offset,
            },
        })
    }

    /// Where a reader that begins now has caught up.
    #[must_use]
    pub fn has_passed(&self, place: Place, head: u64) -> bool {
        place.identity != self.identity || place.offset >= head.min(self.head())
    }

    /// The place behind its newest entry.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// The newest entries are gone, as after a broker's crash. Nobody is told.
    pub fn lose_tail(&mut self, records: usize) {
        let keeps = self.entries.len().saturating_sub(records);
        self.entries.truncate(keeps);
    }

    /// Everything is gone; the identity tells.
    pub fn lose_all(&mut self) {
        self.entries.clear();
        self.first = 0;
        self.identity += 1;
    }
}
