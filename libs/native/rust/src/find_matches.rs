//! Query and answer of `FindMatches` as Python objects.

use kvatlas_client::{FindMatchesResponse, Found, Query};
use numpy::{IntoPyArray, PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyString;

/// A query of `FindMatches`.
#[pyclass(frozen, get_all, name = "Query", module = "kvatlas_native")]
pub struct PyQuery {
    hashes: Py<PyArray1<u64>>,
    chunks: bool,
    limit: u32,
    exact: bool,
}

#[pymethods]
impl PyQuery {
    #[new]
    #[pyo3(signature = (hashes, *, chunks, limit, exact))]
    fn new(hashes: Py<PyArray1<u64>>, chunks: bool, limit: u32, exact: bool) -> Self {
        Self {
            hashes,
            chunks,
            limit,
            exact,
        }
    }
}

impl PyQuery {
    /// Borrows the array of hashes, for `with_hashes`.
    pub fn hashes<'py>(&self, py: Python<'py>) -> PyResult<PyReadonlyArray1<'py, u64>> {
        Ok(self.hashes.bind(py).try_readonly()?)
    }

    /// The query over its borrowed hashes, as the client takes it.
    pub fn with_hashes<'a>(&self, hashes: &'a PyReadonlyArray1<'_, u64>) -> PyResult<Query<'a>> {
        Ok(Query {
            hashes: hashes.as_slice()?,
            chunks: self.chunks,
            limit: self.limit,
            exact: self.exact,
        })
    }
}

/// Workers that hold leading blocks of a prompt, in parallel columns.
#[pyclass(frozen, get_all, name = "Matches", module = "kvatlas_native")]
pub struct PyMatches {
    worker_ids: Py<PyArray1<u64>>,
    dp_ranks: Py<PyArray1<u32>>,
    depths: Py<PyArray1<u32>>,
    replica: Py<PyString>,
}

#[pymethods]
impl PyMatches {
    #[new]
    fn new(
        worker_ids: Py<PyArray1<u64>>,
        dp_ranks: Py<PyArray1<u32>>,
        depths: Py<PyArray1<u32>>,
        replica: Py<PyString>,
    ) -> Self {
        Self {
            worker_ids,
            dp_ranks,
            depths,
            replica,
        }
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.worker_ids.bind(py).len()
    }

    fn __repr__(&self) -> String {
        format!(
            "Matches(worker_ids={}, dp_ranks={}, depths={}, replica='{}')",
            self.worker_ids, self.dp_ranks, self.depths, self.replica
        )
    }

    /// The arguments with which pickle makes it again.
    fn __getnewargs__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let arguments = (
            &self.worker_ids,
            &self.dp_ranks,
            &self.depths,
            &self.replica,
        );
        Ok(arguments.into_pyobject(py)?.into_any().unbind())
    }
}

impl PyMatches {
    /// Takes over the columns of a replica's answer without a copy.
    pub fn from_response(py: Python<'_>, response: FindMatchesResponse, replica: &str) -> Self {
        Self {
            worker_ids: response.worker_ids.into_pyarray(py).unbind(),
            dp_ranks: response.dp_ranks.into_pyarray(py).unbind(),
            depths: response.depths.into_pyarray(py).unbind(),
            replica: PyString::new(py, replica).unbind(),
        }
    }

    /// Does the same for an answer that a finder found.
    pub fn from_found(py: Python<'_>, found: Found) -> Self {
        Self::from_response(py, found.response, &found.replica)
    }
}
