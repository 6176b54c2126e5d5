//! Binding of the publisher's `Ingest` call: records to one indexer, without a log between.

use kvatlas_cell::apply::decode::{Body, decode};
use kvatlas_client::{IngestResponse, IngestStream as NativeStream};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::completions::{CompletionQueue, error};
use crate::duration::duration;

/// worker_id, dp_rank, epoch, last_event_id, whole.
type Position = (u64, u32, u64, u64, bool);

/// An indexer's combined response to all requests of one append.
#[pyclass(frozen, get_all, name = "IngestResponse", module = "kvatlas_native")]
pub struct PyIngestResponse {
    rejected: u64,
    first_rejection: String,
    positions: Vec<Position>,
}

impl From<IngestResponse> for PyIngestResponse {
    fn from(response: IngestResponse) -> Self {
        let positions = response.positions.into_iter().map(|position| {
            let worker = position.worker.unwrap_or_default();
            (
                worker.worker_id,
                worker.dp_rank,
                position.epoch,
                position.last_event_id,
                position.whole,
            )
        });
        Self {
            rejected: response.rejected,
            first_rejection: response.first_rejection,
            positions: positions.collect(),
        }
    }
}

/// The position of a receiver that has applied everything up to this record.
#[pyfunction]
pub fn progress(record: &[u8]) -> PyResult<Option<(u64, u32, u64, u64)>> {
    let record = decode(record).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let last_event_id = match record.body {
        Body::Events(events) => events.last_event_id(),
        Body::Snapshot(part) if part.part + 1 < part.parts => return Ok(None),
        Body::Snapshot(part) => part.as_of,
        Body::Heartbeat(heartbeat) => heartbeat.last_event_id,
    };
    let header = record.header;
    Ok(Some((
        header.worker.worker_id,
        header.worker.dp_rank,
        header.incarnation.epoch,
        last_event_id,
    )))
}

/// One `Ingest` call to one indexer.
#[pyclass(frozen, module = "kvatlas_native")]
pub struct IngestStream(NativeStream);

#[pymethods]
impl IngestStream {
    #[new]
    fn new(address: &str, answer_s: f64) -> PyResult<Self> {
        NativeStream::open(address, duration(answer_s)?)
            .map(Self)
            .map_err(|status| PyValueError::new_err(status.message().to_owned()))
    }

    #[getter]
    fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// Returns at once; the outcome arrives in `queue` with this `ticket`, exactly once.
    fn append(
        &self,
        records: Vec<Bound<'_, PyBytes>>,
        queue: &CompletionQueue,
        ticket: u64,
    ) -> PyResult<()> {
        let completed = queue.sender();
        let records = records.iter().map(|record| record.as_bytes());
        self.0
            .append(records, move |outcome| {
                completed.send(ticket, outcome, |_, response| {
                    PyIngestResponse::from(response)
                });
            })
            .map_err(|status| error(&status))
    }

    /// Ends the call; appends that wait fail with CANCELLED.
    fn close(&self) {
        self.0.close();
    }
}
