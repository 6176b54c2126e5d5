//! Binds the publisher's mirror: an engine's messages in, sealed records out.

use std::collections::BTreeMap;

use kvatlas_engines::{Engine, RefusalReason, Tier, dp_rank};
use kvatlas_mirror::{EngineMirror as NativeMirror, EventKind, PendingEvent, with_hashes};
use kvatlas_pages::Memory;
use kvatlas_wire::columns::{EventColumns, events_record};
use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::memory::MirrorMemory;

/// Reading this many bytes takes a few microseconds. Releasing the GIL for less does not pay: the
/// thread that takes it may keep it for a whole switch interval.
const PAYLOAD_BYTES_WITH_GIL_MAX: usize = 16_384;

#[pyfunction]
pub fn payload_dp_rank(payload: &[u8]) -> PyResult<Option<u32>> {
    dp_rank(payload).map_err(|error| PyValueError::new_err(error.0))
}

/// The effect of one `EngineMirror.apply_payloads`.
#[pyclass(frozen, get_all, module = "kvatlas_native")]
pub struct ApplyOutcome {
    consumed: usize,
    other_rank: Option<u32>,
    rank_confirmed: bool,
    engine_clock_s: Option<f64>,
    stored_any: bool,
    malformed: usize,
    first_malformed: Option<String>,
    refusals: Vec<(&'static str, String)>,
    refused_block_size: Option<u64>,
}

/// One engine rank's cache, and the events that wait to be sealed.
#[pyclass(subclass, module = "kvatlas_native")]
pub struct EngineMirror(NativeMirror);

fn tier_of(number: usize) -> PyResult<Tier> {
    let tier = Tier::ALL.get(number).copied();
    tier.ok_or_else(|| PyValueError::new_err(format!("no tier {number}")))
}

#[pymethods]
impl EngineMirror {
    #[new]
    #[pyo3(signature = (*, engine, block_size, blocks_max, memory = None, state = None))]
    fn new(
        py: Python<'_>,
        engine: &str,
        block_size: usize,
        blocks_max: usize,
        memory: Option<&Bound<'_, MirrorMemory>>,
        state: Option<&[u8]>,
    ) -> PyResult<Self> {
        let engine = Engine::from_name(engine)
            .ok_or_else(|| PyValueError::new_err(format!("no reader of {engine:?}")))?;
        let memory = memory.map_or_else(Memory::general, |shared| shared.get().native.clone());
        let Some(state) = state else {
            let native = NativeMirror::new(engine, block_size, blocks_max, memory);
            return Ok(Self(native));
        };
        py.detach(|| NativeMirror::import_state(engine, block_size, blocks_max, memory, state))
            .map(Self)
            .map_err(|error| PyValueError::new_err(error.0))
    }

    fn apply_payloads(
        &mut self,
        py: Python<'_>,
        payloads: Vec<Bound<'_, PyBytes>>,
        dp_rank: u32,
    ) -> ApplyOutcome {
        let payloads: Vec<&[u8]> = payloads.iter().map(|payload| payload.as_bytes()).collect();
        let bytes: usize = payloads.iter().map(|payload| payload.len()).sum();
        let native = &mut self.0;
        let outcome = if bytes > PAYLOAD_BYTES_WITH_GIL_MAX {
            py.detach(|| native.apply_payloads(&payloads, dp_rank))
        } else {
            native.apply_payloads(&payloads, dp_rank)
        };
        outcome.into()
    }

    /// An array takes over the bytes made without the GIL; a bytes object would copy them.
    fn export_state<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u8>> {
        let native = &self.0;
        py.detach(|| native.export_state()).into_pyarray(py)
    }

    fn suspect_all(&mut self) {
        self.0.mirror.suspect_all();
    }

    // --- pending events ---

    #[getter]
    fn pending_events(&self) -> usize {
        self.0.pending.events().len()
    }

    #[getter]
    fn is_batch_full(&self) -> bool {
        self.0.pending.is_batch_full()
    }

    fn seal<'py>(
        &mut self,
        py: Python<'py>,
        header: &[u8],
        first_event_id: u64,
    ) -> Vec<(usize, Bound<'py, PyBytes>)> {
        let mut next = first_event_id;
        let mut sealed = Vec::new();
        for (events, hashes) in self.0.pending.batches() {
            let record = events_record(header, next, columns(events, hashes));
            next += events.len() as u64;
            sealed.push((events.len(), PyBytes::new(py, &record)));
        }
        self.0.pending.clear();
        sealed
    }

    // --- queries ---

    #[getter]
    fn capacity_blocks(&self) -> usize {
        self.0.mirror.capacity_blocks
    }

    #[setter]
    fn set_capacity_blocks(&mut self, blocks: usize) {
        self.0.mirror.capacity_blocks = blocks;
    }

    #[getter]
    fn held_blocks(&self) -> usize {
        self.0.mirror.held_blocks()
    }

    #[getter]
    fn suspect_blocks(&self) -> usize {
        self.0.mirror.suspect_blocks()
    }

    #[getter]
    fn suspects_removed(&self) -> u64 {
        self.0.mirror.suspects_removed()
    }

    #[getter]
    fn memory_bytes(&self) -> usize {
        self.0.mirror.memory_bytes()
    }

    #[getter]
    fn blind_spots(&self) -> Vec<&'static str> {
        self.0.blind_spots().collect()
    }

    fn unreachable_blocks(&self, py: Python<'_>) -> usize {
        let mirror = &self.0.mirror;
        py.detach(|| mirror.unreachable_blocks())
    }

    fn refused_blocks(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.0.mirror.unindexable().iter().copied();
        let named = RefusalReason::ALL
            .into_iter()
            .map(|(_, name)| name)
            .zip(counts);
        named.filter(|(_, count)| *count > 0).collect()
    }

    fn published_digests(&self) -> Vec<(u64, u64)> {
        let digests = self.0.mirror.digests();
        digests.map(|tier| (tier.blocks, tier.digest)).to_vec()
    }

    fn published_hashes<'py>(
        &self,
        py: Python<'py>,
        tier: usize,
    ) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let tier = tier_of(tier)?;
        let mirror = &self.0.mirror;
        Ok(py.detach(|| mirror.snapshot(tier)).into_pyarray(py))
    }
}

impl From<kvatlas_mirror::ApplyOutcome> for ApplyOutcome {
    fn from(outcome: kvatlas_mirror::ApplyOutcome) -> Self {
        let refusals = outcome.refusals.into_iter();
        Self {
            consumed: outcome.consumed,
            other_rank: outcome.other_rank,
            rank_confirmed: outcome.rank_confirmed,
            engine_clock_s: outcome.engine_clock_s,
            stored_any: outcome.stored_any,
            malformed: outcome.malformed,
            first_malformed: outcome.first_malformed,
            refusals: refusals
                .map(|each| (each.reason.name(), each.detail))
                .collect(),
            refused_block_size: outcome.refused_block_size,
        }
    }
}

/// A batch's events in the wire's columns.
fn columns<'a>(
    events: &'a [PendingEvent],
    hashes: &'a [u64],
) -> impl Iterator<Item = EventColumns<'a>> + Clone {
    with_hashes(events, hashes).map(|(event, hashes)| {
        // `kvatlas.v1.Tier` counts from 1, in the same order.
        match (event.kind, event.tier.map(|tier| tier as u8 + 1)) {
            (EventKind::Store(parent), Some(tier)) => EventColumns::Store {
                parent,
                hashes,
                tier,
            },
            (EventKind::Remove, Some(tier)) => EventColumns::Remove { hashes, tier },
            (_, tier) => EventColumns::Clear { tier },
        }
    })
}
