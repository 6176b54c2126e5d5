//! A cell's configuration, and the check that a record or a request is meant for this cell.

use std::fmt::Display;

use kvatlas_events::sequencer::Limits;

use crate::apply::decode::Header;
use crate::apply::rejection::Rejection;
use crate::counters::Count;

/// A cell's configuration; fixed while it exists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CellConfig {
    /// The cell's name.
    pub cell: String,
    /// The only model of the cell.
    pub model: String,
    /// Tokens per block.
    pub block_size: u32,
    /// Name of the hash contract.
    pub hash_contract: String,
    /// Name of this replica.
    pub replica_id: String,
    /// Version of this build.
    pub version: String,
    /// Time without a record after which a worker is stale.
    pub lease_ms: u64,
    /// Bounds of each worker's sequencer.
    pub limits: Limits,
    /// Bytes that the index may use.
    pub memory_bytes_max: usize,
}

impl CellConfig {
    /// Rejects a record of another cell, model, block size or hash contract.
    pub(crate) fn check(&self, header: &Header<'_>) -> Result<(), Rejection> {
        let reject = |count, what: &str, theirs: &dyn Display, ours: &dyn Display| {
            let worker = header.worker;
            let text = format!("worker {worker} has {what} {theirs}, this cell has {ours}");
            Err(Rejection { count, text })
        };
        if header.cell != self.cell {
            return reject(Count::RejectedCell, "cell", &header.cell, &self.cell);
        }
        if header.model != self.model {
            return reject(Count::RejectedModel, "model", &header.model, &self.model);
        }
        if header.block_size != self.block_size {
            let (theirs, ours) = (&header.block_size, &self.block_size);
            return reject(Count::RejectedBlockSize, "block size", theirs, ours);
        }
        if header.hash_contract != self.hash_contract {
            let (theirs, ours) = (&header.hash_contract, &self.hash_contract);
            return reject(Count::RejectedHashContract, "hash contract", theirs, ours);
        }
        Ok(())
    }
}
