//! Bindings of the client's channel.
//!
//! Native threads never run Python: a spawned call leaves its outcome in an `Inbox` and makes the
//! inbox's file descriptor readable, and the event loop takes all that has come when it next looks.
//! So no answer waits for the GIL while the I/O thread has others to read, and nothing can call into
//! an interpreter that is shutting down.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvatlas_client::{Channel, Matches, Query, Status};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

create_exception!(
    kvatlas_native,
    ChannelError,
    PyException,
    "A call's gRPC status that is not OK. args: (code: int, message: str)."
);

/// Columns of one answer: worker_ids, dp_ranks, depths.
type Columns<'py> = (
    Bound<'py, PyArray1<u64>>,
    Bound<'py, PyArray1<u32>>,
    Bound<'py, PyArray1<u32>>,
);
type Outcome = Result<Matches, Status>;

fn error(status: &Status) -> PyErr {
    ChannelError::new_err((i32::from(status.code()), status.message().to_owned()))
}

fn columns(py: Python<'_>, matches: Matches) -> Columns<'_> {
    (
        matches.worker_ids.into_pyarray(py),
        matches.dp_ranks.into_pyarray(py),
        matches.depths.into_pyarray(py),
    )
}

fn duration(timeout_s: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(timeout_s.max(0.0))
        .map_err(|_| PyValueError::new_err("timeout_s must be a number of seconds"))
}

/// One connection to one indexer, kept and made again in the background; thread-safe.
#[pyclass(frozen, name = "Channel", module = "kvatlas_native")]
struct PyChannel(Channel);

#[pymethods]
impl PyChannel {
    #[new]
    fn new(address: &str) -> PyResult<Self> {
        Channel::new(address)
            .map(Self)
            .map_err(|status| PyValueError::new_err(status.message().to_owned()))
    }

    /// Blocks without the GIL. ChannelError: any status but OK.
    #[pyo3(signature = (hashes, *, chunks, model, block_size, hash_contract, limit, exact, timeout_s))]
    #[allow(clippy::too_many_arguments)] // the fields of the request, by keyword
    fn find_matches<'py>(
        &self,
        py: Python<'py>,
        hashes: PyReadonlyArray1<'py, u64>,
        chunks: bool,
        model: &str,
        block_size: u32,
        hash_contract: &str,
        limit: u32,
        exact: bool,
        timeout_s: f64,
    ) -> PyResult<Columns<'py>> {
        let timeout = duration(timeout_s)?;
        let query = Query {
            model,
            block_size,
            hash_contract,
            hashes: hashes.as_slice()?,
            chunks,
            limit,
            exact,
        };
        py.detach(|| self.0.find_matches(&query, timeout))
            .map(|matches| columns(py, matches))
            .map_err(|status| error(&status))
    }

    /// Returns at once; the outcome comes into `inbox` with this `ticket`, exactly once.
    #[pyo3(signature = (hashes, *, chunks, model, block_size, hash_contract, limit, exact, timeout_s, inbox, ticket))]
    #[allow(clippy::too_many_arguments)] // the fields of the request, by keyword
    fn find_matches_soon(
        &self,
        hashes: PyReadonlyArray1<'_, u64>,
        chunks: bool,
        model: &str,
        block_size: u32,
        hash_contract: &str,
        limit: u32,
        exact: bool,
        timeout_s: f64,
        inbox: &Inbox,
        ticket: u64,
    ) -> PyResult<()> {
        let query = Query {
            model,
            block_size,
            hash_contract,
            hashes: hashes.as_slice()?,
            chunks,
            limit,
            exact,
        };
        let letters = Arc::clone(&inbox.letters);
        self.0
            .find_matches_soon(&query, duration(timeout_s)?, move |outcome| {
                letters.put(ticket, outcome);
            })
            .map_err(|status| error(&status))
    }

    /// Give up the connection; calls under way may finish, new ones are CANCELLED.
    fn close(&self) {
        self.0.close();
    }
}

/// Outcomes that wait for an event loop.
#[pyclass(frozen, module = "kvatlas_native")]
struct Inbox {
    letters: Arc<Letters>,
    readable: UnixStream,
}

struct Letters {
    waiting: Mutex<Vec<(u64, Outcome)>>,
    signal: UnixStream,
}

impl Letters {
    fn put(&self, ticket: u64, outcome: Outcome) {
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

    /// Readable while outcomes wait.
    fn fileno(&self) -> i32 {
        self.readable.as_raw_fd()
    }

    /// All outcomes that have come, in order, by ticket: columns, or the error.
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
                    Ok(matches) => columns(py, matches).into_pyobject(py)?.into_any(),
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
    module.add_class::<PyChannel>()?;
    module.add_class::<Inbox>()
}
