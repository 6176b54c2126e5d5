//! An event log as its clients see it: ordered entries, a trimmed beginning, a tail that can be lost, and
//! times without answers.

use std::collections::VecDeque;
use std::rc::Rc;

/// A sealed record; every copy is the same bytes.
pub type Record = Rc<[u8]>;

/// The answer to one read.
#[derive(Debug)]
pub struct Slice {
    /// The records, each with its append time.
    pub records: Vec<(Record, u64)>,
    /// Whether nothing newer was there.
    pub at_head: bool,
    /// The offset of the next read.
    pub next: LogOffset,
    /// Whether unread entries are gone.
    pub trimmed: bool,
}

/// An offset in a log, with the identity of the log.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LogOffset {
    identity: u64,
    offset: u64,
}

impl LogOffset {
    /// The offset as a state keeps it: the log's identity, and an entry.
    #[must_use]
    pub fn to_position(self) -> (String, String) {
        (self.identity.to_string(), self.offset.to_string())
    }

    /// The offset of a state.
    #[must_use]
    pub fn from_position(identity: &str, entry: &str) -> Option<Self> {
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
    entries_max: usize,
    /// End of the time without answers.
    pub down_until_ms: u64,
    skew_ms: i64,
}

impl Log {
    /// An empty log that keeps this many entries.
    #[must_use]
    pub fn new(entries_max: usize, skew_ms: i64) -> Self {
        Self {
            entries: VecDeque::new(),
            first: 0,
            identity: 1,
            entries_max,
            down_until_ms: 0,
            skew_ms,
        }
    }

    /// Whether it answers.
    #[must_use]
    pub fn answers(&self, now_ms: u64) -> bool {
        now_ms >= self.down_until_ms
    }

    /// Appends records; returns the log's identity, so that a writer notices another log. None: no answer, and nothing
    /// was stored.
    pub fn append(&mut self, records: &[Record], now_ms: u64) -> Option<u64> {
        if !self.answers(now_ms) {
            return None;
        }
        let at_ms = now_ms.saturating_add_signed(self.skew_ms);
        let entries = records.iter().map(|record| (record.clone(), at_ms));
        self.entries.extend(entries);
        while self.entries.len() > self.entries_max {
            self.entries.pop_front();
            self.first += 1;
        }
        Some(self.identity)
    }

    /// Reads at most `records_max` entries. An offset that no longer exists means the beginning. None: no answer.
    #[must_use]
    pub fn read(&self, at: LogOffset, records_max: usize, now_ms: u64) -> Option<Slice> {
        if !self.answers(now_ms) {
            return None;
        }
        let end = self.first + self.entries.len() as u64;
        let is_there = at.identity == self.identity && (self.first..=end).contains(&at.offset);
        let offset = if is_there { at.offset } else { self.first };
        let skipped = (offset - self.first) as usize;
        let rest = self.entries.iter().skip(skipped);
        let records: Vec<_> = rest.take(records_max).cloned().collect();
        let offset = offset + records.len() as u64;
        Some(Slice {
            trimmed: at.identity == self.identity && at.offset < self.first,
            records,
            at_head: offset == end,
            next: LogOffset {
                identity: self.identity,
                offset,
            },
        })
    }

    /// Whether a reader at this offset has passed `head`.
    #[must_use]
    pub fn has_passed(&self, at: LogOffset, head: u64) -> bool {
        at.identity != self.identity || at.offset >= head.min(self.head())
    }

    /// The offset after the newest entry.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Loses the newest entries, as after a broker's crash; clients are not told.
    pub fn lose_tail(&mut self, records: usize) {
        let rest = self.entries.len().saturating_sub(records);
        self.entries.truncate(rest);
    }

    /// Loses everything; the identity changes.
    pub fn lose_all(&mut self) {
        self.entries.clear();
        self.first = 0;
        self.identity += 1;
    }
}
