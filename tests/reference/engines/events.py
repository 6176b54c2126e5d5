"""Engine events as values: the changes of an engine's cache, in terms that no engine owns.

A reader (`vllm.py`, `sglang.py`) turns one raw event into these. Nothing is guessed on the way: an
event that cannot be used becomes `Unindexable`, with the reason and the number of blocks.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvatlas_engines import RefusalReason
from kvatlas_events import Tier

EngineHash = int
"""An engine's own hash of a block. It is opaque, and serves to find parents and removals alone.

Engines send integers, signed (SGLang) or unsigned (vLLM), or raw digests. All become one type:
an integer modulo 2^64, or the digest read as a big-endian number of its full width.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A chain of blocks is now on a tier: each block's parent is the one before it."""

    block_hashes: tuple[EngineHash, ...]
    parent: EngineHash | None
    """The first block's parent; None: the chain begins a prompt."""
    tokens: NDArray[np.uint32]
    """(blocks, block_size)"""
    tier: Tier
    lora_name: str | None = None
    """Below a parent, None means the parent's."""
    cache_salt: str | None = None
    """Below a parent, None means the parent's."""
    items: tuple[tuple[int, ...], ...] | None = None
    """The hashes of each block's multimodal items; None: no block holds any."""


@dataclass(frozen=True, slots=True)
class StoredByHash:
    """Blocks, named by hash alone, are now on a tier: an offload of blocks announced before."""

    block_hashes: tuple[EngineHash, ...]
    tier: Tier


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks have left a tier."""

    block_hashes: tuple[EngineHash, ...]
    tier: Tier


@dataclass(frozen=True, slots=True)
class Cleared:
    """All blocks have left a tier; None: every tier."""

    tier: Tier | None = None


@dataclass(frozen=True, slots=True)
class Unindexable:
    """Something was announced that cannot be indexed. The cache may hold more than is published."""

    reason: RefusalReason
    blocks: int
    detail: str = ""
    """For the log; never a label."""
    block_size: int | None = None
    """The engine's block size, with WRONG_BLOCK_SIZE."""
    may_hide_removal: bool = False
    """The event may have been a removal, so blocks announced before may be gone."""


EngineEvent = Stored | StoredByHash | Removed | Cleared | Unindexable
