//! Reads a state into an empty cell: how a replica starts from a file or from a peer.
//!
//! The cell shows nothing of the state before all of it is read and verified. Sets go into slots of their own, which are
//! given back if the rest cannot be used. Every set is checked against the count and the digest of its rows.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{Array as _, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::reader::{FileReader, StreamDecoder};
use arrow_schema::{ArrowError, DataType, Schema};
use kvatlas_events::sequencer::{ResumePoint, SequencerState};
use kvatlas_index::{SlotId, Tier, TierSummary, WorkerKey};
use kvatlas_wire::v1;
use prost::Message as _;

use super::columns::{FORMAT, TIER_NAMES, schema};
use super::file::checksum_of;
use super::worker_resume;
use crate::cell::Cell;
use crate::workers::worker::Worker;

/// The kind of reason why a state cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It cannot be read, or not to its end.
    Unreadable,
    /// Its bytes are not those that were written.
    Corrupt,
    /// It is not a state of a cell.
    Foreign,
    /// It has a format that this build does not read.
    OtherVersion,
    /// It belongs to another cell, or to other terms.
    OtherCell,
}

impl Refusal {
    /// The reason as a counter's label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Corrupt => "corrupt",
            Self::Foreign => "foreign",
            Self::OtherVersion => "other_version",
            Self::OtherCell => "other_cell",
        }
    }
}

/// Why a state cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RestoreError {
    /// The reason, for a counter.
    pub refusal: Refusal,
    /// The reason in words, for the operator.
    pub text: String,
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The content of a restored state.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Restored {
    /// Number of workers, including those whose engines have gone.
    pub workers: u64,
    /// Number of blocks, each once per holder and tier.
    pub memberships: u64,
    /// By transport, the log's identity and the newest applied entry.
    pub positions: HashMap<String, (String, String)>,
}

/// A restoration under way. Dropping it gives it up.
pub struct Restore {
    cell: Arc<Cell>,
    decoder: StreamDecoder,
    positions: Option<HashMap<String, (String, String)>>,
    /// By transport, the log's time. States of early builds have none.
    times: Vec<(String, u64)>,
    staged: Vec<StagedWorker>,
}

/// One worker whose rows are read, but not shown yet.
struct StagedWorker {
    key: WorkerKey,
    point: ResumePoint,
    resume: v1::WorkerResume,
    slot: Option<SlotId>,
    /// Count and digest by tier, as its rows state them.
    stated: [TierSummary; 4],
}

impl Restore {
    /// Begins a restoration into this cell, which must have no worker yet.
    #[must_use]
    pub fn new(cell: Arc<Cell>) -> Self {
        Self {
            cell,
            decoder: StreamDecoder::new(),
            positions: None,
            times: Vec::new(),
            staged: Vec::new(),
        }
    }

    /// Reads a whole file whose bytes must have this checksum.
    ///
    /// # Errors
    /// The file cannot be used; drop the restoration then.
    pub fn read_file(&mut self, path: &Path, checksum: u64) -> Result<(), RestoreError> {
        let unreadable = |error: std::io::Error| refuse(Refusal::Unreadable, error);
        let mut file = File::open(path).map_err(unreadable)?;
        // First, since the reader below trusts the lengths in the file.
        if checksum_of(&mut file).map_err(unreadable)? != checksum {
            return Err(refuse(
                Refusal::Corrupt,
                "its bytes do not match its checksum",
            ));
        }
        let reader = FileReader::try_new(file, None).map_err(|error| self.refusal(error))?;
        self.check_schema(&reader.schema())?;
        for batch in reader {
            let batch = batch.map_err(|error| self.refusal(error))?;
            self.take(&batch)?;
        }
        Ok(())
    }

    /// Reads the next bytes of a dump's stream, cut anywhere.
    ///
    /// # Errors
    /// The dump cannot be used; drop the restoration then.
    pub fn feed(&mut self, bytes: Vec<u8>) -> Result<(), RestoreError> {
        let mut buffer = Buffer::from(bytes);
        while !buffer.is_empty() {
            let batch = self.decode(&mut buffer)?;
            if self.positions.is_none()
                && let Some(schema) = self.decoder.schema()
            {
                self.check_schema(&schema)?;
            }
            if let Some(batch) = batch {
                self.take(&batch)?;
            }
        }
        Ok(())
    }

    /// Ends the restoration: the cell has the state from now on.
    ///
    /// # Errors
    /// The state is incomplete, or its last set does not match its digest.
    pub fn finish(mut self, now_ms: u64) -> Result<Restored, RestoreError> {
        self.decoder
            .finish()
            .map_err(|error| refuse(Refusal::Unreadable, error))?;
        if !self.has_ended() {
            return Err(refuse(Refusal::Unreadable, "it ends early"));
        }
        let Some(positions) = self.positions.take() else {
            return Err(refuse(Refusal::Unreadable, "it ends before it begins"));
        };
        self.check_last()?;
        let mut restored = Restored {
            positions,
            ..Restored::default()
        };
        let cell = Arc::clone(&self.cell);
        let staged = std::mem::take(&mut self.staged);
        let mut context = cell.apply_context();
        cell.with_table_mut(|table| {
            let logs = &mut table.logs;
            for (transport, (identity, entry)) in &restored.positions {
                if logs.find(transport).is_some() {
                    logs.set_position(transport, identity, entry);
                }
            }
            let mut workers: Vec<Worker> = Vec::new();
            for staged in staged {
                restored.workers += 1;
                restored.memberships += staged.stated.iter().map(|tier| tier.count).sum::<u64>();
                let (key, limits) = (staged.key, cell.config.limits);
                let StagedWorker {
                    point,
                    slot,
                    resume,
                    ..
                } = staged;
                workers.push(worker_resume::to_worker(
                    key, limits, point, slot, resume, logs, now_ms,
                ));
            }
            for (transport, unix_ms) in &self.times {
                if let Some(log) = logs.find(transport) {
                    logs.restore_time(log, *unix_ms, now_ms);
                }
            }
            // All logs' times are known now, so leases can be judged.
            for worker in workers {
                table.insert_restored(&mut context, worker);
            }
        });
        Ok(restored)
    }

    /// Decodes the next batch, if all its bytes are there. A stream has no checksum, and the decoder trusts the lengths
    /// and offsets in it. It panics on wrong ones; then the restoration is dropped with it.
    fn decode(&mut self, buffer: &mut Buffer) -> Result<Option<RecordBatch>, RestoreError> {
        let decoder = &mut self.decoder;
        let decoded = catch_unwind(AssertUnwindSafe(|| decoder.decode(buffer)));
        let batch = decoded.map_err(|_| refuse(Refusal::Corrupt, "its bytes cannot be decoded"))?;
        batch.map_err(|error| self.refusal(error))
    }

    /// Whether a stream was read to its end mark, or no stream was read at all. The decoder itself accepts any end
    /// between two batches, but after the end mark it refuses more bytes.
    fn has_ended(&mut self) -> bool {
        let more = self.decoder.decode(&mut Buffer::from(vec![0]));
        self.decoder.schema().is_none() || more.is_err()
    }

    /// Checks format, terms and columns, and reads the positions of the logs.
    fn check_schema(&mut self, theirs: &Schema) -> Result<(), RestoreError> {
        let metadata = theirs.metadata();
        let Some(format) = metadata.get("kvatlas.format") else {
            return Err(refuse(
                Refusal::Foreign,
                "it is not a state of a kvatlas cell",
            ));
        };
        if format != FORMAT {
            let text = format!("it has format {format}, this build reads format {FORMAT}");
            return Err(refuse(Refusal::OtherVersion, text));
        }
        let ours = schema(&self.cell.config, Some(&[]));
        for (term, ours) in ours.metadata() {
            let theirs = metadata.get(term).map_or("", String::as_str);
            if theirs != ours {
                let term = term.trim_start_matches("kvatlas.").replace('_', " ");
                let text = format!("it has {term} {theirs:?}, this cell has {ours:?}");
                return Err(refuse(Refusal::OtherCell, text));
            }
        }
        if theirs.fields() != ours.fields() {
            let text = "its columns are not those of a state to start from";
            return Err(refuse(Refusal::Foreign, text));
        }
        let transports = metadata.iter().filter_map(|(name, identity)| {
            let transport = name
                .strip_prefix("kvatlas.log.")?
                .strip_suffix(".identity")?;
            let entry = metadata.get(&format!("kvatlas.log.{transport}.entry"))?;
            Some((transport.to_owned(), (identity.clone(), entry.clone())))
        });
        self.positions = Some(transports.collect());
        let times = metadata.iter().filter_map(|(name, unix_ms)| {
            let transport = name
                .strip_prefix("kvatlas.log.")?
                .strip_suffix(".unix_ms")?;
            Some((transport.to_owned(), unix_ms.parse().ok()?))
        });
        self.times = times.collect();
        Ok(())
    }

    fn take(&mut self, batch: &RecordBatch) -> Result<(), RestoreError> {
        if batch.num_columns() != 9 || batch.column(7).data_type() == &DataType::Null {
            return Err(refuse(Refusal::Foreign, "a batch has other columns"));
        }
        let u64s = |column: usize| batch.column(column).as_primitive::<UInt64Type>();
        let (worker_ids, epochs, event_ids) = (u64s(0), u64s(3), u64s(4));
        let (blocks, digests) = (u64s(5), u64s(6));
        let dp_ranks = batch.column(1).as_primitive::<UInt32Type>();
        let tiers = batch.column(2).as_string::<i32>();
        let lists = batch.column(7).as_list::<i32>();
        let hashes = lists.values().as_primitive::<UInt64Type>().values();
        let resumes = batch.column(8).as_binary::<i32>();
        for row in 0..batch.num_rows() {
            let key = WorkerKey {
                worker_id: worker_ids.value(row),
                dp_rank: dp_ranks.value(row),
            };
            if resumes.is_valid(row) {
                self.check_last()?;
                let (epoch, event_id) = (epochs.value(row), event_ids.value(row));
                self.begin(key, (epoch, event_id), resumes.value(row))?;
            }
            let tier = TIER_NAMES.iter().position(|&name| name == tiers.value(row));
            let staged = self.staged.last_mut().filter(|staged| staged.key == key);
            let (Some(tier), Some(staged)) = (tier, staged) else {
                return Err(refuse(Refusal::Corrupt, "a row belongs to no worker"));
            };
            staged.stated[tier] = TierSummary {
                count: blocks.value(row),
                digest: digests.value(row),
            };
            let ends = lists.value_offsets();
            // The reader has validated the array: offsets ascend from 0 and end within the values.
            let held = &hashes[ends[row] as usize..ends[row + 1] as usize];
            if let Some(slot) = staged.slot {
                self.cell.index().store(slot, Tier::ALL[tier], held);
            }
        }
        Ok(())
    }

    fn begin(
        &mut self,
        key: WorkerKey,
        (epoch, event_id): (u64, u64),
        resume: &[u8],
    ) -> Result<(), RestoreError> {
        let unread = || {
            let text = format!("worker {key} has no readable position");
            refuse(Refusal::Corrupt, text)
        };
        let ascends = self.staged.last().is_none_or(|last| last.key < key);
        let resume = v1::WorkerResume::decode(resume).map_err(|_| unread())?;
        let point = worker_resume::resume_point(epoch, event_id, &resume)
            .filter(|point| ascends && point.incarnation.epoch > 0 && point.known < u64::MAX)
            .ok_or_else(unread)?;
        let slot = match point.state {
            SequencerState::Closed(_) => None,
            SequencerState::Whole | SequencerState::Recovering => {
                let slot = self.cell.index().allocate(key);
                Some(slot.map_err(|error| refuse(Refusal::Unreadable, error))?)
            }
        };
        self.staged.push(StagedWorker {
            key,
            point,
            resume,
            slot,
            stated: Default::default(),
        });
        Ok(())
    }

    /// Checks the last worker's set against the digests of its rows.
    fn check_last(&self) -> Result<(), RestoreError> {
        let Some(last) = self.staged.last() else {
            return Ok(());
        };
        let held = last.slot.map(|slot| self.cell.index().summary(slot));
        if held.unwrap_or_default().tiers == last.stated {
            return Ok(());
        }
        let text = format!("the set of worker {} does not match its digest", last.key);
        Err(refuse(Refusal::Corrupt, text))
    }

    fn refusal(&self, error: ArrowError) -> RestoreError {
        let refusal = match (&error, &self.positions) {
            (ArrowError::IoError(..), _) => Refusal::Unreadable,
            (_, None) => Refusal::Foreign,
            (_, Some(_)) => Refusal::Corrupt,
        };
        refuse(refusal, error)
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        let context = self.cell.apply_context();
        for slot in self.staged.iter().filter_map(|staged| staged.slot) {
            context.retire(slot);
        }
    }
}

fn refuse(refusal: Refusal, text: impl fmt::Display) -> RestoreError {
    RestoreError {
        refusal,
        text: text.to_string(),
    }
}
