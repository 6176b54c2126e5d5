//! The one PyO3 extension of kvatlas. A binding extracts its arguments, releases the GIL, calls a
//! pure crate and wraps the answer; it decides nothing.

use pyo3::prelude::*;

#[pymodule]
mod _native {}
