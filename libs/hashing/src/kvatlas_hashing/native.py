"""The hash contract at full speed: one native call for a whole prompt."""

import operator
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import kvatlas_native
from kvatlas_hashing.arrays import Hashes, Tokens, as_uint32, as_uint64
from kvatlas_hashing.reference import BASE_SEED, seed


def chunk_hashes(
    tokens: Tokens,
    block_size: int,
    *,
    lora_name: str | None = None,
    cache_salt: str | None = None,
    item_hashes: Sequence[Sequence[int] | None] | None = None,
) -> NDArray[np.uint64]:
    """Return the chunk hash of every full block of a prompt; the partial tail has none.

    Args:
        tokens: uint32[n], taken without a copy if contiguous; other integers are converted.
        block_size: tokens per block, at least 1.
        lora_name: name of the LoRA adapter; None or "": no adapter.
        cache_salt: cache salt of the request; None or "": no salt.
        item_hashes: for each full block the hashes (see `item_hash`) of its multimodal items, in
            any order, or None.

    Returns:
        uint64[n // block_size], a new array.

    Raises:
        TypeError: tokens, block size or item hashes are not integers.
        ValueError: a number is out of range, tokens are not 1-D, or `item_hashes` does not have one
            entry per full block.
    """
    array = as_uint32(tokens, "tokens")
    size = operator.index(block_size)
    if size < 1:
        raise ValueError(f"block_size must be at least 1, not {size}")
    blocks = array.size // size
    if not blocks:
        # The block size may exceed a machine word.
        size = array.size + 1
    if item_hashes is not None and len(item_hashes) != blocks:
        raise ValueError(
            f"item_hashes must have one entry for each of the {blocks} full blocks, "
            f"not {len(item_hashes)}"
        )
    prompt_seed = seed(lora_name, cache_salt) if lora_name or cache_salt else BASE_SEED
    try:
        return kvatlas_native.chunk_hashes(array, size, prompt_seed, item_hashes)
    except OverflowError as error:
        raise ValueError("item_hashes must be uint64: one is negative or too large") from error


def sequence_hashes(chunks: Hashes) -> NDArray[np.uint64]:
    """Return the sequence hash of every prefix of full blocks, from their chunk hashes.

    Args:
        chunks: uint64[d], taken without a copy if contiguous; other integers are converted.

    Returns:
        uint64[d], a new array.

    Raises:
        TypeError: not integers.
        ValueError: not 1-D, or a number is out of range.
    """
    return kvatlas_native.sequence_hashes(as_uint64(chunks, "chunks"))
