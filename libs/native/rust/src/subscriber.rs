//! Binds the subscriber's side of an engine's socket.

use kvatlas_engines::{ProtocolError, Subscriber};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// One connection to an engine: bytes in, messages out.
#[pyclass(module = "kvatlas_native")]
pub struct EngineSubscriber(Subscriber);

/// Sequence numbers, payloads, the number of malformed messages, and the first one's error.
type Messages<'py> = (Vec<u64>, Vec<Bound<'py, PyBytes>>, usize, Option<String>);

#[pymethods]
impl EngineSubscriber {
    #[new]
    fn new() -> Self {
        Self(Subscriber::default())
    }

    #[staticmethod]
    fn greeting(py: Python<'_>) -> Bound<'_, PyBytes> {
        PyBytes::new(py, &Subscriber::greeting())
    }

    #[getter]
    fn is_open(&self) -> bool {
        self.0.is_open()
    }

    fn receive<'py>(
        &mut self,
        py: Python<'py>,
        received: PyBuffer<u8>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut copied = Ok(());
        let parsed = self.0.receive(received.item_count(), |into| {
            copied = received.copy_to_slice(py, into);
        });
        copied?;
        parsed.map_err(|ProtocolError(why)| PyValueError::new_err(why))?;
        Ok(PyBytes::new(py, &self.0.take_outgoing()))
    }

    fn take_messages<'py>(&mut self, py: Python<'py>) -> Messages<'py> {
        let received = self.0.received();
        let messages = received.messages.iter();
        let payloads = messages
            .clone()
            .map(|(_, at)| PyBytes::new(py, &received.bytes[at.clone()]));
        let taken = (
            messages.clone().map(|(seq, _)| *seq).collect(),
            payloads.collect(),
            received.malformed,
            received.first_malformed.map(str::to_owned),
        );
        self.0.clear_received();
        taken
    }
}
