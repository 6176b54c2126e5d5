//! Binding of the client's finder: `FindMatches` of a cell, and the choice of a replica.

use std::sync::Arc;

use kvatlas_client::{CellTerms, Finder, Replicas, Status};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::completions::{CompletionQueue, find_error};
use crate::duration::duration;
use crate::find_matches::{PyMatches, PyQuery};

fn wrong_address(status: &Status) -> PyErr {
    PyValueError::new_err(status.message().to_owned())
}

/// `FindMatches` of a cell's replicas, within one deadline; thread-safe.
#[pyclass(frozen, name = "Finder", module = "kvatlas_native")]
pub struct PyFinder {
    finder: Arc<Finder>,
}

impl PyFinder {
    /// The finder itself, for other bindings that ask the cell's replicas.
    pub fn shared(&self) -> Arc<Finder> {
        Arc::clone(&self.finder)
    }
}

#[pymethods]
impl PyFinder {
    #[new]
    #[pyo3(signature = (replicas, *, model, block_size, hash_contract, seed))]
    fn new(
        replicas: Vec<String>,
        model: String,
        block_size: u32,
        hash_contract: String,
        seed: u64,
    ) -> PyResult<Self> {
        let terms = CellTerms {
            model,
            block_size,
            hash_contract,
        };
        let finder = Finder::new(replicas, terms, seed).map_err(|status| wrong_address(&status))?;
        Ok(Self {
            finder: Arc::new(finder),
        })
    }

    /// Blocks without the GIL. FindError: there is no answer.
    fn find_matches(
        &self,
        py: Python<'_>,
        query: &Bound<'_, PyQuery>,
        deadline_s: f64,
    ) -> PyResult<PyMatches> {
        let deadline = duration(deadline_s)?;
        let hashes = query.get().hashes(py)?;
        let query = query.get().with_hashes(&hashes)?;
        py.detach(|| self.finder.find_matches_blocking(&query, deadline))
            .map(|found| PyMatches::from_found(py, found))
            .map_err(find_error)
    }

    /// Returns at once; the outcome arrives in `queue` with this `ticket`, exactly once.
    fn find_matches_soon(
        &self,
        py: Python<'_>,
        query: &Bound<'_, PyQuery>,
        deadline_s: f64,
        queue: &CompletionQueue,
        ticket: u64,
    ) -> PyResult<()> {
        let deadline = duration(deadline_s)?;
        let hashes = query.get().hashes(py)?;
        let query = query.get().with_hashes(&hashes)?;
        let completed = queue.sender();
        let done = move |outcome| completed.send(ticket, outcome, PyMatches::from_found);
        self.shared().find_matches_soon(&query, deadline, done);
        Ok(())
    }

    /// Observations of each replica: address, failures in a row, last error.
    fn replicas(&self) -> Vec<(String, u32, Option<String>)> {
        let observed = self.finder.replicas().into_iter();
        observed
            .map(|each| (each.address.to_string(), each.failures, each.last_error))
            .collect()
    }

    /// Close all connections; attempts under way may finish, further ones are CANCELLED.
    fn close(&self) {
        self.finder.close();
    }
}

/// Chooses the replica to ask next, from what was observed of each.
#[pyclass(frozen, name = "Replicas", module = "kvatlas_native")]
pub struct PyReplicas {
    replicas: Replicas,
}

impl PyReplicas {
    fn find(&self, address: &str) -> PyResult<usize> {
        let mut addresses = self.replicas.addresses().iter();
        addresses
            .position(|each| **each == *address)
            .ok_or_else(|| PyValueError::new_err(format!("'{address}' is none of the replicas")))
    }
}

#[pymethods]
impl PyReplicas {
    #[new]
    fn new(addresses: Vec<String>, seed: u64) -> PyResult<Self> {
        if addresses.is_empty() {
            return Err(PyValueError::new_err("there is no address of a replica"));
        }
        let addresses = addresses.into_iter().map(Arc::from);
        Ok(Self {
            replicas: Replicas::new(addresses, seed),
        })
    }

    /// The replica to ask now.
    fn choose(&self, now_s: f64) -> PyResult<&str> {
        let first = self.replicas.order(duration(now_s)?).next();
        // The constructor has refused to have no replica.
        Ok(&self.replicas.addresses()[first.unwrap_or(0)])
    }

    /// Report that the replica answered.
    fn answered(&self, address: &str) -> PyResult<()> {
        self.replicas.answered(self.find(address)?);
        Ok(())
    }

    /// Report that the replica was not reached in time, or cannot serve.
    fn failed(&self, address: &str, now_s: f64, error: &str) -> PyResult<()> {
        let replica = self.find(address)?;
        self.replicas.failed(replica, duration(now_s)?, error);
        Ok(())
    }

    /// Seconds until some replica may be asked; 0: now.
    fn wait_s(&self, now_s: f64) -> PyResult<f64> {
        Ok(self.replicas.wait(duration(now_s)?).as_secs_f64())
    }
}

/// Check that an address is host:port.
#[pyfunction]
pub fn check_address(address: &str) -> PyResult<()> {
    kvatlas_client::check_address(address).map_err(|status| wrong_address(&status))
}
