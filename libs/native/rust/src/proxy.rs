//! Binding of the frontend's data plane: its events for an event loop, and the steps that answer them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use kvatlas_proxy::exchange::{Answer, EngineAddress, Event, EventSink, Exchange, Forward, Step};
use kvatlas_proxy::{Limits, Server};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arrivals::{Arrival, Arrivals, Asks, Queued};
use crate::completions::find_error;
use crate::duration::duration;
use crate::engine_tls::PyEngineTls;
use crate::event_queue::EventQueue;
use crate::find_matches::PyMatches;
use crate::finder::PyFinder;
use crate::listener::PySharedListener;
use crate::prompts::{PyPromptReader, PyReadPrompt};

/// A running HTTP server. It lives on a thread of its own, which never runs Python.
#[pyclass(frozen, module = "kvatlas_native")]
pub struct Proxy {
    server: Server,
    queue: Arc<EventQueue<Queued>>,
    is_asking: Arc<AtomicBool>,
}

#[pymethods]
impl Proxy {
    #[new]
    #[pyo3(signature = (host, port, *, engine_tls, shared=None, head_bytes_max, headers_max, body_bytes_max, answer_buffer_bytes_max, head_timeout_s, body_timeout_s, idle_timeout_s, write_timeout_s, connect_timeout_s, first_byte_timeout_s, between_bytes_timeout_s, prompts, finder, matches_limit, matches_deadline_s))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        host: &str,
        port: u16,
        engine_tls: &PyEngineTls,
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
        prompts: Option<&PyPromptReader>,
        finder: Option<&PyFinder>,
        matches_limit: u32,
        matches_deadline_s: f64,
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
        let queue = Arc::new(EventQueue::new()?);
        let reader = prompts.map(|prompts| Arc::clone(&prompts.reader));
        let is_asking = Arc::new(AtomicBool::new(true));
        let finder = finder.map(PyFinder::shared);
        let deadline = duration(matches_deadline_s)?;
        let asks = finder.as_ref().map(|finder| Asks {
            finder: Arc::clone(finder),
            limit: matches_limit,
            deadline,
            is_on: Arc::clone(&is_asking),
        });
        let sink: Arc<dyn EventSink> = Arc::new(Arrivals::new(Arc::clone(&queue), reader, asks));
        let tls = engine_tls.tls.clone();
        let server = match shared {
            None => Server::start(host, port, limits, tls, sink)?,
            Some(listener) => Server::start_shared(listener.open()?, limits, tls, sink)?,
        };
        if let Some(finder) = finder {
            finder.run_on(server.runtime());
        }
        Ok(Self {
            server,
            queue,
            is_asking,
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

    /// Switches asking the indexers on or off.
    fn set_asking(&self, is_on: bool) {
        self.is_asking.store(is_on, Ordering::Relaxed);
    }

    fn fileno(&self) -> i32 {
        self.queue.descriptor()
    }

    fn take(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let events = self.queue.take();
        events
            .into_iter()
            .map(|event| match event {
                Queued::Arrived(arrival) => {
                    Ok(Py::new(py, Arrived::new(py, *arrival)?)?.into_any())
                }
                Queued::Event(event) => python(py, event),
            })
            .collect()
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

    #[pyo3(signature = (host, port, target, request_headers, answer_headers, *, is_tls, begin_bytes=0))]
    #[expect(clippy::too_many_arguments, reason = "arguments of Python")]
    fn forward(
        &self,
        host: &str,
        port: u16,
        target: &str,
        request_headers: Vec<(String, String)>,
        answer_headers: Vec<(String, String)>,
        is_tls: bool,
        begin_bytes: usize,
    ) -> PyResult<()> {
        let forward = Forward {
            engine: EngineAddress {
                host: host.to_owned(),
                port,
                is_tls,
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
#[pyclass(frozen, module = "kvatlas_native")]
pub struct Arrived {
    #[pyo3(get)]
    exchange: Py<PyExchange>,
    #[pyo3(get)]
    prompt: Option<Py<PyReadPrompt>>,
    #[pyo3(get)]
    left: Option<&'static str>,
    #[pyo3(get)]
    matches: Option<Py<PyAny>>,
    #[pyo3(get)]
    find_s: f64,
    complete: Instant,
}

#[pymethods]
impl Arrived {
    #[getter]
    fn age_s(&self) -> f64 {
        self.complete.elapsed().as_secs_f64()
    }
}

impl Arrived {
    fn new(py: Python<'_>, arrival: Arrival) -> PyResult<Self> {
        let exchange = arrival.exchange;
        let (prompt, left) = match arrival.prompt {
            None => (None, None),
            Some(Ok(read)) => (Some(Py::new(py, PyReadPrompt::new(py, read))?), None),
            Some(Err(left)) => (None, Some(left.name())),
        };
        let matches = match arrival.found {
            None => None,
            Some(Ok(found)) => Some(Py::new(py, PyMatches::from_found(py, found))?.into_any()),
            Some(Err(error)) => Some(find_error(error).into_value(py).into_any()),
        };
        Ok(Self {
            exchange: Py::new(py, PyExchange { exchange })?,
            prompt,
            left,
            matches,
            find_s: arrival.find.as_secs_f64(),
            complete: arrival.complete,
        })
    }
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
            Py::new(py, Arrived::new(py, Arrival::unread(exchange))?)?.into_any()
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
