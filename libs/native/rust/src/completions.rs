//! Completed native calls on their way to an event loop.
//!
//! Native threads never run Python. A call that completes puts its outcome into a `CompletionQueue`
//! and makes the queue's file descriptor readable; the event loop then takes all outcomes at once.
//! So the I/O thread never waits for the GIL, and nothing calls into an interpreter that is shutting
//! down.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvatlas_client::{FindError, Status};
use pyo3::PyClass;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyType;

create_exception!(
    kvatlas_native,
    ChannelError,
    PyException,
    "A call's gRPC status that is not OK. args: (code: int, message: str)."
);

create_exception!(
    kvatlas_native,
    FindMatchesError,
    PyException,
    "A query without an answer. args: (reason, failures of replicas)."
);

/// Why a call failed.
pub enum CallError {
    /// A gRPC status that is not OK.
    Status(Status),
    /// No answer of a cell.
    Find(FindError),
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl From<FindError> for CallError {
    fn from(error: FindError) -> Self {
        Self::Find(error)
    }
}

impl From<CallError> for PyErr {
    fn from(call: CallError) -> Self {
        match call {
            CallError::Status(status) => error(&status),
            CallError::Find(none) => find_error(none),
        }
    }
}

/// A completed call: what makes the Python object of its answer, or why it failed.
type Outcome = Result<Answer, CallError>;
type Answer = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

pub fn error(status: &Status) -> PyErr {
    ChannelError::new_err((i32::from(status.code()), status.message().to_owned()))
}

/// The exception: why there is no answer, and each failure as replica, gRPC status and text.
pub fn find_error(error: FindError) -> PyErr {
    let (reason, failures) = match error {
        FindError::NoReplica { failures, .. } => ("no_replica", failures),
        FindError::CellMismatch { failure, .. } => ("cell_mismatch", vec![failure]),
        FindError::QueryRejected(failure) => ("query_rejected", vec![failure]),
    };
    let failures: Vec<(String, i32, String)> = failures
        .into_iter()
        .map(|each| (each.replica.to_string(), each.code.into(), each.message))
        .collect();
    FindMatchesError::new_err((reason, failures))
}

/// The event loop's end of a queue of completed calls.
#[pyclass(frozen, module = "kvatlas_native")]
pub struct CompletionQueue {
    sender: Arc<CompletionSender>,
    readable: UnixStream,
}

/// The native threads' end: each outcome goes in with the ticket of its call.
pub struct CompletionSender {
    completed: Mutex<Vec<(u64, Outcome)>>,
    signal: UnixStream,
}

impl CompletionSender {
    /// Completes a call; `convert` makes the Python object of its answer on the event loop.
    pub fn send<T, C>(
        &self,
        ticket: u64,
        outcome: Result<T, impl Into<CallError>>,
        convert: impl FnOnce(Python<'_>, T) -> C + Send + 'static,
    ) where
        T: Send + 'static,
        C: PyClass + Into<PyClassInitializer<C>>,
    {
        let answer = outcome.map_err(Into::into).map(|answer| -> Answer {
            Box::new(move |py| Ok(Py::new(py, convert(py, answer))?.into_any()))
        });
        let mut completed = self.lock();
        completed.push((ticket, answer));
        if completed.len() == 1 {
            // One byte stands for all outcomes that wait. It is lost if the queue is gone.
            drop((&self.signal).write(&[1]));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Outcome)>> {
        // Only a push happens under the lock, so a panic cannot leave the list half changed.
        self.completed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl CompletionQueue {
    pub fn sender(&self) -> Arc<CompletionSender> {
        Arc::clone(&self.sender)
    }
}

#[pymethods]
impl CompletionQueue {
    #[new]
    fn new() -> PyResult<Self> {
        let (readable, signal) = UnixStream::pair()?;
        readable.set_nonblocking(true)?;
        signal.set_nonblocking(true)?;
        let completed = Mutex::default();
        Ok(Self {
            sender: Arc::new(CompletionSender { completed, signal }),
            readable,
        })
    }

    /// The stub names the type of a queue's answers; at run time they may be of any type.
    #[classmethod]
    fn __class_getitem__(cls: &Bound<'_, PyType>, _answer: &Bound<'_, PyAny>) -> Py<PyType> {
        cls.clone().unbind()
    }

    /// A descriptor that is readable while outcomes wait.
    fn fileno(&self) -> i32 {
        self.readable.as_raw_fd()
    }

    /// Takes all completed calls in order: ticket, and the answer or the error.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Vec<(u64, Bound<'py, PyAny>)>> {
        let completed = {
            let mut completed = self.sender.lock();
            // Under the lock: else this read could also take the signal of a later outcome.
            let mut signals = [0; 16];
            drop((&self.readable).read(&mut signals));
            std::mem::take(&mut *completed)
        };
        completed
            .into_iter()
            .map(|(ticket, outcome)| {
                let answer = match outcome {
                    Ok(answer) => answer(py)?.into_bound(py),
                    Err(error) => PyErr::from(error).into_value(py).into_bound(py).into_any(),
                };
                Ok((ticket, answer))
            })
            .collect()
    }
}
