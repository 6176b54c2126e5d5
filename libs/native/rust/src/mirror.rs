//! Bindings of the publisher's mirror: an engine's messages in, sealed records out.

use std::collections::BTreeMap;

use kvatlas_mirror::{
    Batch, Engine, EngineKey, EngineMirror as NativeMirror, Event, Kind, Operation, Reason,
    Refusal, Report, Stored, TIERS, Tier, Told,
};
use kvatlas_pages::Memory as NativeMemory;
use kvatlas_wire::columns::{EventColumns, events_record};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt};

use crate::memory::Memory;

/// Reading so many bytes takes a few microseconds. Giving up the GIL for less only costs: whoever
/// takes it may keep it for its whole switch interval.
const PAYLOAD_BYTES_WITH_GIL_MAX: usize = 16_384;

/// Add this file's names to the extension module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<EngineMirror>()?;
    module.add_class::<Heard>()
}

/// What `EngineMirror.tell` made of a run of messages.
#[pyclass(frozen, get_all, module = "kvatlas_native")]
struct Heard {
    taken: usize,
    other_rank: Option<u32>,
    rank_said: bool,
    ts: Option<f64>,
    stored_any: bool,
    malformed: usize,
    first_malformed: Option<String>,
    refusals: Vec<(&'static str, String)>,
    block_size_at_first: Option<u64>,
}

/// One engine rank's cache in one life, and what waits to be sealed.
#[pyclass(module = "kvatlas_native")]
struct EngineMirror {
    native: NativeMirror,
    columns: Batch,
}

/// An engine hash: a number of any width.
struct Key(EngineKey);

impl<'py> FromPyObject<'_, 'py> for Key {
    type Error = PyErr;

    fn extract(hash: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(short) = hash.extract::<u64>() {
            return Ok(Self(EngineKey::from_int(short)));
        }
        let bits: usize = hash
            .cast::<PyInt>()?
            .call_method0("bit_length")?
            .extract()?;
        let digest = hash.call_method1("to_bytes", (bits.div_ceil(8), "big"))?;
        let digest: &Bound<'_, PyBytes> = digest.cast()?;
        Ok(Self(EngineKey::from_bytes(digest.as_bytes())))
    }
}

fn tier_of(number: usize) -> PyResult<Tier> {
    let tier = TIERS.get(number).copied();
    tier.ok_or_else(|| PyValueError::new_err(format!("no tier {number}")))
}

fn engine_of(name: &str) -> PyResult<Engine> {
    match name {
        "vllm" => Ok(Engine::Vllm),
        "sglang" => Ok(Engine::Sglang),
        other => Err(PyValueError::new_err(format!("no reader of {other:?}"))),
    }
}

fn memory_of(memory: Option<&Bound<'_, Memory>>) -> NativeMemory {
    memory.map_or_else(NativeMemory::general, |shared| shared.get().native.clone())
}

#[pymethods]
impl EngineMirror {
    #[new]
    #[pyo3(signature = (*, engine, block_size, blocks_max, memory = None))]
    fn new(
        engine: &str,
        block_size: usize,
        blocks_max: usize,
        memory: Option<&Bound<'_, Memory>>,
    ) -> PyResult<Self> {
        let (engine, memory) = (engine_of(engine)?, memory_of(memory));
        Ok(Self {
            native: NativeMirror::new(engine, block_size, blocks_max, memory),
            columns: Batch::default(),
        })
    }

    fn tell(&mut self, py: Python<'_>, payloads: Vec<Bound<'_, PyBytes>>, dp_rank: u32) -> Heard {
        let payloads: Vec<&[u8]> = payloads.iter().map(|payload| payload.as_bytes()).collect();
        let bytes: usize = payloads.iter().map(|payload| payload.len()).sum();
        let native = &mut self.native;
        if bytes > PAYLOAD_BYTES_WITH_GIL_MAX {
            py.detach(|| tell_all(native, &payloads, dp_rank))
        } else {
            tell_all(native, &payloads, dp_rank)
        }
    }

    // --- over a restart ---

    /// An array owns what was made without the GIL; a bytes object would have to copy it.
    fn export_state<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u8>> {
        let native = &self.native;
        py.detach(|| native.export_state()).into_pyarray(py)
    }

    #[staticmethod]
    #[pyo3(signature = (state, *, engine, block_size, blocks_max, memory = None))]
    fn import_state(
        py: Python<'_>,
        state: &[u8],
        engine: &str,
        block_size: usize,
        blocks_max: usize,
        memory: Option<&Bound<'_, Memory>>,
    ) -> PyResult<Self> {
        let (engine, memory) = (engine_of(engine)?, memory_of(memory));
        let native =
            py.detach(|| NativeMirror::import_state(engine, block_size, blocks_max, memory, state));
        Ok(Self {
            native: native.map_err(|error| PyValueError::new_err(error.0))?,
            columns: Batch::default(),
        })
    }

    // --- columns ---

    #[pyo3(signature = (hashes, parent, tokens, tier, *, lora_name, cache_salt, items))]
    #[allow(clippy::too_many_arguments)] // the fields of an event
    fn stored(
        &mut self,
        hashes: Vec<Key>,
        parent: Option<Key>,
        tokens: PyReadonlyArray1<'_, u32>,
        tier: usize,
        lora_name: Option<&str>,
        cache_salt: Option<&str>,
        items: Option<Vec<Vec<u64>>>,
    ) -> PyResult<()> {
        let tokens = tokens.as_slice()?;
        let items = items.unwrap_or_default();
        if items.len() > hashes.len() || tokens.len().checked_rem(hashes.len()) != Some(0) {
            return Err(PyValueError::new_err("tokens or items of other blocks"));
        }
        let present = items.into_iter().enumerate();
        let stored = Stored {
            tokens: self.columns.tokens.len()..self.columns.tokens.len() + tokens.len(),
            hashes: self.add_hashes(hashes),
            parent: parent.map(|Key(key)| key),
            tier: tier_of(tier)?,
            lora_name: lora_name.map(Box::from),
            cache_salt: cache_salt.map(Box::from),
            items: present.filter(|(_, items)| !items.is_empty()).collect(),
        };
        self.columns.tokens.extend_from_slice(tokens);
        self.columns.events.push(Event::Stored(stored));
        Ok(())
    }

    fn stored_by_hash(&mut self, hashes: Vec<Key>, tier: usize) -> PyResult<()> {
        let event = Event::StoredByHash(self.add_hashes(hashes), tier_of(tier)?);
        self.columns.events.push(event);
        Ok(())
    }

    fn removed(&mut self, hashes: Vec<Key>, tier: usize) -> PyResult<()> {
        let event = Event::Removed(self.add_hashes(hashes), tier_of(tier)?);
        self.columns.events.push(event);
        Ok(())
    }

    fn cleared(&mut self, tier: Option<usize>) -> PyResult<()> {
        let tier = tier.map(tier_of).transpose()?;
        self.columns.events.push(Event::Cleared(tier));
        Ok(())
    }

    #[pyo3(signature = (reason, blocks, *, may_hide_removal))]
    fn refused(&mut self, reason: &str, blocks: usize, may_hide_removal: bool) -> PyResult<()> {
        let reason = Reason::from_name(reason)
            .ok_or_else(|| PyValueError::new_err(format!("no reason {reason:?}")))?;
        self.columns.events.push(Event::Unindexable {
            reason,
            blocks,
            may_hide_removal,
        });
        Ok(())
    }

    fn apply(&mut self) {
        let NativeMirror { mirror, said, .. } = &mut self.native;
        mirror.apply(&self.columns, said);
        self.columns.clear();
    }

    fn suspect_all(&mut self) {
        self.native.mirror.suspect_all();
    }

    // --- what waits ---

    #[getter]
    fn pending_events(&self) -> usize {
        self.native.said.operations().len()
    }

    #[getter]
    fn is_batch_full(&self) -> bool {
        self.native.said.is_batch_full()
    }

    fn seal<'py>(
        &mut self,
        py: Python<'py>,
        header: &[u8],
        first_event_id: u64,
    ) -> Vec<(usize, Bound<'py, PyBytes>)> {
        let mut next = first_event_id;
        let mut sealed = Vec::new();
        for (operations, hashes) in self.native.said.batches() {
            let record = events_record(header, next, columns(operations, hashes));
            next += operations.len() as u64;
            sealed.push((operations.len(), PyBytes::new(py, &record)));
        }
        self.native.said.clear();
        sealed
    }

    #[allow(clippy::type_complexity)] // rows of the stub's tuple
    fn take<'py>(
        &mut self,
        py: Python<'py>,
    ) -> Vec<(
        &'static str,
        Option<u64>,
        Option<u8>,
        Bound<'py, PyArray1<u64>>,
    )> {
        let mut rest = self.native.said.hashes();
        let mut taken = Vec::new();
        for operation in self.native.said.operations() {
            let (own, after) = rest.split_at(operation.hashes as usize);
            rest = after;
            let (kind, parent) = match operation.kind {
                Kind::Store(parent) => ("store", parent),
                Kind::Remove => ("remove", None),
                Kind::Clear => ("clear", None),
            };
            let tier = operation.tier.map(|tier| tier as u8);
            taken.push((kind, parent, tier, own.to_vec().into_pyarray(py)));
        }
        self.native.said.clear();
        taken
    }

    // --- what it can be asked ---

    #[getter]
    fn capacity_blocks(&self) -> usize {
        self.native.mirror.capacity_blocks
    }

    #[setter]
    fn set_capacity_blocks(&mut self, blocks: usize) {
        self.native.mirror.capacity_blocks = blocks;
    }

    #[getter]
    fn held_blocks(&self) -> usize {
        self.native.mirror.held_blocks()
    }

    #[getter]
    fn suspect_blocks(&self) -> usize {
        self.native.mirror.suspect_blocks()
    }

    #[getter]
    fn suspects_removed(&self) -> u64 {
        self.native.mirror.suspects_removed()
    }

    #[getter]
    fn memory_bytes(&self) -> usize {
        self.native.mirror.memory_bytes()
    }

    #[getter]
    fn blind_spots(&self) -> Vec<&'static str> {
        self.native.blind_spots().collect()
    }

    fn unreachable_blocks(&self, py: Python<'_>) -> usize {
        let mirror = &self.native.mirror;
        py.detach(|| mirror.unreachable_blocks())
    }

    fn unindexable(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.native.mirror.unindexable().iter().copied();
        let named = Reason::ALL.into_iter().map(|(_, name)| name).zip(counts);
        named.filter(|(_, count)| *count > 0).collect()
    }

    fn digests(&self) -> Vec<(u64, u64)> {
        let digests = self.native.mirror.digests();
        digests.map(|tier| (tier.blocks, tier.digest)).to_vec()
    }

    fn snapshot<'py>(&self, py: Python<'py>, tier: usize) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let tier = tier_of(tier)?;
        let mirror = &self.native.mirror;
        Ok(py.detach(|| mirror.snapshot(tier)).into_pyarray(py))
    }
}

impl EngineMirror {
    fn add_hashes(&mut self, hashes: Vec<Key>) -> std::ops::Range<usize> {
        let first = self.columns.hashes.len();
        self.columns
            .hashes
            .extend(hashes.into_iter().map(|Key(key)| key));
        first..self.columns.hashes.len()
    }
}

fn tell_all(native: &mut NativeMirror, payloads: &[&[u8]], dp_rank: u32) -> Heard {
    let mut report = Report::default();
    let (mut taken, mut malformed, mut first_malformed, mut other_rank) = (0, 0, None, None);
    for payload in payloads {
        match native.tell(payload, dp_rank, &mut report) {
            Told::Applied => (),
            Told::Malformed(what) => {
                malformed += 1;
                first_malformed.get_or_insert(what.0);
            }
            Told::OtherRank(rank) => {
                other_rank = Some(rank);
                break;
            }
        }
        taken += 1;
    }
    let named = |refusal: Refusal| (refusal.reason.name(), refusal.detail);
    Heard {
        taken,
        other_rank,
        rank_said: report.rank_said,
        ts: report.ts,
        stored_any: report.stored_any,
        malformed,
        first_malformed,
        refusals: report.refusals.into_iter().map(named).collect(),
        block_size_at_first: report.block_size_at_first,
    }
}

/// A batch's operations as the wire has them.
fn columns<'a>(
    operations: &'a [Operation],
    hashes: &'a [u64],
) -> impl Iterator<Item = EventColumns<'a>> + Clone {
    let mut rest = hashes;
    operations.iter().map(move |operation| {
        let (hashes, after) = rest.split_at(operation.hashes as usize);
        rest = after;
        // `kvatlas.v1.Tier` counts from 1, in the same order.
        match (operation.kind, operation.tier.map(|tier| tier as u8 + 1)) {
            (Kind::Store(parent), Some(tier)) => EventColumns::Store {
                parent,
                hashes,
                tier,
            },
            (Kind::Remove, Some(tier)) => EventColumns::Remove { hashes, tier },
            (_, tier) => EventColumns::Clear { tier },
        }
    })
}
