//! Binding of the memory that a publisher's mirrors share, and of the thread that takes it ahead of them.

use std::thread;

use kvatlas_pages::Memory as NativeMemory;
use pyo3::prelude::*;

/// Add this file's names to the extension module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Memory>()
}

/// Mirrors hold clones; the thread ends with the last of them.
#[pyclass(frozen, module = "kvatlas_native")]
pub struct Memory {
    pub(crate) native: NativeMemory,
}

#[pymethods]
impl Memory {
    #[new]
    fn new() -> PyResult<Self> {
        let (native, preparer) = NativeMemory::on_large_pages();
        thread::Builder::new()
            .name("kvatlas-memory".into())
            .spawn(|| preparer.run())?;
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
