"""Makes a checked `Query` from the arguments of `find_matches`."""

from collections.abc import Sequence

from kvatlas_client.types import CellTerms
from kvatlas_hashing import chunk_hashes as hash_chunks
from kvatlas_hashing.arrays import Hashes, Tokens, as_uint64
from kvatlas_native import Query

UINT32_MAX = 2**32 - 1


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
    """Return a query for a prompt that is given in exactly one of the three forms.

    Raises:
        TypeError: a number is not an integer.
        ValueError: no form or several, a number out of range, or an argument that needs tokens.
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
    elif lora_name or cache_salt or item_hashes is not None:
        raise ValueError(
            "lora_name, cache_salt and item_hashes go with tokens: hashes already contain them"
        )
    elif chunk_hashes is not None:
        hashes = as_uint64(chunk_hashes, "chunk_hashes")
    else:
        hashes = as_uint64(
            sequence_hashes if sequence_hashes is not None else [], "sequence_hashes"
        )
    return Query(
        hashes,
        chunks=sequence_hashes is None,
        limit=limit,
        exact=exact,
    )
