//! Bindings of the hashing: arrays in, arrays out, no copy of the tokens.

use std::num::NonZeroUsize;

use kvatlas_hashing::{
    Items, chunk_hashes_into, chunk_hashes_with_items_into, sequence_hashes_into,
};
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Hashing so many tokens takes a few microseconds. Giving up the GIL for less only costs: whoever
/// takes it may keep it for its whole switch interval.
const TOKENS_WITH_GIL_MAX: usize = 16_384;
/// The same for the chain, whose steps cost as much as a block of 16 tokens and more.
const STEPS_WITH_GIL_MAX: usize = 1_024;

#[pyfunction]
pub fn chunk_hashes<'py>(
    py: Python<'py>,
    tokens: PyReadonlyArray1<'py, u32>,
    block_size: NonZeroUsize,
    seed: u64,
    item_hashes: Option<Vec<Option<Vec<u64>>>>,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    let tokens = tokens.as_slice()?;
    let blocks = tokens.len() / block_size;
    let items = present(item_hashes.unwrap_or_default());
    if items.last().is_some_and(|(block, _)| *block >= blocks) {
        return Err(PyValueError::new_err("more item hashes than full blocks"));
    }
    let hashes = PyArray1::zeros(py, blocks, false);
    let mut target = hashes.readwrite();
    let out = target.as_slice_mut()?;
    detached_if(py, tokens.len() > TOKENS_WITH_GIL_MAX, || {
        if items.is_empty() {
            chunk_hashes_into(tokens, block_size, seed, out);
        } else {
            chunk_hashes_with_items_into(tokens, block_size, seed, &items, out);
        }
    });
    Ok(hashes)
}

#[pyfunction]
pub fn sequence_hashes<'py>(
    py: Python<'py>,
    chunks: PyReadonlyArray1<'py, u64>,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    let chunks = chunks.as_slice()?;
    let hashes = PyArray1::zeros(py, chunks.len(), false);
    let mut target = hashes.readwrite();
    let out = target.as_slice_mut()?;
    detached_if(py, chunks.len() > STEPS_WITH_GIL_MAX, || {
        sequence_hashes_into(chunks, out);
    });
    Ok(hashes)
}

/// The blocks that hold items, with their places.
fn present(items: Vec<Option<Vec<u64>>>) -> Vec<Items> {
    items
        .into_iter()
        .enumerate()
        .filter_map(|(block, hashes)| hashes.map(|hashes| (block, hashes)))
        .collect()
}

fn detached_if(py: Python<'_>, long: bool, work: impl FnOnce() + Send) {
    if long { py.detach(work) } else { work() }
}
