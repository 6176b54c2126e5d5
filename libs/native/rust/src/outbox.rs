//! Bindings of the outbox.

use pyo3::prelude::*;

/// Add this file's names to the extension module.
pub fn register(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
