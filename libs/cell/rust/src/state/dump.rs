//! A state as Arrow batches, and as a stream of bytes.
//!
//! A [`Dump`] made by [`Dump::new`] is exact: every set is the effect of exactly the events up to its event id, since the
//! worker table's lock is held for the one pass over the index. Look-ups go on. Equal states give equal bytes.

use std::collections::BTreeSet;
use std::io;

use arrow_array::RecordBatch;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, SchemaRef};
use kvatlas_index::{Tier, TierSummary, WorkerKey};
use prost::Message as _;

use super::columns::{ROW_HASHES_MAX, Row, Rows, schema};
use super::dumped_worker::{DumpedWorker, SetContent, read_digests, read_hashes};
use crate::cell::Cell;
use crate::leases::logs::Logs;
use crate::workers::worker::Worker;

/// The content of a dump.
#[derive(Clone, Default, Debug)]
pub struct DumpOptions {
    /// Only these workers; empty: all.
    pub workers: BTreeSet<WorkerKey>,
    /// Counts and digests instead of hashes.
    pub digests: bool,
    /// Also the facts that a replica needs to start from the dump.
    pub resumable: bool,
}

/// A state as Arrow batches: an iterator.
pub struct Dump {
    schema: SchemaRef,
    workers: Vec<DumpedWorker>,
    rows: Rows,
    /// The next row: its worker, its tier, and its first hash.
    worker: usize,
    tier: usize,
    offset: usize,
    /// Count and digest of that tier.
    summary: TierSummary,
    memberships: u64,
}

impl Dump {
    /// The state of this moment. No record is applied until the pass over the index is done.
    #[must_use]
    pub fn new(cell: &Cell, options: &DumpOptions) -> Self {
        cell.with_table(|table| {
            let logs = options.resumable.then_some(&table.logs);
            let is_wanted = |worker: &&Worker| {
                let is_named = options.workers.is_empty() || options.workers.contains(&worker.key);
                is_named && (options.resumable || worker.is_listed())
            };
            let workers = table.workers.values().filter(is_wanted);
            let mut workers: Vec<_> = workers
                .map(|worker| DumpedWorker::new(worker, logs))
                .collect();
            let all = workers.iter_mut().collect();
            if options.digests {
                read_digests(cell.index(), all);
            } else {
                read_hashes(cell.index(), all, (0, 1));
            }
            Self::of(schema(&cell.config, logs.map(Logs::all)), workers)
        })
    }

    pub(super) fn of(schema: SchemaRef, workers: Vec<DumpedWorker>) -> Self {
        Self {
            schema,
            workers,
            rows: Rows::default(),
            worker: 0,
            tier: 0,
            offset: 0,
            summary: TierSummary::default(),
            memberships: 0,
        }
    }

    /// The columns of the batches.
    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Number of workers.
    pub(super) fn workers(&self) -> u64 {
        self.workers.len() as u64
    }

    /// Blocks in the batches so far, each once per holder and tier.
    pub(super) fn memberships(&self) -> u64 {
        self.memberships
    }

    /// Adds the next row; false at the end.
    fn add_row(&mut self) -> bool {
        let Some(worker) = self.workers.get_mut(self.worker) else {
            return false;
        };
        let tier = Tier::ALL[self.tier];
        let hashes = match &mut worker.content {
            SetContent::Digests(digests) => {
                self.summary = digests[self.tier];
                &[][..]
            }
            SetContent::Hashes(blocks) => {
                let blocks = &mut blocks[self.tier];
                if self.offset == 0 {
                    blocks.sort_unstable();
                    let digest = blocks.iter().fold(0, |digest, hash| digest ^ hash);
                    let count = blocks.len() as u64;
                    self.summary = TierSummary { count, digest };
                }
                blocks.as_slice()
            }
        };
        let summary = self.summary;
        let end = hashes.len().min(self.offset + ROW_HASHES_MAX);
        if tier == Tier::Device || summary.count > 0 {
            let is_first = tier == Tier::Device && self.offset == 0;
            let resume = worker.resume.take_if(|_| is_first);
            let row = Row {
                key: worker.key,
                tier,
                epoch: worker.epoch,
                event_id: worker.event_id,
                summary,
            };
            let resume = resume.map(|resume| resume.encode_to_vec());
            self.rows.push(row, &hashes[self.offset..end], resume);
        }
        self.offset = end;
        if end == hashes.len() {
            self.memberships += summary.count;
            if let SetContent::Hashes(blocks) = &mut worker.content {
                // Frees the memory of what is written.
                blocks[self.tier] = Vec::new();
            }
            (self.offset, self.tier) = (0, self.tier + 1);
        }
        if self.tier == Tier::ALL.len() {
            (self.worker, self.tier) = (self.worker + 1, 0);
        }
        true
    }
}

impl Iterator for Dump {
    type Item = io::Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rows.is_full() && self.add_row() {}
        let has_rows = !self.rows.is_empty();
        has_rows.then(|| self.rows.take(&self.schema).map_err(io_error))
    }
}

/// A dump as one Arrow IPC stream, in slices of about a mebibyte: an iterator.
pub struct DumpStream {
    dump: Dump,
    writer: StreamWriter<Vec<u8>>,
    is_over: bool,
}

impl DumpStream {
    /// The stream of this dump.
    ///
    /// # Errors
    /// None with a valid schema.
    pub fn new(dump: Dump) -> io::Result<Self> {
        let writer = StreamWriter::try_new(Vec::new(), &dump.schema).map_err(io_error)?;
        Ok(Self {
            dump,
            writer,
            is_over: false,
        })
    }

    fn slice(&mut self) -> io::Result<Vec<u8>> {
        match self.dump.next() {
            Some(batch) => self.writer.write(&batch?).map_err(io_error)?,
            None => {
                self.is_over = true;
                self.writer.finish().map_err(io_error)?;
            }
        }
        Ok(std::mem::take(self.writer.get_mut()))
    }
}

impl Iterator for DumpStream {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.is_over).then(|| self.slice().inspect_err(|_| self.is_over = true))
    }
}

/// The error of the file behind an Arrow error, if there is one.
pub(super) fn io_error(error: ArrowError) -> io::Error {
    match error {
        ArrowError::IoError(_, error) => error,
        other => io::Error::other(other),
    }
}
