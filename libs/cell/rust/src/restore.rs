//! A dump's batches into an empty cell: how a replica starts from a file or from a peer.
//!
//! Nothing of it shows before all of it has been read and found to be what it says: sets go into slots
//! of their own, which are given up again if the rest cannot be used. Every set is checked against the
//! count and the digest that its rows state.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{Array as _, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::reader::{FileReader, StreamDecoder};
use arrow_schema::{ArrowError, DataType, Schema};
use kvatlas_events::sequencer::{Place, Standing};
use kvatlas_index::{SlotId, Tier, TierSummary, WorkerKey};
use kvatlas_wire::v1;
use prost::Message as _;
use xxhash_rust::xxh3::Xxh3;

use crate::cell::Cell;
use crate::dump_rows::{FORMAT, TIER_NAMES, schema};
use crate::worker::{Worker, resumed_place};

/// Why a kept state cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It cannot be read, or not to its end.
    Unreadable,
    /// It is not what was written.
    Corrupt,
    /// It is no state of ours.
    Foreign,
    /// It is of a format that this build does not know.
    OtherVersion,
    /// It is of a cell that speaks in other terms.
    OtherCell,
}

impl Refusal {
    /// In a word, for a counter's label.
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

/// A kept state that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RestoreError {
    /// Why, for a counter.
    pub refusal: Refusal,
    /// Why, for an operator.
    pub text: String,
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What the cell has been given.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Restored {
    /// Workers, the recently gone included.
    pub workers: u64,
    /// Blocks, each once per holder and tier.
    pub memberships: u64,
    /// Per transport how far its log is applied: the log's identity and the entry.
    pub positions: HashMap<String, (String, String)>,
}

/// A restoration under way; given up when dropped.
pub struct Restore {
    cell: Arc<Cell>,
    decoder: StreamDecoder,
    positions: Option<HashMap<String, (String, String)>>,
    /// Per transport how far its log's time had come; of earlier builds none.
    times: Vec<(String, u64)>,
    staged: Vec<Staged>,
}

/// One worker whose rows are being read, or have been.
struct Staged {
    key: WorkerKey,
    place: Place,
    resume: v1::WorkerResume,
    slot: Option<SlotId>,
    stated: [TierSummary; 4],
}

impl Restore {
    /// Into this cell, which must have no worker yet.
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

    /// All of a file whose bytes have this checksum.
    ///
    /// # Errors
    /// Why the file cannot be used; drop the restoration then.
    pub fn read_file(&mut self, path: &Path, checksum: u64) -> Result<(), RestoreError> {
        let unreadable = |error: std::io::Error| refuse(Refusal::Unreadable, error);
        let mut file = File::open(path).map_err(unreadable)?;
        // Before a byte is believed: what follows takes lengths from the file.
        if checksum_of(&mut file).map_err(unreadable)? != checksum {
            return Err(refuse(Refusal::Corrupt, "its bytes are not those written"));
        }
        let reader = FileReader::try_new(file, None).map_err(|error| self.in_words(error))?;
        self.check(&reader.schema())?;
        for batch in reader {
            let batch = batch.map_err(|error| self.in_words(error))?;
            self.take(&batch)?;
        }
        Ok(())
    }

    /// The next bytes of a dump's stream, cut anywhere.
    ///
    /// # Errors
    /// Why the dump cannot be used; drop the restoration then.
    pub fn feed(&mut self, bytes: Vec<u8>) -> Result<(), RestoreError> {
        let mut buffer = Buffer::from(bytes);
        while !buffer.is_empty() {
            let batch = self.decode(&mut buffer)?;
            if self.positions.is_none()
                && let Some(schema) = self.decoder.schema()
            {
                self.check(&schema)?;
            }
            if let Some(batch) = batch {
                self.take(&batch)?;
            }
        }
        Ok(())
    }

    /// All has been read: from here on the cell has it.
    ///
    /// # Errors
    /// If it has not, or the last set is not what its rows say.
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
        let (staged, times) = (
            std::mem::take(&mut self.staged),
            std::mem::take(&mut self.times),
        );
        let room_blocks = cell.room_blocks();
        let mut around = cell.surroundings(room_blocks);
        cell.with_table_mut(|table| {
            for (transport, (identity, entry)) in &restored.positions {
                if table.logs.known_place(transport).is_some() {
                    table.logs.set_position(transport, identity, entry);
                }
            }
            let mut keys = Vec::new();
            for worker in staged {
                restored.workers += 1;
                restored.memberships += worker.stated.iter().map(|tier| tier.count).sum::<u64>();
                let Staged {
                    key,
                    place,
                    resume,
                    slot,
                    ..
                } = worker;
                let heard = resume.heard.clone();
                let limits = cell.config.limits;
                let mut worker = Worker::resumed(key, limits, place, slot, resume, now_ms);
                worker.heard_before(&heard, &mut table.logs, now_ms);
                table.workers.insert(key, worker);
                keys.push(key);
            }
            for (transport, unix_ms) in times {
                if let Some(place) = table.logs.known_place(&transport) {
                    table.logs.resume_time(place, unix_ms, now_ms);
                }
            }
            for key in keys {
                let logs = &table.logs;
                let lacks = table.workers.get_mut(&key).is_some_and(|worker| {
                    worker.look(&mut around, logs);
                    worker.lacks_records(room_blocks)
                });
                table.note_need(key, lacks);
                table.mark(key);
            }
        });
        Ok(restored)
    }

    /// The next batch, if it is there by now. A stream has no checksum, and the decoder takes lengths
    /// and places on trust: where they make no sense it panics, and is dropped with the restoration.
    fn decode(&mut self, buffer: &mut Buffer) -> Result<Option<RecordBatch>, RestoreError> {
        let decoder = &mut self.decoder;
        let decoded = catch_unwind(AssertUnwindSafe(|| decoder.decode(buffer)));
        let batch = decoded.map_err(|_| refuse(Refusal::Corrupt, "its bytes make no sense"))?;
        batch.map_err(|error| self.in_words(error))
    }

    /// Whether a stream was read to its mark of the end, or no stream was read at all. The decoder
    /// itself takes any end between two batches for the end; but after the mark it takes no more.
    fn has_ended(&mut self) -> bool {
        let more = self.decoder.decode(&mut Buffer::from(vec![0]));
        self.decoder.schema().is_none() || more.is_err()
    }

    fn check(&mut self, theirs: &Schema) -> Result<(), RestoreError> {
        let said = theirs.metadata();
        let Some(format) = said.get("kvatlas.format") else {
            return Err(refuse(Refusal::Foreign, "it is no state of a kvatlas cell"));
        };
        if format != FORMAT {
            let text = format!("it has format {format}, this build reads format {FORMAT}");
            return Err(refuse(Refusal::OtherVersion, text));
        }
        let ours = schema(&self.cell.config, Some(&[]));
        for (term, ours) in ours.metadata() {
            let said = said.get(term).map_or("", String::as_str);
            if said != ours {
                let term = term.trim_start_matches("kvatlas.").replace('_', " ");
                let text = format!("it has {term} {said:?}, this cell has {ours:?}");
                return Err(refuse(Refusal::OtherCell, text));
            }
        }
        if theirs.fields() != ours.fields() {
            let text = "its columns are not those of a state to start from";
            return Err(refuse(Refusal::Foreign, text));
        }
        let transports = said.iter().filter_map(|(name, identity)| {
            let transport = name
                .strip_prefix("kvatlas.log.")?
                .strip_suffix(".identity")?;
            let entry = said.get(&format!("kvatlas.log.{transport}.entry"))?;
            Some((transport.to_owned(), (identity.clone(), entry.clone())))
        });
        self.positions = Some(transports.collect());
        let times = said.iter().filter_map(|(name, unix_ms)| {
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
            // An array that was read has been validated: offsets ascend from 0 and end within the values.
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
            let WorkerKey { worker_id, dp_rank } = key;
            let text = format!("worker {worker_id}/{dp_rank} has no place that can be read");
            refuse(Refusal::Corrupt, text)
        };
        let ascends = self.staged.last().is_none_or(|last| last.key < key);
        let resume = v1::WorkerResume::decode(resume).map_err(|_| unread())?;
        let place = resumed_place(epoch, event_id, &resume)
            .filter(|place| ascends && place.speaker.epoch > 0 && place.known < u64::MAX)
            .ok_or_else(unread)?;
        let slot = match place.standing {
            Standing::Closed(_) => None,
            Standing::Whole | Standing::Recovering => {
                let slot = self.cell.index().allocate(key);
                Some(slot.map_err(|error| refuse(Refusal::Unreadable, error))?)
            }
        };
        self.staged.push(Staged {
            key,
            place,
            resume,
            slot,
            stated: Default::default(),
        });
        Ok(())
    }

    /// Whether the last worker's set is what its rows said.
    fn check_last(&self) -> Result<(), RestoreError> {
        let Some(last) = self.staged.last() else {
            return Ok(());
        };
        let held = last.slot.map(|slot| self.cell.index().summary(slot));
        if held.unwrap_or_default().tiers == last.stated {
            return Ok(());
        }
        let WorkerKey { worker_id, dp_rank } = last.key;
        let text = format!("the set of worker {worker_id}/{dp_rank} is not what its digest says");
        Err(refuse(Refusal::Corrupt, text))
    }

    fn in_words(&self, error: ArrowError) -> RestoreError {
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
        for slot in self.staged.iter().filter_map(|staged| staged.slot) {
            self.cell.surroundings(0).retire(slot);
        }
    }
}

fn refuse(refusal: Refusal, text: impl fmt::Display) -> RestoreError {
    RestoreError {
        refusal,
        text: text.to_string(),
    }
}

fn checksum_of(file: &mut File) -> std::io::Result<u64> {
    let mut hash = Xxh3::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.digest()),
            length => hash.update(&buffer[..length]),
        }
    }
}
