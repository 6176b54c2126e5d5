//! The one PyO3 extension of kvatlas. A binding extracts its arguments, releases the GIL, calls a
//! pure crate and wraps the answer; it decides nothing.

mod cell;
mod channel;
mod hashing;
mod inbox;
mod ingest;
mod memory;
mod mirror;
mod outbox;
mod replica;
mod subscriber;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    hashing::register(module)?;
    memory::register(module)?;
    mirror::register(module)?;
    subscriber::register(module)?;
    outbox::register(module)?;
    cell::register(module)?;
    replica::register(module)?;
    inbox::register(module)?;
    channel::register(module)?;
    ingest::register(module)
}
