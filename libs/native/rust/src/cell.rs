//! Bindings of the cell and of its server.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvatlas_cell::server::Server;
use kvatlas_cell::state::file;
use kvatlas_cell::{Cell as NativeCell, CellConfig};
use kvatlas_events::sequencer::Limits;
use kvatlas_index::{FindOptions, Matches, Query, WorkerKey};
use kvatlas_wire::v1::FindMatchesResponse;
use numpy::PyReadonlyArray1;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::find_matches::PyMatches;

/// Most parts of one snapshot.
const SNAPSHOT_PARTS_MAX: u32 = 4_096;
/// Most hashes of one snapshot: 256 MiB while it is assembled.
const SNAPSHOT_HASHES_MAX: usize = 1 << 25;

#[pyclass(frozen, get_all, module = "kvatlas_native")]
pub struct Applied {
    accepted: u64,
    rejected: u64,
    first_rejection: Option<String>,
}

#[pyclass(frozen, get_all, module = "kvatlas_native")]
pub struct RecoveryRequest {
    worker_id: u64,
    dp_rank: u32,
    publisher_rpc: String,
    epoch: u64,
    applied: u64,
    known: u64,
    recovering: bool,
}

impl From<kvatlas_cell::RecoveryRequest> for RecoveryRequest {
    fn from(request: kvatlas_cell::RecoveryRequest) -> Self {
        Self {
            worker_id: request.key.worker_id,
            dp_rank: request.key.dp_rank,
            publisher_rpc: request.publisher_rpc,
            epoch: request.epoch,
            applied: request.applied,
            known: request.known,
            recovering: request.recovering,
        }
    }
}

#[pyclass(frozen, get_all, module = "kvatlas_native")]
pub struct LagReport {
    furthest_behind: Vec<(u64, u32, u64, u64)>,
    workers: u64,
    events: u64,
    ms_max: u64,
}

impl From<kvatlas_cell::LagReport> for LagReport {
    fn from(report: kvatlas_cell::LagReport) -> Self {
        let lags = report.furthest_behind.iter();
        Self {
            furthest_behind: lags
                .map(|lag| (lag.key.worker_id, lag.key.dp_rank, lag.events, lag.ms))
                .collect(),
            workers: report.workers,
            events: report.events,
            ms_max: report.ms_max,
        }
    }
}

#[pyclass(frozen, get_all, module = "kvatlas_native")]
pub struct SavedState {
    bytes: u64,
    checksum: u64,
    workers: u64,
    memberships: u64,
}

impl From<file::SavedState> for SavedState {
    fn from(saved: file::SavedState) -> Self {
        Self {
            bytes: saved.bytes,
            checksum: saved.checksum,
            workers: saved.workers,
            memberships: saved.memberships,
        }
    }
}

#[pyclass(frozen, module = "kvatlas_native")]
pub struct Cell {
    pub(crate) native: Arc<NativeCell>,
}

type Histogram = (Vec<f64>, Vec<u64>, f64);

#[pymethods]
impl Cell {
    #[new]
    #[pyo3(signature = (*, cell, model, block_size, hash_contract, replica_id, version, lease_ms,
        hold_back_batches_max, hold_back_ms, memory_bytes_max, recover_ms = 30_000))]
    #[allow(
        clippy::too_many_arguments,
        reason = "keyword arguments of one constructor"
    )]
    fn new(
        cell: String,
        model: String,
        block_size: u32,
        hash_contract: String,
        replica_id: String,
        version: String,
        lease_ms: u64,
        hold_back_batches_max: usize,
        hold_back_ms: u64,
        memory_bytes_max: usize,
        recover_ms: u64,
    ) -> PyResult<Self> {
        let limits = Limits {
            hold_back_batches: hold_back_batches_max,
            hold_back_ms,
            recover_ms,
            snapshot_parts: SNAPSHOT_PARTS_MAX,
            snapshot_hashes: SNAPSHOT_HASHES_MAX,
        };
        let config = CellConfig {
            cell,
            model,
            block_size,
            hash_contract,
            replica_id,
            version,
            lease_ms,
            limits,
            memory_bytes_max,
        };
        let native = NativeCell::new(config);
        let prefaulter = native.prefaulter();
        thread::Builder::new()
            .name("kvatlas-memory".into())
            .spawn(|| prefaulter.run())?;
        Ok(Self {
            native: Arc::new(native),
        })
    }

    fn keep_memory(&self, py: Python<'_>, memory_bytes: usize) -> bool {
        py.detach(|| self.native.keep_memory(memory_bytes))
    }

    #[pyo3(signature = (records, *, transport, appended_unix_ms, now_unix_ms))]
    fn apply(
        &self,
        py: Python<'_>,
        records: Vec<PyBackedBytes>,
        transport: &str,
        appended_unix_ms: Vec<u64>,
        now_unix_ms: u64,
    ) -> PyResult<Applied> {
        if records.len() != appended_unix_ms.len() {
            return Err(PyValueError::new_err(
                "records and appended_unix_ms differ in length",
            ));
        }
        let applied = py.detach(|| {
            let timed = records.iter().map(|record| &**record).zip(appended_unix_ms);
            self.native.apply(timed, transport, now_unix_ms)
        });
        Ok(Applied {
            accepted: applied.accepted,
            rejected: applied.rejected,
            first_rejection: applied.first_rejection,
        })
    }

    #[pyo3(signature = (now_unix_ms, *, log_alive))]
    fn tick(&self, py: Python<'_>, now_unix_ms: u64, log_alive: bool) {
        py.detach(|| self.native.tick(now_unix_ms, log_alive));
    }

    fn set_ready(&self, ready: bool) {
        self.native.set_ready(ready);
    }

    #[pyo3(signature = (transport, *, alive, records, lag_ms))]
    fn set_log_status(
        &self,
        py: Python<'_>,
        transport: &str,
        alive: bool,
        records: u64,
        lag_ms: u64,
    ) {
        py.detach(|| {
            self.native
                .set_log_status(transport, alive, records, lag_ms)
        });
    }

    #[pyo3(signature = (transport, *, unproven_ms))]
    fn rewind_log_time(&self, py: Python<'_>, transport: &str, unproven_ms: u64) {
        py.detach(|| self.native.rewind_log_time(transport, unproven_ms));
    }

    #[pyo3(signature = (hashes, *, chunks, limit = 0, exact = false))]
    fn find_matches(
        &self,
        py: Python<'_>,
        hashes: PyReadonlyArray1<'_, u64>,
        chunks: bool,
        limit: usize,
        exact: bool,
    ) -> PyResult<PyMatches> {
        let hashes = hashes.as_slice()?;
        let matches = py.detach(|| {
            let mut matches = Matches::default();
            let options = FindOptions {
                limit,
                exact,
                ..FindOptions::default()
            };
            let query = if chunks {
                Query::ChunkHashes(hashes)
            } else {
                Query::SequenceHashes(hashes)
            };
            self.native.find(query, &options, &mut matches);
            matches
        });
        let workers = matches.workers.iter();
        let answer = FindMatchesResponse {
            worker_ids: workers.clone().map(|worker| worker.worker_id).collect(),
            dp_ranks: workers.map(|worker| worker.dp_rank).collect(),
            depths: matches.depths,
        };
        Ok(PyMatches::from_response(py, answer, ""))
    }

    fn status<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let status = py.detach(|| self.native.encoded_status());
        PyBytes::new(py, &status)
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let counters = self.native.counters.read();
        counters
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    fn gauges(&self, py: Python<'_>) -> BTreeMap<String, u64> {
        py.detach(|| self.native.gauges())
    }

    fn histograms(&self) -> BTreeMap<&'static str, Histogram> {
        BTreeMap::from([("find_matches_seconds", self.native.find_latency.read())])
    }

    #[pyo3(signature = (limit, *, after = None))]
    fn recovery_requests(
        &self,
        py: Python<'_>,
        limit: usize,
        after: Option<(u64, u32)>,
    ) -> Vec<RecoveryRequest> {
        let after = after.map(|(worker_id, dp_rank)| WorkerKey { worker_id, dp_rank });
        let requests = py.detach(|| self.native.recovery_requests(limit, after));
        requests.into_iter().map(RecoveryRequest::from).collect()
    }

    fn recovery_request(
        &self,
        py: Python<'_>,
        worker_id: u64,
        dp_rank: u32,
    ) -> Option<RecoveryRequest> {
        let key = WorkerKey { worker_id, dp_rank };
        py.detach(|| self.native.recovery_request(key))
            .map(RecoveryRequest::from)
    }

    #[pyo3(signature = (transport, *, identity, entry))]
    fn set_log_position(&self, py: Python<'_>, transport: &str, identity: &str, entry: &str) {
        py.detach(|| self.native.set_log_position(transport, identity, entry));
    }

    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<SavedState> {
        py.detach(|| file::save(&self.native, &path))
            .map(SavedState::from)
            .map_err(os_error)
    }

    fn lag_report(&self, py: Python<'_>, limit: usize, now_unix_ms: u64) -> LagReport {
        py.detach(|| self.native.lag_report(limit, now_unix_ms))
            .into()
    }

    fn take_notices(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| self.native.take_notices())
    }
}

#[pyclass(frozen, module = "kvatlas_native")]
pub struct CellServer {
    server: Server,
}

#[pymethods]
impl CellServer {
    #[new]
    #[pyo3(signature = (cell, host, port, *, threads))]
    fn new(
        py: Python<'_>,
        cell: &Bound<'_, Cell>,
        host: &str,
        port: u16,
        threads: usize,
    ) -> PyResult<Self> {
        let native = Arc::clone(&cell.get().native);
        let server = py
            .detach(|| Server::start(&native, (host, port), threads, unix_ms))
            .map_err(os_error)?;
        Ok(Self { server })
    }

    #[getter]
    fn address(&self) -> (String, u16) {
        let address = self.server.address();
        (address.ip().to_string(), address.port())
    }

    fn stop(&self, py: Python<'_>, grace_s: f64) -> PyResult<()> {
        let grace = Duration::try_from_secs_f64(grace_s)
            .map_err(|error| PyValueError::new_err(format!("grace_s: {error}")))?;
        py.detach(|| self.server.stop(grace));
        Ok(())
    }
}

/// An OSError with `errno` and `strerror`, like Python's own.
fn os_error(error: std::io::Error) -> PyErr {
    match error.raw_os_error() {
        None => error.into(),
        Some(code) => {
            let text = error.to_string();
            let suffix = format!(" (os error {code})");
            let reason = text.strip_suffix(&suffix).unwrap_or(&text).to_owned();
            PyOSError::new_err((code, reason))
        }
    }
}

fn unix_ms() -> u64 {
    // A clock before 1970 counts as 1970: then every epoch is ahead of it and is rejected.
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
