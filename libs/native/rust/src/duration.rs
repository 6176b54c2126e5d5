//! Durations of Python: seconds as a float.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Returns a timeout of Python's as a duration; a negative one is zero.
pub fn duration(timeout_s: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(timeout_s.max(0.0))
        .map_err(|_| PyValueError::new_err("a timeout must be a number of seconds"))
}
