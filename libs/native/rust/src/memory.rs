//! Binds the memory shared by a publisher's mirrors, and the thread that takes pages ahead of need.

use std::thread;

use kvatlas_pages::Memory;
use pyo3::prelude::*;

/// Mirrors hold clones; the thread ends with the last of them.
#[pyclass(frozen, module = "kvatlas_native")]
pub struct MirrorMemory {
    pub(crate) native: Memory,
}

#[pymethods]
impl MirrorMemory {
    #[new]
    fn new() -> PyResult<Self> {
        let (native, prefaulter) = Memory::on_large_pages();
        thread::Builder::new()
            .name("kvatlas-memory".into())
            .spawn(|| prefaulter.run())?;
        Ok(Self { native })
    }

    #[getter]
    fn used_bytes(&self) -> usize {
        self.native.used_bytes()
    }

    #[getter]
    fn idle_bytes(&self) -> usize {
        self.native.idle_bytes()
    }
}
