//! The whole state of a cell, out of the process: for `Dump`, and for the file that a replica starts from.
//!
//! A dump for a reader is exact: every set is the effect of exactly the events up to its event id.
//! For that, nothing is applied while the one pass over the index runs; look-ups go on. A file need not
//! be: its pass runs beside the appliers, and a worker that moved meanwhile is said to be known up to where it was
//! at the end. Whoever starts from it applies the same events once more, from the log, and since they
//! are idempotent, ends in the same set; until then the worker is not whole.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use arrow_array::RecordBatch;
use arrow_ipc::writer::{FileWriter, StreamWriter};
use arrow_schema::{ArrowError, SchemaRef};
use kvatlas_index::{Blocks, Index, SlotId, Tier, TierSummary, WorkerKey};
use kvatlas_wire::v1;
use prost::Message as _;
use xxhash_rust::xxh3::Xxh3;

use crate::cell::Cell;
use crate::dump_rows::{ROW_HASHES_MAX, Row, Rows, schema};
use crate::lease::{Log, Logs};
use crate::table::Table;
use crate::worker::Worker;

/// What a dump is asked for.
#[derive(Clone, Default, Debug)]
pub struct DumpOptions {
    /// Only these workers; none: all.
    pub workers: BTreeSet<WorkerKey>,
    /// Counts and digests instead of hashes.
    pub digests: bool,
    /// With what a replica starts from besides.
    pub resumable: bool,
}

/// What a file holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Saved {
    /// Its length.
    pub bytes: u64,
    /// XXH3-64 of all of it, seed 0.
    pub checksum: u64,
    /// Its workers, the recently gone included.
    pub workers: u64,
    /// Blocks, each once per holder and tier.
    pub memberships: u64,
}

struct Head {
    key: WorkerKey,
    epoch: u64,
    event_id: u64,
    slot: Option<SlotId>,
    resume: Option<v1::WorkerResume>,
}

impl Head {
    fn of(worker: &Worker, logs: Option<&Logs>) -> Self {
        Self {
            key: worker.key,
            epoch: worker.sequencer.speaker().epoch,
            event_id: worker.sequencer.applied(),
            slot: worker.slot(),
            resume: logs.map(|logs| worker.resume(logs)),
        }
    }
}

enum Set {
    Hashes(Blocks),
    Sums([TierSummary; 4]),
}

/// A state, taken at one moment, as Arrow's batches: iterate.
pub struct Dump {
    schema: SchemaRef,
    heads: Vec<Head>,
    sets: Vec<Set>,
    rows: Rows,
    at: usize,
    tier: usize,
    offset: usize,
    /// Of the tier at hand.
    held: TierSummary,
    memberships: u64,
}

impl Cell {
    /// The state as of one moment: nothing is applied until the pass over the index is done.
    #[must_use]
    pub fn dump(&self, options: &DumpOptions) -> Dump {
        self.with_table(|table| {
            let logs = options.resumable.then_some(&table.logs);
            let wanted = |worker: &&Worker| {
                let named = options.workers.is_empty() || options.workers.contains(&worker.key);
                named && (options.resumable || worker.is_listed())
            };
            let workers = table.workers.values().filter(wanted);
            let heads: Vec<Head> = workers.map(|worker| Head::of(worker, logs)).collect();
            let sets = sets(self.index(), &heads, options.digests);
            Dump::new(schema(&self.config, logs.map(Logs::all)), heads, sets)
        })
    }

    /// Begin to take the state to start from again, while records are being applied.
    #[must_use]
    pub fn take_state(&self) -> Taking {
        // Positions before sets: what is applied later is in the log behind them.
        let (logs, heads) = self.with_table(|table| (table.logs.all().to_vec(), heads(table)));
        let sets = heads.iter().map(|_| Set::Sums(Default::default()));
        Taking {
            logs,
            sets: sets.collect(),
            heads,
        }
    }

    /// Write the state to start from again into a new file, and see it on the disk.
    ///
    /// # Errors
    /// What the file system says; then a part of the file may be there.
    pub fn save(&self, path: &Path) -> io::Result<Saved> {
        let mut taking = self.take_state();
        taking.pass(self, 0, 1);
        let mut dump = taking.finish(self);
        let workers = dump.heads.len() as u64;
        let file = BufWriter::with_capacity(1 << 20, File::create_new(path)?);
        let hashing = Hashing {
            file,
            bytes: 0,
            hash: Xxh3::new(),
        };
        let mut writer = FileWriter::try_new(hashing, &dump.schema).map_err(io_error)?;
        for batch in dump.by_ref() {
            writer.write(&batch?).map_err(io_error)?;
        }
        writer.finish().map_err(io_error)?;
        let Hashing { file, bytes, hash } = writer.into_inner().map_err(io_error)?;
        file.into_inner()
            .map_err(|error| error.into_error())?
            .sync_all()?;
        Ok(Saved {
            bytes,
            checksum: hash.digest(),
            workers,
            memberships: dump.memberships,
        })
    }
}

/// A state to start from again, under way: records may be applied between any two of its steps.
pub struct Taking {
    logs: Vec<Log>,
    heads: Vec<Head>,
    sets: Vec<Set>,
}

impl Taking {
    /// Take what the index holds now of the hashes that fall to `part`, which is below `parts`.
    ///
    /// One pass over all of it visits the index piece by piece, while it changes; who needs to say where
    /// it does so cuts the pass into parts. All of them have to be taken before the end.
    pub fn pass(&mut self, cell: &Cell, part: u64, parts: u64) {
        let fresh = sets(cell.index(), &self.heads, false);
        for (set, mut fresh) in self.sets.iter_mut().zip(fresh) {
            if let Set::Hashes(blocks) = &mut fresh
                && parts > 1
            {
                for tier in blocks {
                    tier.retain(|hash| hash % parts == part);
                }
            }
            set.add(fresh);
        }
    }

    /// The state, to be started from by reading the logs on from the places it was begun at.
    #[must_use]
    pub fn finish(mut self, cell: &Cell) -> Dump {
        let (heads, sets) = (&mut self.heads, &mut self.sets);
        cell.with_table(|table| {
            // Another set by now: these are rare, and taken at this moment instead.
            let mut again = Vec::new();
            for (place, head) in heads.iter_mut().enumerate() {
                let Some(worker) = table.workers.get(&head.key) else {
                    continue;
                };
                let now = Head::of(worker, Some(&table.logs));
                if (now.epoch, now.slot) != (head.epoch, head.slot) {
                    *head = now;
                    again.push(place);
                } else if let (Some(kept), Some(now)) = (&mut head.resume, now.resume) {
                    kept.known_event_id = kept.known_event_id.max(now.known_event_id);
                    kept.base_lost |= now.base_lost;
                }
            }
            let moved: Vec<&Head> = again.iter().map(|&place| &heads[place]).collect();
            let fresh = taken(cell.index(), &moved, false);
            for (place, set) in again.into_iter().zip(fresh) {
                sets[place] = set;
            }
        });
        let schema = schema(&cell.config, Some(&self.logs));
        Dump::new(schema, self.heads, self.sets)
    }
}

impl Set {
    /// What another pass has found besides.
    fn add(&mut self, fresh: Self) {
        match (self, fresh) {
            (Self::Hashes(blocks), Self::Hashes(fresh)) => {
                for (tier, fresh) in blocks.iter_mut().zip(fresh) {
                    tier.extend(fresh);
                }
            }
            (set, fresh) => *set = fresh,
        }
    }
}

fn heads(table: &Table) -> Vec<Head> {
    let workers = table.workers.values();
    workers
        .map(|worker| Head::of(worker, Some(&table.logs)))
        .collect()
}

fn sets(index: &Index, heads: &[Head], digests: bool) -> Vec<Set> {
    taken(index, &heads.iter().collect::<Vec<_>>(), digests)
}

/// The sets of these heads, parallel to them; an empty one for who has none.
fn taken(index: &Index, heads: &[&Head], digests: bool) -> Vec<Set> {
    let slots: Vec<SlotId> = heads.iter().filter_map(|head| head.slot).collect();
    if slots.is_empty() {
        return heads
            .iter()
            .map(|_| Set::Sums(Default::default()))
            .collect();
    }
    let mut held: Box<dyn Iterator<Item = Set>> = if digests {
        Box::new(index.recount(&slots).into_iter().map(Set::Sums))
    } else {
        Box::new(index.blocks_of(&slots).into_iter().map(Set::Hashes))
    };
    let set_of = |head: &&Head| head.slot.and_then(|_| held.next());
    let sets = heads.iter().map(set_of);
    sets.map(|set| set.unwrap_or(Set::Sums(Default::default())))
        .collect()
}

impl Dump {
    fn new(schema: SchemaRef, heads: Vec<Head>, sets: Vec<Set>) -> Self {
        Self {
            schema,
            heads,
            sets,
            rows: Rows::default(),
            at: 0,
            tier: 0,
            offset: 0,
            held: TierSummary::default(),
            memberships: 0,
        }
    }

    /// Move on by one row; false at the end.
    fn step(&mut self) -> bool {
        let (Some(head), Some(set)) = (self.heads.get_mut(self.at), self.sets.get_mut(self.at))
        else {
            return false;
        };
        let tier = Tier::ALL[self.tier];
        let hashes = match set {
            Set::Sums(sums) => {
                self.held = sums[self.tier];
                &[][..]
            }
            Set::Hashes(blocks) => {
                let blocks = &mut blocks[self.tier];
                if self.offset == 0 {
                    blocks.sort_unstable();
                    let digest = blocks.iter().fold(0, |digest, hash| digest ^ hash);
                    let count = blocks.len() as u64;
                    self.held = TierSummary { count, digest };
                }
                blocks.as_slice()
            }
        };
        let held = self.held;
        let to = hashes.len().min(self.offset + ROW_HASHES_MAX);
        if tier == Tier::Device || held.count > 0 {
            let first = tier == Tier::Device && self.offset == 0;
            let resume = head.resume.take_if(|_| first);
            let row = Row {
                key: head.key,
                tier,
                epoch: head.epoch,
                event_id: head.event_id,
                held,
            };
            let resume = resume.map(|resume| resume.encode_to_vec());
            self.rows.push(row, &hashes[self.offset..to], resume);
        }
        self.offset = to;
        if to == hashes.len() {
            self.memberships += held.count;
            if let Set::Hashes(blocks) = set {
                // Memory goes as it is written.
                blocks[self.tier] = Vec::new();
            }
            (self.offset, self.tier) = (0, self.tier + 1);
        }
        if self.tier == Tier::ALL.len() {
            (self.at, self.tier) = (self.at + 1, 0);
        }
        true
    }
}

impl Iterator for Dump {
    type Item = io::Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rows.is_full() && self.step() {}
        let rows = !self.rows.is_empty();
        rows.then(|| self.rows.take(&self.schema).map_err(io_error))
    }
}

/// A dump as the slices of one Arrow IPC stream, each of about a mebibyte: iterate.
pub struct DumpStream {
    dump: Dump,
    writer: StreamWriter<Vec<u8>>,
    over: bool,
}

impl DumpStream {
    /// The stream of this dump.
    ///
    /// # Errors
    /// None that a valid schema leaves possible.
    pub fn new(dump: Dump) -> io::Result<Self> {
        let writer = StreamWriter::try_new(Vec::new(), &dump.schema).map_err(io_error)?;
        Ok(Self {
            dump,
            writer,
            over: false,
        })
    }

    fn slice(&mut self) -> io::Result<Vec<u8>> {
        match self.dump.next() {
            Some(batch) => self.writer.write(&batch?).map_err(io_error)?,
            None => {
                self.over = true;
                self.writer.finish().map_err(io_error)?;
            }
        }
        Ok(std::mem::take(self.writer.get_mut()))
    }
}

impl Iterator for DumpStream {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.over).then(|| self.slice().inspect_err(|_| self.over = true))
    }
}

/// Hashes what it writes.
struct Hashing {
    file: BufWriter<File>,
    bytes: u64,
    hash: Xxh3,
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn io_error(error: ArrowError) -> io::Error {
    match error {
        ArrowError::IoError(_, error) => error,
        other => io::Error::other(other),
    }
}
