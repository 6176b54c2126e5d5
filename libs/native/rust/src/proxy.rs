//! Binding of the frontend's data plane: its events for an event loop, and the steps that answer them.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use kvatlas_proxy::exchange::{Answer, EngineAddress, Event, EventSink, Exchange, Forward, Step};
use kvatlas_proxy::{Limits, Server};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::duration::duration;
use crate::listener::PySharedListener;

/// A running HTTP server. It lives on a thread of its own, which never runs Python.
#[pyclass(frozen, module = "kvatlas_native")]
pub struct Proxy {
    server: Server,
    queue: Arc<EventQueue>,
    readable: UnixStream,
}

/// Events on their way to an event loop. One byte in the pipe stands for all that wait.
struct EventQueue {
    waiting: Mutex<Vec<Event>>,
    signal: UnixStream,
}

impl EventQueue {
    fn lock(&self) -> MutexGuard<'_, Vec<Event>> {
        // Only a push happens under the lock, so a panic cannot leave the list half changed.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventSink for EventQueue {
    fn push(&self, event: Event) {
        let mut waiting = self.lock();
        waiting.push(event);
        if waiting.len() == 1 {
            // It is lost if the queue is gone.
            drop((&self.signal).write(&[1]));
        }
    }
}

#[pymethods]
impl Proxy {
    #[new]
    #[pyo3(signature = (host, port, *, shared=None, head_bytes_max, headers_max, body_bytes_max, answer_buffer_bytes_max, head_timeout_s, body_timeout_s, idle_timeout_s, write_timeout_s, connect_timeout_s, first_byte_timeout_s, between_bytes_timeout_s))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        host: &str,
        port: u16,
        shared: Option<PyRef<'_, PySharedListener>>,
        head_bytes_max: usize,
        headers_max: usize,
        body_bytes_max: usize,
        answer_buffer_bytes_max: usize,
        head_timeout_s: f64,
        body_timeout_s: f64,
        idle_timeout_s: f64,
        write_timeout_s: f64,
        connect_timeout_s: f64,
        first_byte_timeout_s: Option<f64>,
        between_bytes_timeout_s: Option<f64>,
    ) -> PyResult<Self> {
        let limits = Limits {
            head_bytes_max,
            headers_max,
            body_bytes_max,
            answer_buffer_bytes_max,
            head_timeout: duration(head_timeout_s)?,
            body_timeout: duration(body_timeout_s)?,
            idle_timeout: duration(idle_timeout_s)?,
            write_timeout: duration(write_timeout_s)?,
            connect_timeout: duration(connect_timeout_s)?,
            first_byte_timeout: first_byte_timeout_s.map(duration).transpose()?,
            between_bytes_timeout: between_bytes_timeout_s.map(duration).transpose()?,
        };
        let (readable, signal) = UnixStream::pair()?;
        readable.set_nonblocking(true)?;
        signal.set_nonblocking(true)?;
        let waiting = Mutex::default();
        let queue = Arc::new(EventQueue { waiting, signal });
        let sink: Arc<dyn EventSink> = Arc::clone(&queue) as _;
        let server = match shared {
            None => Server::start(host, port, limits, sink)?,
            Some(listener) => Server::start_shared(listener.open()?, limits, sink)?,
        };
        Ok(Self {
            server,
            queue,
            readable,
        })
    }

    #[getter]
    fn address(&self) -> (String, u16) {
        let address = self.server.address();
        (address.ip().to_string(), address.port())
    }

    #[getter]
    fn in_flight(&self) -> usize {
        self.server.in_flight()
    }

    fn fileno(&self) -> i32 {
        self.readable.as_raw_fd()
    }

    fn take(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let events = {
            let mut waiting = self.queue.lock();
            // Under the lock: else this read could also take the signal of a later event.
            let mut signals = [0; 16];
            drop((&self.readable).read(&mut signals));
            std::mem::take(&mut *waiting)
        };
        events.into_iter().map(|event| python(py, event)).collect()
    }

    fn close(&self, py: Python<'_>, grace_s: f64) -> PyResult<()> {
        let grace = duration(grace_s)?;
        py.detach(|| self.server.close(grace));
        Ok(())
    }
}

/// A request, and the way to answer it.
#[pyclass(frozen, name = "Exchange", module = "kvatlas_native")]
pub struct PyExchange {
    exchange: Arc<Exchange>,
}

#[pymethods]
impl PyExchange {
    #[getter]
    fn id(&self) -> u64 {
        self.exchange.id
    }

    #[getter]
    fn method(&self) -> &str {
        self.exchange.request.method.as_str()
    }

    #[getter]
    fn path(&self) -> &str {
        &self.exchange.request.path
    }

    #[getter]
    fn query(&self) -> &str {
        &self.exchange.request.query
    }

    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.exchange.request.body)
    }

    #[getter]
    fn error_form(&self) -> &'static str {
        self.exchange.request.error_form().name()
    }

    #[getter]
    fn age_s(&self) -> f64 {
        self.exchange.request.arrived.elapsed().as_secs_f64()
    }

    fn header(&self, name: &str) -> Option<String> {
        let value = self.exchange.request.headers.get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    }

    #[pyo3(signature = (host, port, target, request_headers, answer_headers, *, begin_bytes=0))]
    fn forward(
        &self,
        host: &str,
        port: u16,
        target: &str,
        request_headers: Vec<(String, String)>,
        answer_headers: Vec<(String, String)>,
        begin_bytes: usize,
    ) -> PyResult<()> {
        let forward = Forward {
            engine: EngineAddress {
                host: host.to_owned(),
                port,
            },
            target: target.to_owned(),
            request_headers: header_pairs(request_headers)?,
            answer_headers: header_pairs(answer_headers)?,
            begin_bytes,
        };
        self.exchange.proceed(Step::Forward(forward));
        Ok(())
    }

    fn answer(&self, status: u16, headers: Vec<(String, String)>, body: &[u8]) -> PyResult<()> {
        let status = StatusCode::from_u16(status)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let answer = Answer {
            status,
            headers: header_pairs(headers)?,
            body: Bytes::copy_from_slice(body),
        };
        self.exchange.proceed(Step::Answer(answer));
        Ok(())
    }
}

fn header_pairs(pairs: Vec<(String, String)>) -> PyResult<Vec<(HeaderName, HeaderValue)>> {
    pairs
        .into_iter()
        .map(|(name, value)| {
            let name = name.parse::<HeaderName>();
            let value = HeaderValue::from_maybe_shared(Bytes::from(value));
            match (name, value) {
                (Ok(name), Ok(value)) => Ok((name, value)),
                _ => Err(PyValueError::new_err("not a header")),
            }
        })
        .collect()
}

/// A whole request waits for a step.
#[pyclass(frozen, get_all, module = "kvatlas_native")]
pub struct Arrived {
    exchange: Py<PyExchange>,
}

/// An engine gave no byte of an answer.
#[pyclass(frozen, get_all, module = "kvatlas_native")]
pub struct Failed {
    id: u64,
    kind: &'static str,
    detail: String,
    status: Option<u16>,
    retry_after: Option<String>,
}

/// The first byte of an engine's answer has arrived.
#[pyclass(frozen, get_all, module = "kvatlas_native")]
pub struct FirstByte {
    id: u64,
    begin: Py<PyBytes>,
}

/// A request is over.
#[pyclass(frozen, get_all, module = "kvatlas_native")]
pub struct Ended {
    id: u64,
    status: u16,
    broken: Option<String>,
    tail: Py<PyBytes>,
}

/// A request was refused before it had arrived.
#[pyclass(frozen, get_all, module = "kvatlas_native")]
pub struct Refused {
    path: String,
    status: u16,
    code: &'static str,
}

fn python(py: Python<'_>, event: Event) -> PyResult<Py<PyAny>> {
    Ok(match event {
        Event::Arrived(exchange) => {
            let exchange = Py::new(py, PyExchange { exchange })?;
            Py::new(py, Arrived { exchange })?.into_any()
        }
        Event::Failed { id, failure } => Py::new(
            py,
            Failed {
                id,
                kind: failure.kind.name(),
                detail: failure.detail,
                status: failure.status.map(|status| status.as_u16()),
                retry_after: failure
                    .retry_after
                    .and_then(|value| value.to_str().map(str::to_owned).ok()),
            },
        )?
        .into_any(),
        Event::FirstByte { id, begin } => {
            let begin = PyBytes::new(py, &begin).unbind();
            Py::new(py, FirstByte { id, begin })?.into_any()
        }
        Event::Ended { id, ending } => Py::new(
            py,
            Ended {
                id,
                status: ending.status,
                broken: ending.broken,
                tail: PyBytes::new(py, &ending.tail).unbind(),
            },
        )?
        .into_any(),
        Event::Refused { path, status, code } => {
            Py::new(py, Refused { path, status, code })?.into_any()
        }
    })
}
