//! Binding of the client's channel: `FindMatches` of one indexer.

use std::sync::Arc;
use std::time::Duration;

use kvatlas_client::Channel;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::completions::{CompletionQueue, error};
use crate::find_matches::{PyMatches, PyQuery};

/// Returns a timeout of Python's as a duration; a negative one is zero.
pub fn duration(timeout_s: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(timeout_s.max(0.0))
        .map_err(|_| PyValueError::new_err("timeout_s must be a number of seconds"))
}

/// `FindMatches` of one indexer, over one connection that is replaced when it is lost; thread-safe.
#[pyclass(frozen, name = "Channel", module = "kvatlas_native")]
pub struct PyChannel {
    channel: Channel,
    address: Arc<str>,
}

#[pymethods]
impl PyChannel {
    #[new]
    fn new(address: &str) -> PyResult<Self> {
        let channel = Channel::new(address)
            .map_err(|status| PyValueError::new_err(status.message().to_owned()))?;
        let address = address.into();
        Ok(Self { channel, address })
    }

    /// Blocks without the GIL. ChannelError: any status but OK.
    fn find_matches(
        &self,
        py: Python<'_>,
        query: &Bound<'_, PyQuery>,
        timeout_s: f64,
    ) -> PyResult<PyMatches> {
        let timeout = duration(timeout_s)?;
        let hashes = query.get().hashes(py)?;
        let query = query.get().with_hashes(&hashes)?;
        py.detach(|| self.channel.find_matches(&query, timeout))
            .map(|response| PyMatches::from_response(py, response, &self.address))
            .map_err(|status| error(&status))
    }

    /// Returns at once; the outcome arrives in `queue` with this `ticket`, exactly once.
    fn find_matches_soon(
        &self,
        py: Python<'_>,
        query: &Bound<'_, PyQuery>,
        timeout_s: f64,
        queue: &CompletionQueue,
        ticket: u64,
    ) -> PyResult<()> {
        let hashes = query.get().hashes(py)?;
        let query = query.get().with_hashes(&hashes)?;
        let completed = queue.sender();
        let replica = Arc::clone(&self.address);
        let done = move |outcome| {
            completed.send(ticket, outcome, move |py, response| {
                PyMatches::from_response(py, response, &replica)
            });
        };
        self.channel
            .find_matches_soon(&query, duration(timeout_s)?, done)
            .map_err(|status| error(&status))
    }

    /// Close the connection; calls under way may finish, new ones are CANCELLED.
    fn close(&self) {
        self.channel.close();
    }
}
