//! The format of an operation stream: queries, stores and removals of a whole fleet on one timeline, as a file.
//!
//! The format, version 1, little-endian, everything a multiple of eight bytes. A header of 128 bytes:
//!
//! ```text
//!   0  8 bytes   magic "KVOPS\0\0\0"            48  u64      number of records
//!   8  u32 u32   version 1, header size 128     56  u64      time of the last record, ns
//!  16  u32 u32   workers, tokens per block      64  3 x u64  query, store, remove records
//!  24  u32 u32   tokens per trace id, replicas  88  3 x u64  blocks in them
//!  32  u64       a worker's capacity, blocks   112  u64      flags: 1 workers by request, 2 no hub ids
//!  40  u64       seed                          120  u64      0
//! ```
//!
//! then records by time, each of 32 bytes and its hashes:
//!
//! ```text
//!   0  u64           time, ns                   16  u32 + 4 x 0  n
//!   8  u8 + 3 x 0    kind                       24  u64          store: parent's sequence hash, 0 = none
//!  12  u32           worker                     32  n x u64      hashes
//! ```
//!
//! A query (kind 0) and a store (1) carry chunk hashes, a remove (2) sequence hashes. Reading is strict: any deviation is an error
//! that names its place.

use thiserror::Error;

/// Constants of the format.
pub(crate) const MAGIC: [u8; 8] = *b"KVOPS\0\0\0";
pub(crate) const VERSION: u32 = 1;
pub(crate) const HEADER_BYTES: usize = 128;
pub(crate) const RECORD_WORDS: usize = 4;

/// Workers were assigned to requests one by one, not to sessions.
pub const FLAG_BY_REQUEST: u64 = 1;
/// Ids that occur in more than 1 % of all prompts were left out.
pub const FLAG_NO_HUB: u64 = 2;

/// Origin of a stream. To play it, only the number of workers is needed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Shape {
    /// Records name workers below this.
    pub workers: u32,
    /// Tokens of one index block.
    pub block_tokens: u32,
    /// Tokens that one id of the trace stands for.
    pub id_tokens: u32,
    /// Times the trace was repeated with other ids.
    pub replicas: u32,
    /// Blocks that a worker's cache holds.
    pub capacity: u64,
    /// Seed of the random choices.
    pub seed: u64,
    /// [`FLAG_BY_REQUEST`], [`FLAG_NO_HUB`].
    pub flags: u64,
}

/// Records of each kind: queries, stores, removes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    /// How many records.
    pub records: [u64; 3],
    /// How many blocks in them.
    pub blocks: [u64; 3],
}

/// The operation of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op<'a> {
    /// A prompt to look up, by chunk hashes.
    Query(&'a [u64]),
    /// Blocks that the worker stores.
    Store {
        /// Sequence hash of the block before the first.
        parent: Option<u64>,
        /// Chunk hashes.
        chunks: &'a [u64],
    },
    /// Sequence hashes of blocks that the worker removes.
    Remove(&'a [u64]),
}

impl<'a> Op<'a> {
    /// BlockPlace of this kind in [`Totals`].
    #[must_use]
    pub fn kind(self) -> usize {
        match self {
            Self::Query(_) => 0,
            Self::Store { .. } => 1,
            Self::Remove(_) => 2,
        }
    }

    /// The hashes of its blocks.
    #[must_use]
    pub fn hashes(self) -> &'a [u64] {
        match self {
            Self::Query(hashes) | Self::Remove(hashes) => hashes,
            Self::Store { chunks, .. } => chunks,
        }
    }
}

/// One record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// Nanoseconds from the first record.
    pub time_ns: u64,
    /// The worker that stored or removed, or served the query.
    pub worker: u32,
    /// The operation.
    pub op: Op<'a>,
}

/// A stream in memory: the records as they are in the file, in words of eight bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpStream {
    pub(crate) shape: Shape,
    pub(crate) totals: Totals,
    pub(crate) span_ns: u64,
    pub(crate) words: Vec<u64>,
}

impl OpStream {
    /// Origin of the stream.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Numbers of records and blocks.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Time of the last record, nanoseconds.
    #[must_use]
    pub fn span_ns(&self) -> u64 {
        self.span_ns
    }

    /// The records, in order of time.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        let mut rest = &self.words[..];
        std::iter::from_fn(move || {
            let (record, after) = split_record(rest)?;
            rest = after;
            Some(record)
        })
    }
}

/// The first record of words that were checked to be records, and the words after it.
fn split_record(words: &[u64]) -> Option<(Record<'_>, &[u64])> {
    let (head, rest) = words.split_first_chunk::<RECORD_WORDS>()?;
    let [time_ns, kind_and_worker, count, parent] = *head;
    let (hashes, rest) = rest.split_at_checked(count as usize)?;
    let op = match kind_and_worker as u32 {
        0 => Op::Query(hashes),
        1 => Op::Store {
            parent: (parent != 0).then_some(parent),
            chunks: hashes,
        },
        _ => Op::Remove(hashes),
    };
    let record = Record {
        time_ns,
        worker: (kind_and_worker >> 32) as u32,
        op,
    };
    Some((record, rest))
}

/// Error of reading or writing a stream. Offsets are in bytes.
#[derive(Debug, Error)]
pub enum StreamError {
    /// The source or the sink failed.
    #[error("at byte {offset}: {source}")]
    Io {
        /// Offset up to which it succeeded.
        offset: u64,
        /// The failure.
        source: std::io::Error,
    },
    /// The bytes end too early.
    #[error("at byte {offset}: the stream ends within {what}")]
    Truncated {
        /// Offset of the end.
        offset: u64,
        /// The part that was being read.
        what: &'static str,
    },
    /// A field has a value that it may not have.
    #[error("at byte {offset}: {field} is {found}, expected {expected}")]
    Field {
        /// Offset of the field.
        offset: u64,
        /// Name of the field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// Allowed values.
        expected: String,
    },
    /// Bytes follow the last record.
    #[error("at byte {offset}: bytes follow the last record")]
    Trailing {
        /// Offset of the end of the last record.
        offset: u64,
    },
    /// A record that the format cannot hold.
    #[error("record {number}: {reason}")]
    Unrecordable {
        /// Number of the record, from 0.
        number: u64,
        /// The reason.
        reason: &'static str,
    },
}
