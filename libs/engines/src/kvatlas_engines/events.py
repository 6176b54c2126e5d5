"""What any engine says of its cache, in words that no engine owns.

A reader (`vllm.py`, `sglang.py`) turns one raw event into these; the publisher's mirror is their
only consumer. Nothing is guessed on the way: what cannot be understood becomes `Unindexable`, which
says why and for how many blocks.
"""

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

EngineHash = int
"""An engine's own name of a block: opaque, of use only to find parents and removals.

Engines send integers, signed (SGLang) or unsigned (vLLM), or raw digests. All become one type:
an integer modulo 2^64, or the digest read as a big-endian number of its full width.
"""


class Tier(enum.IntEnum):
    """Where a block lies, from near to far."""

    DEVICE = 0
    HOST = 1
    DISK = 2
    REMOTE = 3


class Reason(enum.StrEnum):
    """Why blocks that an engine announced cannot be indexed; closed, for it labels a counter."""

    BAD_TOKENS = "bad_tokens"
    """Token ids that are not unsigned 32-bit integers."""
    BROKEN_BIGRAMS = "broken_bigrams"
    """Bigram tokens that do not follow one another."""
    CONFLICTING_PREFIX = "conflicting_prefix"
    """Adapter or salt of a block differ from its parent's, or a hash came back as other tokens."""
    EMBEDS = "embeds"
    """The prompt is embeddings: no tokens identify it."""
    LENGTH_MISMATCH = "length_mismatch"
    """Fewer or more hashes than blocks of tokens: positions cannot be recovered."""
    LORA_ID_WITHOUT_NAME = "lora_id_without_name"
    """An adapter's number says nothing outside of its engine."""
    MALFORMED_EVENT = "malformed_event"
    """A field is missing or of the wrong type."""
    MIRROR_FULL = "mirror_full"
    """The publisher's bound on its own memory is reached."""
    OTHER_GROUP = "other_group"
    """A cache group that is not the full-attention one."""
    UNKNOWN_EVENT = "unknown_event"
    """A type of event that this build does not know."""
    UNKNOWN_EXTRA_KEYS = "unknown_extra_keys"
    """Something beside the tokens makes these blocks what they are, and we do not know what."""
    UNKNOWN_HASH = "unknown_hash"
    """A token-less announcement of a block that was never announced with tokens."""
    UNKNOWN_PARENT = "unknown_parent"
    """The block before the first one was never indexed, so the prefix is unknown."""
    UNKNOWN_TIER = "unknown_tier"
    WRONG_BLOCK_SIZE = "wrong_block_size"
    """The engine's blocks are of another size than this publisher was configured for."""


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A chain of blocks is now on a tier: each block's parent is the one before it."""

    block_hashes: tuple[EngineHash, ...]
    parent: EngineHash | None
    """Of the first block; None: it begins a prompt."""
    tokens: NDArray[np.uint32]
    """(blocks, block_size)"""
    tier: Tier
    lora_name: str | None = None
    """None below a parent: as the parent has it."""
    cache_salt: str | None = None
    """None below a parent: as the parent has it."""
    items: tuple[tuple[int, ...], ...] | None = None
    """Per block the hashes of the multimodal items in it; None: none in any block."""


@dataclass(frozen=True, slots=True)
class StoredByHash:
    """Blocks, named by hash alone, are now on a tier: an offload of what was announced before."""

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
    """Something was announced that cannot be indexed. The cache may hold more than we say."""

    reason: Reason
    blocks: int
    detail: str = ""
    """For the log; never a label."""
    block_size: int | None = None
    """With WRONG_BLOCK_SIZE: the engine's."""
    may_hide_removal: bool = False
    """What could not be read may have been a removal: what was said before is no longer sure."""


EngineEvent = Stored | StoredByHash | Removed | Cleared | Unindexable
