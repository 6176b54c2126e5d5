//! The Arrow columns of a state.
//!
//! ```text
//! worker_id  dp_rank  tier    epoch  event_id  blocks  digest  sequence_hashes   resume
//! u64        u32      utf8    u64    u64       u64     u64     list<u64>         binary, in states to start from
//! ```
//!
//! There is one row per worker and tier, and more where a set is larger than a row may be. The rows alone decide where
//! batches end, so equal states are equal bytes.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::UInt64Array;
use arrow_array::{ArrayRef, BinaryArray, ListArray, RecordBatch, StringArray, UInt32Array};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use kvatlas_index::{Tier, TierSummary, WorkerKey};

use crate::config::CellConfig;
use crate::leases::logs::Log;

/// Most hashes of one row.
pub const ROW_HASHES_MAX: usize = 65_536;
/// A batch ends after the row that reaches this many hashes, or this many rows.
const BATCH_HASHES: usize = 65_536;
const BATCH_ROWS: usize = 4_096;
/// Number of the format; other formats are refused.
pub const FORMAT: &str = "1";

/// Names of the tiers, in the order of [`Tier::ALL`].
pub const TIER_NAMES: [&str; 4] = ["device", "host", "disk", "remote"];

/// The columns, and the metadata: the cell's terms and, in a state to start from, the position and time of its logs.
pub(crate) fn schema(config: &CellConfig, logs: Option<&[Log]>) -> SchemaRef {
    let column = |name: &str, of: DataType| Field::new(name, of, false);
    let hashes = DataType::List(Arc::new(column("item", DataType::UInt64)));
    let mut columns = vec![
        column("worker_id", DataType::UInt64),
        column("dp_rank", DataType::UInt32),
        column("tier", DataType::Utf8),
        column("epoch", DataType::UInt64),
        column("event_id", DataType::UInt64),
        column("blocks", DataType::UInt64),
        column("digest", DataType::UInt64),
        column("sequence_hashes", hashes),
    ];
    let mut metadata = HashMap::from([
        ("kvatlas.format".to_owned(), FORMAT.to_owned()),
        ("kvatlas.cell".to_owned(), config.cell.clone()),
        ("kvatlas.model".to_owned(), config.model.clone()),
        (
            "kvatlas.block_size".to_owned(),
            config.block_size.to_string(),
        ),
        (
            "kvatlas.hash_contract".to_owned(),
            config.hash_contract.clone(),
        ),
    ]);
    if let Some(logs) = logs {
        columns.push(Field::new("resume", DataType::Binary, true));
        for log in logs {
            let name = &log.transport;
            if let Some(unix_ms) = log.unix_ms() {
                metadata.insert(format!("kvatlas.log.{name}.unix_ms"), unix_ms.to_string());
            }
            if let Some((identity, entry)) = &log.position {
                metadata.insert(format!("kvatlas.log.{name}.identity"), identity.clone());
                metadata.insert(format!("kvatlas.log.{name}.entry"), entry.clone());
            }
        }
    }
    Arc::new(Schema::new_with_metadata(columns, metadata))
}

/// One row without its hashes.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub key: WorkerKey,
    pub tier: Tier,
    pub epoch: u64,
    pub event_id: u64,
    pub summary: TierSummary,
}

/// The rows of the next batch.
#[derive(Default)]
pub(crate) struct Rows {
    worker_ids: Vec<u64>,
    dp_ranks: Vec<u32>,
    tiers: Vec<&'static str>,
    epochs: Vec<u64>,
    event_ids: Vec<u64>,
    blocks: Vec<u64>,
    digests: Vec<u64>,
    lengths: Vec<usize>,
    hashes: Vec<u64>,
    resumes: Vec<Option<Vec<u8>>>,
}

impl Rows {
    /// Appends a row.
    pub fn push(&mut self, row: Row, hashes: &[u64], resume: Option<Vec<u8>>) {
        self.worker_ids.push(row.key.worker_id);
        self.dp_ranks.push(row.key.dp_rank);
        self.tiers.push(TIER_NAMES[row.tier as usize]);
        self.epochs.push(row.epoch);
        self.event_ids.push(row.event_id);
        self.blocks.push(row.summary.count);
        self.digests.push(row.summary.digest);
        self.lengths.push(hashes.len());
        self.hashes.extend_from_slice(hashes);
        self.resumes.push(resume);
    }

    /// Whether the batch is complete.
    pub fn is_full(&self) -> bool {
        self.hashes.len() >= BATCH_HASHES || self.lengths.len() >= BATCH_ROWS
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// Returns the batch and starts the next one.
    pub fn take(&mut self, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
        let rows = std::mem::take(self);
        let u64s = |values: Vec<u64>| Arc::new(UInt64Array::from(values)) as ArrayRef;
        let item = Arc::new(Field::new("item", DataType::UInt64, false));
        let offsets = OffsetBuffer::from_lengths(rows.lengths);
        let lists = ListArray::try_new(item, offsets, u64s(rows.hashes), None)?;
        let mut columns = vec![
            u64s(rows.worker_ids),
            Arc::new(UInt32Array::from(rows.dp_ranks)) as ArrayRef,
            Arc::new(StringArray::from(rows.tiers)),
            u64s(rows.epochs),
            u64s(rows.event_ids),
            u64s(rows.blocks),
            u64s(rows.digests),
            Arc::new(lists),
        ];
        if schema.fields().len() > columns.len() {
            let resumes: Vec<_> = rows.resumes.iter().map(Option::as_deref).collect();
            columns.push(Arc::new(BinaryArray::from(resumes)));
        }
        RecordBatch::try_new(Arc::clone(schema), columns)
    }
}
