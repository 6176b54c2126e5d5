//! Bindings of the outbox. Records stay the Python objects that they are: nothing is copied.

use kvatlas_events::outbox::{Bounds, Outbox as Queue, Ticket};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Bounded queue of one worker's records towards one log writer.
#[pyclass(module = "kvatlas_native")]
pub struct Outbox {
    queue: Queue<Py<PyBytes>>,
}

#[pymethods]
impl Outbox {
    #[new]
    #[pyo3(signature = (*, records_max, bytes_max))]
    fn new(records_max: usize, bytes_max: usize) -> Self {
        let queue = Queue::new(Bounds {
            records_max,
            bytes_max,
        });
        Self { queue }
    }

    fn push(&mut self, record: Bound<'_, PyBytes>) -> bool {
        let bytes = record.as_bytes().len();
        self.queue.push(record.unbind(), bytes)
    }

    fn push_heartbeat(&mut self, record: Bound<'_, PyBytes>) {
        let bytes = record.as_bytes().len();
        self.queue.push_heartbeat(record.unbind(), bytes);
    }

    fn push_snapshot(&mut self, records: Vec<Bound<'_, PyBytes>>) {
        self.queue.push_snapshot(records.into_iter().map(|record| {
            let bytes = record.as_bytes().len();
            (record.unbind(), bytes)
        }));
    }

    fn require_snapshot(&mut self) {
        self.queue.require_snapshot();
    }

    fn peek(
        &mut self,
        py: Python<'_>,
        records_max: usize,
        bytes_max: usize,
    ) -> Option<(u64, Vec<Py<PyBytes>>)> {
        let (Ticket(ticket), records) = self.queue.peek(records_max, bytes_max)?;
        let records = records.into_iter().map(|record| record.clone_ref(py));
        Some((ticket, records.collect()))
    }

    fn acknowledge(&mut self, ticket: u64) {
        self.queue.acknowledge(Ticket(ticket));
    }

    #[getter]
    fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    #[getter]
    fn awaits_snapshot(&self) -> bool {
        self.queue.awaits_snapshot()
    }

    #[getter]
    fn holds_snapshot(&self) -> bool {
        self.queue.holds_snapshot()
    }

    #[getter]
    fn queued_records(&self) -> usize {
        self.queue.queued_records()
    }

    #[getter]
    fn queued_bytes(&self) -> usize {
        self.queue.queued_bytes()
    }

    #[getter]
    fn overflows(&self) -> u64 {
        self.queue.overflows()
    }
}
