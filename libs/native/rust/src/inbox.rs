//! Outcomes of native calls on their way to an event loop.
//!
//! Native threads never run Python: a spawned call leaves its outcome in an `Inbox` and makes the
//! inbox's file descriptor readable, and the event loop takes all that has come when it next looks.
//! So no answer waits for the GIL while the I/O thread has others to read, and nothing can call into
//! an interpreter that is shutting down.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvatlas_client::{IngestResponse, Matches, Status};
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::channel::columns;
use crate::ingest::Ingested;

create_exception!(
    kvatlas_native,
    ChannelError,
    PyException,
    "A call's gRPC status that is not OK. args: (code: int, message: str)."
);

/// What comes into an inbox with a ticket.
pub type Outcome = Result<Letter, Status>;

/// The answer of one of the calls.
pub enum Letter {
    Matches(Matches),
    Ingested(IngestResponse),
}

pub fn error(status: &Status) -> PyErr {
    ChannelError::new_err((i32::from(status.code()), status.message().to_owned()))
}

/// Outcomes that wait for an event loop.
#[pyclass(frozen, module = "kvatlas_native")]
pub struct Inbox {
    letters: Arc<Letters>,
    readable: UnixStream,
}

pub struct Letters {
    waiting: Mutex<Vec<(u64, Outcome)>>,
    signal: UnixStream,
}

impl Letters {
    pub fn put(&self, ticket: u64, outcome: Outcome) {
        let mut waiting = self.lock();
        waiting.push((ticket, outcome));
        if waiting.len() == 1 {
            // One byte stands for all that waits. If the inbox is gone nobody looks any more.
            drop((&self.signal).write(&[1]));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Outcome)>> {
        // A push is all that happens under the lock: a panic cannot leave it half done.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbox {
    /// Where native threads put outcomes.
    pub fn letters(&self) -> Arc<Letters> {
        Arc::clone(&self.letters)
    }
}

#[pymethods]
impl Inbox {
    #[new]
    fn new() -> PyResult<Self> {
        let (readable, signal) = UnixStream::pair()?;
        readable.set_nonblocking(true)?;
        signal.set_nonblocking(true)?;
        let waiting = Mutex::default();
        Ok(Self {
            letters: Arc::new(Letters { waiting, signal }),
            readable,
        })
    }

    /// The stub says what an inbox's outcomes are; at run time they may be anything.
    #[classmethod]
    fn __class_getitem__(cls: &Bound<'_, PyType>, _outcome: &Bound<'_, PyAny>) -> Py<PyType> {
        cls.clone().unbind()
    }

    /// Readable while outcomes wait.
    fn fileno(&self) -> i32 {
        self.readable.as_raw_fd()
    }

    /// All outcomes that have come, in order, by ticket: the answer, or the error.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Vec<(u64, Bound<'py, PyAny>)>> {
        let letters = {
            let mut waiting = self.letters.lock();
            // Under the lock, so that a byte written for a later letter is not read with this one's.
            let mut signals = [0; 16];
            drop((&self.readable).read(&mut signals));
            std::mem::take(&mut *waiting)
        };
        letters
            .into_iter()
            .map(|(ticket, outcome)| {
                let answer = match outcome {
                    Ok(Letter::Matches(found)) => columns(py, found).into_pyobject(py)?.into_any(),
                    Ok(Letter::Ingested(answer)) => {
                        Bound::new(py, Ingested::from(answer))?.into_any()
                    }
                    Err(status) => error(&status).into_value(py).into_bound(py).into_any(),
                };
                Ok((ticket, answer))
            })
            .collect()
    }
}

/// Add this file's names to the extension module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("ChannelError", module.py().get_type::<ChannelError>())?;
    module.add_class::<Inbox>()
}
