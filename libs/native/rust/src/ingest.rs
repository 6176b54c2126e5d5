//! Binding of the publisher's `Ingest` call.

use kvatlas_cell::decode::{Body, decode};
use kvatlas_client::{IngestResponse, IngestStream as NativeStream};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::channel::duration;
use crate::inbox::{Inbox, Letter, error};

/// Add this file's names to the extension module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<IngestStream>()?;
    module.add_class::<Ingested>()?;
    module.add_function(wrap_pyfunction!(progress, module)?)
}

/// worker_id, dp_rank, epoch, last_event_id, whole.
type Position = (u64, u32, u64, u64, bool);

/// What an indexer says to all requests of one append.
#[pyclass(frozen, get_all, module = "kvatlas_native")]
pub struct Ingested {
    rejected: u64,
    first_rejection: String,
    positions: Vec<Position>,
}

impl From<IngestResponse> for Ingested {
    fn from(answer: IngestResponse) -> Self {
        let positions = answer.positions.into_iter().map(|position| {
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
            rejected: answer.rejected,
            first_rejection: answer.first_rejection,
            positions: positions.collect(),
        }
    }
}

/// How far a receiver is that has applied everything up to this record.
#[pyfunction]
fn progress(record: &[u8]) -> PyResult<Option<(u64, u32, u64, u64)>> {
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
        header.speaker.epoch,
        last_event_id,
    )))
}

/// One `Ingest` call to one indexer.
#[pyclass(frozen, module = "kvatlas_native")]
struct IngestStream(NativeStream);

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

    /// Returns at once; the outcome comes into `inbox` with this `ticket`, exactly once.
    fn append(&self, records: Vec<Bound<'_, PyBytes>>, inbox: &Inbox, ticket: u64) -> PyResult<()> {
        let letters = inbox.letters();
        let records = records.iter().map(|record| record.as_bytes());
        self.0
            .append(records, move |outcome| {
                letters.put(ticket, outcome.map(Letter::Ingested));
            })
            .map_err(|status| error(&status))
    }

    /// End the call; appends that wait are CANCELLED.
    fn close(&self) {
        self.0.close();
    }
}
