//! Bindings of a restoration: a cell's state from a file or from a peer's dump.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use kvatlas_cell::state::restore::{
    Restore as NativeRestore, RestoreError, Restored as NativeRestored,
};
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::cell::Cell;

create_exception!(kvatlas_native, RestoreRefused, PyValueError);

#[pyclass(frozen, get_all, module = "kvatlas_native")]
pub struct Restored {
    workers: u64,
    memberships: u64,
    positions: HashMap<String, (String, String)>,
}

impl From<NativeRestored> for Restored {
    fn from(restored: NativeRestored) -> Self {
        Self {
            workers: restored.workers,
            memberships: restored.memberships,
            positions: restored.positions,
        }
    }
}

#[pyclass(frozen, module = "kvatlas_native")]
pub struct Restore {
    native: Mutex<Option<NativeRestore>>,
}

impl Restore {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(NativeRestore) -> (Option<NativeRestore>, Result<T, RestoreError>) + Send,
    ) -> PyResult<T> {
        let result = py.detach(|| {
            let mut native = self.native.lock().ok()?;
            let (rest, result) = work(native.take()?);
            *native = rest;
            Some(result)
        });
        match result {
            None => Err(PyRuntimeError::new_err("this restoration is over")),
            Some(result) => {
                result.map_err(|error| RestoreRefused::new_err((error.refusal.name(), error.text)))
            }
        }
    }
}

#[pymethods]
impl Restore {
    #[new]
    fn new(cell: &Bound<'_, Cell>) -> Self {
        let cell = Arc::clone(&cell.get().native);
        Self {
            native: Mutex::new(Some(NativeRestore::new(cell))),
        }
    }

    fn read_file(&self, py: Python<'_>, path: PathBuf, checksum: u64) -> PyResult<()> {
        self.with(py, |mut native| match native.read_file(&path, checksum) {
            Ok(()) => (Some(native), Ok(())),
            Err(error) => (None, Err(error)),
        })
    }

    fn feed(&self, py: Python<'_>, data: Vec<u8>) -> PyResult<()> {
        self.with(py, |mut native| match native.feed(data) {
            Ok(()) => (Some(native), Ok(())),
            Err(error) => (None, Err(error)),
        })
    }

    fn finish(&self, py: Python<'_>, now_unix_ms: u64) -> PyResult<Restored> {
        self.with(py, |native| (None, native.finish(now_unix_ms)))
            .map(Restored::from)
    }
}
