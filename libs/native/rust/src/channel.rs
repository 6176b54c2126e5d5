//! Bindings of the client's channel.

use std::time::Duration;

use kvatlas_client::{Channel, Matches, Query};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::inbox::{Inbox, Letter, error};

/// Columns of one answer: worker_ids, dp_ranks, depths.
pub type Columns<'py> = (
    Bound<'py, PyArray1<u64>>,
    Bound<'py, PyArray1<u32>>,
    Bound<'py, PyArray1<u32>>,
);

pub fn columns(py: Python<'_>, matches: Matches) -> Columns<'_> {
    (
        matches.worker_ids.into_pyarray(py),
        matches.dp_ranks.into_pyarray(py),
        matches.depths.into_pyarray(py),
    )
}

pub fn duration(timeout_s: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(timeout_s.max(0.0))
        .map_err(|_| PyValueError::new_err("timeout_s must be a number of seconds"))
}

/// One connection to one indexer, kept and made again in the background; thread-safe.
#[pyclass(frozen, name = "Channel", module = "kvatlas_native")]
struct PyChannel(Channel);

#[pymethods]
impl PyChannel {
    #[new]
    fn new(address: &str) -> PyResult<Self> {
        Channel::new(address)
            .map(Self)
            .map_err(|status| PyValueError::new_err(status.message().to_owned()))
    }

    /// Blocks without the GIL. ChannelError: any status but OK.
    #[pyo3(signature = (hashes, *, chunks, model, block_size, hash_contract, limit, exact, timeout_s))]
    #[allow(clippy::too_many_arguments)] // the fields of the request, by keyword
    fn find_matches<'py>(
        &self,
        py: Python<'py>,
        hashes: PyReadonlyArray1<'py, u64>,
        chunks: bool,
        model: &str,
        block_size: u32,
        hash_contract: &str,
        limit: u32,
        exact: bool,
        timeout_s: f64,
    ) -> PyResult<Columns<'py>> {
        let timeout = duration(timeout_s)?;
        let query = Query {
            model,
            block_size,
            hash_contract,
            hashes: hashes.as_slice()?,
            chunks,
            limit,
            exact,
        };
        py.detach(|| self.0.find_matches(&query, timeout))
            .map(|matches| columns(py, matches))
            .map_err(|status| error(&status))
    }

    /// Returns at once; the outcome comes into `inbox` with this `ticket`, exactly once.
    #[pyo3(signature = (hashes, *, chunks, model, block_size, hash_contract, limit, exact, timeout_s, inbox, ticket))]
    #[allow(clippy::too_many_arguments)] // the fields of the request, by keyword
    fn find_matches_soon(
        &self,
        hashes: PyReadonlyArray1<'_, u64>,
        chunks: bool,
        model: &str,
        block_size: u32,
        hash_contract: &str,
        limit: u32,
        exact: bool,
        timeout_s: f64,
        inbox: &Inbox,
        ticket: u64,
    ) -> PyResult<()> {
        let query = Query {
            model,
            block_size,
            hash_contract,
            hashes: hashes.as_slice()?,
            chunks,
            limit,
            exact,
        };
        let letters = inbox.letters();
        self.0
            .find_matches_soon(&query, duration(timeout_s)?, move |outcome| {
                letters.put(ticket, outcome.map(Letter::Matches));
            })
            .map_err(|status| error(&status))
    }

    /// Give up the connection; calls under way may finish, new ones are CANCELLED.
    fn close(&self) {
        self.0.close();
    }
}

/// Add this file's names to the extension module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyChannel>()
}
