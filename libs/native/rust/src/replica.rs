//! Bindings of a replica's life: its state into a file, out of a file or a peer's dump, and its lag.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use kvatlas_cell::Cell as NativeCell;
use kvatlas_cell::restore::{Restore as NativeRestore, RestoreError, Restored as NativeRestored};
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::cell::{Cell, os_error};

create_exception!(kvatlas_native, RestoreRefused, PyValueError);

/// Add this file's names to the extension module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("RestoreRefused", module.py().get_type::<RestoreRefused>())?;
    module.add_class::<Saved>()?;
    module.add_class::<Restored>()?;
    module.add_class::<Restore>()?;
    module.add_class::<Lags>()
}

#[pyclass(frozen, get_all, module = "kvatlas_native")]
pub struct Saved {
    bytes: u64,
    checksum: u64,
    workers: u64,
    memberships: u64,
}

#[pyclass(frozen, get_all, module = "kvatlas_native")]
struct Restored {
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

#[pyclass(frozen, get_all, module = "kvatlas_native")]
pub struct Lags {
    most: Vec<(u64, u32, u64, u64)>,
    workers: u64,
    events: u64,
    ms_max: u64,
}

/// What `Cell.save` does.
pub fn save(cell: &NativeCell, path: PathBuf) -> PyResult<Saved> {
    let saved = cell.save(&path).map_err(os_error)?;
    Ok(Saved {
        bytes: saved.bytes,
        checksum: saved.checksum,
        workers: saved.workers,
        memberships: saved.memberships,
    })
}

/// What `Cell.lags` does.
pub fn lags(cell: &NativeCell, limit: usize, now_ms: u64) -> Lags {
    let lags = cell.lags(limit, now_ms);
    let most = lags.most.iter();
    Lags {
        most: most
            .map(|lag| (lag.key.worker_id, lag.key.dp_rank, lag.events, lag.ms))
            .collect(),
        workers: lags.workers,
        events: lags.events,
        ms_max: lags.ms_max,
    }
}

#[pyclass(frozen, module = "kvatlas_native")]
struct Restore {
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
