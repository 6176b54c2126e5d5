"""One question: a prompt's hashes and what is asked about them, checked."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvatlas_client.types import CellTerms
from kvatlas_hashing import chunk_hashes as hash_chunks
from kvatlas_hashing.arrays import Hashes, Tokens, as_uint64

UINT32_MAX = 2**32 - 1


@dataclass(slots=True, eq=False)
class Query:
    """What a replica is asked.

    Nobody changes one; it is not frozen only because that costs each question a microsecond.
    """

    terms: CellTerms
    hashes: NDArray[np.uint64]
    chunks: bool
    """Whether `hashes` are chunk hashes; else they are sequence hashes."""
    limit: int
    exact: bool


def make_query(
    terms: CellTerms,
    *,
    tokens: Tokens | None,
    chunk_hashes: Hashes | None,
    sequence_hashes: Hashes | None,
    lora_name: str | None,
    cache_salt: str | None,
    item_hashes: Sequence[Sequence[int] | None] | None,
    limit: int,
    exact: bool,
) -> Query:
    """A question about a prompt that is given in exactly one of the three forms.

    Raises:
        TypeError: numbers are no integers.
        ValueError: none or several forms, out of range, or what only tokens can be hashed with.
    """
    given = sum(form is not None for form in (tokens, chunk_hashes, sequence_hashes))
    if given != 1:
        raise ValueError(
            f"give one of tokens, chunk_hashes and sequence_hashes, not {given or 'none'} of them"
        )
    if not 0 <= limit <= UINT32_MAX:
        raise ValueError(f"limit must be 0 (all) or a number of workers, not {limit}")
    if tokens is not None:
        if not terms.block_size:
            raise ValueError("to hash tokens the client must know the cell's block_size")
        hashes = hash_chunks(
            tokens,
            terms.block_size,
            lora_name=lora_name,
            cache_salt=cache_salt,
            item_hashes=item_hashes,
        )
        return Query(terms, hashes, chunks=True, limit=limit, exact=exact)
    if lora_name or cache_salt or item_hashes is not None:
        raise ValueError(
            "lora_name, cache_salt and item_hashes go with tokens: hashes already hold them"
        )
    if chunk_hashes is not None:
        hashes = as_uint64(chunk_hashes, "chunk_hashes")
        return Query(terms, hashes, chunks=True, limit=limit, exact=exact)
    hashes = as_uint64(sequence_hashes if sequence_hashes is not None else [], "sequence_hashes")
    return Query(terms, hashes, chunks=False, limit=limit, exact=exact)
