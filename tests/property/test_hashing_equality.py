"""The native hashes are the reference's, and both are NVIDIA Dynamo's, whatever the prompt."""

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvatlas_hashing import chunk_hashes, reference, sequence_hashes

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
NAMES = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


@st.composite
def prompts(draw: st.DrawFn) -> dict[str, Any]:
    """Tokens of up to a few blocks, of any block size, with all that can go into the hash."""
    block_size = draw(st.sampled_from([1, 16, 32, 64, 128, 512]) | st.integers(1, 400))
    length = draw(st.integers(0, 4 * block_size + 3))
    rng = np.random.default_rng(draw(U32))
    tokens = rng.integers(0, 2**32, length, np.uint32)
    for place in draw(st.lists(st.integers(0, max(length - 1, 0)), max_size=5)) if length else []:
        tokens[place] = draw(U32)
    blocks = length // block_size
    items = st.lists(st.none() | st.lists(U64, max_size=40), min_size=blocks, max_size=blocks)
    return {
        "tokens": tokens,
        "block_size": block_size,
        "lora_name": draw(NAMES),
        "cache_salt": draw(NAMES),
        "item_hashes": draw(st.none() | items),
    }


@settings(deadline=None, max_examples=300)
@given(prompts())
def test_native_hashes_are_the_references(prompt: dict[str, Any]) -> None:
    native = chunk_hashes(**prompt)
    expected = reference.chunk_hashes(**{**prompt, "tokens": prompt["tokens"].tolist()})
    assert native.dtype == np.uint64
    assert native.tolist() == expected
    chain = sequence_hashes(native)
    assert chain.dtype == np.uint64
    assert chain.tolist() == reference.sequence_hashes(expected)


@settings(deadline=None)
@given(st.lists(U64, max_size=50))
def test_native_chains_are_the_references(chunks: list[int]) -> None:
    assert sequence_hashes(chunks).tolist() == reference.sequence_hashes(chunks)


def _mm_info(block: list[int] | None) -> dict[str, Any] | None:
    if not block:
        return None
    return {"mm_objects": [{"mm_hash": item, "offsets": []} for item in block]}


@pytest.mark.dynamo
@settings(deadline=None, max_examples=200)
@given(prompts())
def test_hashes_are_those_of_dynamo(prompt: dict[str, Any]) -> None:
    """Dynamo calls the salt a namespace. It takes item hashes as they are, per block."""
    dynamo = pytest.importorskip("dynamo.llm", reason="ai-dynamo-runtime has no wheel here")
    items = prompt["item_hashes"]
    infos = items and [_mm_info(block) for block in items]
    theirs = dynamo.compute_block_hash_for_seq(
        prompt["tokens"].tolist(),
        prompt["block_size"],
        block_mm_infos=infos or None,
        lora_name=prompt["lora_name"],
        cache_namespace=prompt["cache_salt"],
    )
    assert chunk_hashes(**prompt).tolist() == theirs


@pytest.mark.dynamo
def test_the_comparison_reaches_adapters_salts_and_items() -> None:
    """Dynamo's function must not ignore what is compared above."""
    dynamo = pytest.importorskip("dynamo.llm", reason="ai-dynamo-runtime has no wheel here")
    call = functools.partial(dynamo.compute_block_hash_for_seq, list(range(16)), 16)
    hashes = {
        *call(),
        *call(lora_name="x"),
        *call(cache_namespace="x"),
        *call(block_mm_infos=[_mm_info([1])]),
    }
    assert len(hashes) == 4
