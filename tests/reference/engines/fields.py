"""The specification of checked access to the fields of raw events; the same for all engines.

Each function returns a field in the model's types, or raises `NotIndexable`, which becomes one
`Unindexable`.
"""

from array import array
from collections.abc import Mapping
from itertools import chain
from typing import cast

import numpy as np
from numpy.typing import NDArray

from kvatlas_engines import RefusalReason
from kvatlas_events import Tier
from tests.reference.engines.events import EngineHash

_MASK_64 = 2**64 - 1

_TIERS = {
    "gpu": Tier.DEVICE,
    "cpu": Tier.HOST,  # vLLM's connectors, LMCache and Mooncake (in lower case)
    "cpu_pinned": Tier.HOST,  # SGLang
    "disk": Tier.DISK,  # SGLang, LMCache
    "storage": Tier.DISK,  # vLLM
    "fs": Tier.DISK,  # vLLM, older
    "obj": Tier.REMOTE,  # vLLM, older: an object store
    "external": Tier.REMOTE,  # SGLang: a storage backend
}


class NotIndexable(Exception):  # noqa: N818 - named for what it is
    """This event cannot be indexed; the text is for the log."""

    def __init__(
        self, reason: RefusalReason, detail: str, *, block_size: int | None = None
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.block_size = block_size


def malformed(detail: str) -> NotIndexable:
    """Return the error of a missing or mistyped field."""
    return NotIndexable(RefusalReason.MALFORMED_EVENT, detail)


def engine_hash(value: object) -> EngineHash:
    """Normalise one block hash; see `EngineHash`."""
    if type(value) is int:
        return value & _MASK_64
    if type(value) is bytes and value:
        return int.from_bytes(value, "big")
    raise malformed(f"a block hash of type {type(value).__name__}")


def block_hashes(fields: Mapping[str, object]) -> tuple[EngineHash, ...]:
    """Return the normalised `block_hashes`."""
    value = fields.get("block_hashes")
    if not isinstance(value, list):
        raise malformed("block_hashes is no array")
    return tuple(map(engine_hash, cast("list[object]", value)))


def parent_hash(fields: Mapping[str, object]) -> EngineHash | None:
    """Return the normalised `parent_block_hash`."""
    value = fields.get("parent_block_hash")
    return None if value is None else engine_hash(value)


def optional_text(fields: Mapping[str, object], name: str) -> str | None:
    """Return a string field; the empty string means none, as absence does."""
    value = fields.get(name)
    if value is None or value == "":
        return None
    if type(value) is not str:
        raise malformed(f"{name} is of type {type(value).__name__}")
    return value


def optional_number(fields: Mapping[str, object], name: str) -> int | None:
    """Return an integer field."""
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int:
        raise malformed(f"{name} is of type {type(value).__name__}")
    return value


def block_size(fields: Mapping[str, object]) -> int:
    """Return the event's `block_size`; 0 stands in placeholders."""
    value = optional_number(fields, "block_size")
    if value is None or value < 0:
        raise malformed("block_size is no size")
    return value


def token_list(fields: Mapping[str, object]) -> list[object]:
    """Return `token_ids`, its elements unchecked."""
    value = fields.get("token_ids")
    if not isinstance(value, list):
        raise malformed("token_ids is no array")
    return cast("list[object]", value)


def tier(fields: Mapping[str, object]) -> Tier:
    """Return the tier that `medium` and `locality` name; no medium means the device."""
    medium = optional_text(fields, "medium")
    locality = optional_text(fields, "locality")
    if medium is None:
        named: Tier | None = Tier.DEVICE
    else:
        named = _TIERS.get(medium.lower())
    if named is None:
        raise NotIndexable(RefusalReason.UNKNOWN_TIER, f"medium {medium!r}")
    if locality is not None and locality.upper() == "REMOTE":
        return Tier.REMOTE
    return named


def tokens_u32(tokens: list[object]) -> NDArray[np.uint32]:
    """Return plain token ids as one array.

    `array` refuses what is no integer of 32 bits, without numpy's guesses about mixed lists.
    """
    try:
        packed = array("I", cast("list[int]", tokens))
    except (TypeError, OverflowError) as error:
        raise NotIndexable(RefusalReason.BAD_TOKENS, f"token ids: {error}") from None
    return np.frombuffer(packed, dtype=np.uint32)


def bigrams_u32(tokens: list[object]) -> NDArray[np.uint32]:
    """Return the plain tokens of bigram ids `[[t0, t1], [t1, t2], ...]`: the first of each pair."""
    pairs = cast("list[list[int]]", tokens)
    if any(type(pair) is not list or len(pair) != 2 for pair in pairs):
        raise NotIndexable(RefusalReason.BROKEN_BIGRAMS, "a bigram that is no pair")
    flat = tokens_u32(cast("list[object]", list(chain.from_iterable(pairs)))).reshape(-1, 2)
    if not np.array_equal(flat[:-1, 1], flat[1:, 0]):
        raise NotIndexable(RefusalReason.BROKEN_BIGRAMS, "bigrams that do not follow one another")
    return np.ascontiguousarray(flat[:, 0])


def in_blocks(tokens: NDArray[np.uint32], blocks: int, size: int) -> NDArray[np.uint32]:
    """Return `tokens` as (blocks, size), refusing any other number of tokens."""
    if len(tokens) != blocks * size:
        raise NotIndexable(
            RefusalReason.LENGTH_MISMATCH, f"{len(tokens)} tokens for {blocks} blocks of {size}"
        )
    return tokens.reshape(blocks, size)
