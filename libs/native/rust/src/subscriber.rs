//! Binding of the subscriber's side of an engine's socket.

use kvatlas_mirror::{Broken, Subscriber as NativeSubscriber};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Add this file's names to the extension module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<EngineSubscriber>()
}

/// One connection to an engine: bytes in, messages out.
#[pyclass(module = "kvatlas_native")]
struct EngineSubscriber(NativeSubscriber);

/// Sequence numbers, payloads, and how many messages were malformed, with what was wrong first.
type Run<'py> = (Vec<u64>, Vec<Bound<'py, PyBytes>>, usize, Option<String>);

#[pymethods]
impl EngineSubscriber {
    #[new]
    fn new() -> Self {
        Self(NativeSubscriber::default())
    }

    #[staticmethod]
    fn greeting(py: Python<'_>) -> Bound<'_, PyBytes> {
        PyBytes::new(py, &NativeSubscriber::greeting())
    }

    #[getter]
    fn is_open(&self) -> bool {
        self.0.is_open()
    }

    fn feed<'py>(
        &mut self,
        py: Python<'py>,
        received: PyBuffer<u8>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut copied = Ok(());
        let fed = self.0.feed(received.item_count(), |into| {
            copied = received.copy_to_slice(py, into);
        });
        copied?;
        fed.map_err(|Broken(why)| PyValueError::new_err(why))?;
        Ok(PyBytes::new(py, &self.0.take_outgoing()))
    }

    fn take<'py>(&mut self, py: Python<'py>) -> Run<'py> {
        let run = self.0.run();
        let messages = run.messages.iter();
        let payloads = messages
            .clone()
            .map(|(_, at)| PyBytes::new(py, &run.bytes[at.clone()]));
        let taken = (
            messages.clone().map(|(seq, _)| *seq).collect(),
            payloads.collect(),
            run.malformed,
            run.first_malformed.map(str::to_owned),
        );
        self.0.taken();
        taken
    }
}
