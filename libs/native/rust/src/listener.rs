//! Binding of a listening socket that several processes of a frontend share, and of the memory in which they count their
//! connections.
//!
//! Sound: a descriptor is only duplicated while it is borrowed, and the system refuses one that is not open. The memory of
//! `lines` is viewed as atomic words: its size, alignment and writability are checked, and its buffer is never released, so
//! it stays mapped as long as the process lives. All other access to it is by the same words, from other processes.

use std::net::TcpListener;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU64;

use kvatlas_proxy::{ConnectionLines, LINE_WORDS, SharedListener};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A listening socket that other processes have too.
#[pyclass(frozen, name = "SharedListener", module = "kvatlas_native")]
pub struct PySharedListener {
    fd: i32,
    words: &'static [AtomicU64],
    process: usize,
}

impl PySharedListener {
    /// The socket, as a descriptor of its own.
    pub fn open(&self) -> PyResult<SharedListener> {
        // SAFETY: not negative, and borrowed for this call only.
        let borrowed = unsafe { BorrowedFd::borrow_raw(self.fd) };
        let listener = TcpListener::from(borrowed.try_clone_to_owned()?);
        let lines = ConnectionLines::new(self.words, self.process)?;
        Ok(SharedListener::new(listener, lines)?)
    }
}

#[pymethods]
impl PySharedListener {
    #[new]
    fn new(fd: i32, lines: PyBuffer<u64>, process: usize) -> PyResult<Self> {
        let whole = lines.is_c_contiguous() && lines.item_count() % LINE_WORDS == 0;
        if fd < 0 || !whole || lines.readonly() || process >= lines.item_count() / LINE_WORDS {
            return Err(PyValueError::new_err(
                "a descriptor, writable lines of uint64, and the number of a line are expected",
            ));
        }
        let first = lines.buf_ptr().cast::<AtomicU64>();
        let words = lines.item_count();
        std::mem::forget(lines);
        // SAFETY: a buffer of u64 is aligned and as long as it says; it is never released; atomics allow shared writes.
        let words = unsafe { std::slice::from_raw_parts(first, words) };
        Ok(Self { fd, words, process })
    }
}
