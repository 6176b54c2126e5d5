"""Batches of cache events as Python values.

`protos/kvatlas/v1/events.proto` defines the same messages on the wire; `codec.py` converts. Sequence
hashes are one-dimensional numpy `uint64` arrays, so a batch of thousands of blocks is a few objects.
Messages compare by content. A message that holds an array cannot be a dictionary key.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvatlas_wire import Load, Tier, TierDigest, WorkerKey

Hashes = NDArray[np.uint64]

RECORD_BYTES_MAX = 1 << 20
"""Encoders refuse a longer record."""
BATCH_EVENTS_MAX = 4_096
BATCH_HASHES_MAX = 65_536
SNAPSHOT_PART_HASHES_MAX = 65_536


class _ByContent:
    """Equality for a dataclass that holds arrays; it has no hash."""

    __slots__ = ()
    __hash__: ClassVar[None]  # pyright: ignore[reportIncompatibleMethodOverride] - has none

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in self.__slots__
        )


class ShutdownReason(enum.StrEnum):
    """Why an epoch ends."""

    ENGINE_GONE = "engine gone"
    PUBLISHER_LEAVING = "publisher leaving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The publisher, its worker and epoch, and the terms of the cell."""

    worker: WorkerKey
    epoch: int
    instance_id: int
    cell: str
    model: str
    block_size: int
    hash_contract: str
    publisher: str


@dataclass(frozen=True, slots=True, eq=False)
class Store(_ByContent):
    """The worker now holds these blocks: a chain below `parent`, head first."""

    parent: int | None
    """Sequence hash of the block before the first one; None: the chain begins a prompt."""
    sequence_hashes: Hashes
    tier: Tier


@dataclass(frozen=True, slots=True, eq=False)
class Remove(_ByContent):
    """The worker no longer holds these blocks on this tier; tail first."""

    sequence_hashes: Hashes
    tier: Tier


@dataclass(frozen=True, slots=True)
class Clear:
    """The worker no longer holds any block on this tier; None: on any tier."""

    tier: Tier | None = None


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The end of the epoch."""

    reason: ShutdownReason


Event = Store | Remove | Clear | Shutdown


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SnapshotPart(_ByContent):
    """One part of a snapshot of the mirror at one event_id; its hashes are of one tier."""

    as_of_event_id: int
    part: int
    parts: int
    tier: Tier
    sequence_hashes: Hashes
    digests: tuple[TierDigest, ...]
    """Digests of the whole mirror, not of this part; a tier without blocks may be absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Sign of life, with the state that the receiver should have by now; uses no event_id."""

    last_event_id: int
    digests: tuple[TierDigest, ...]
    load: Load | None
    """None: the engine's metrics cannot be read."""
    capacity_blocks: int
    """Size of the engine's device tier; 0: unknown."""
    engine_url: str
    publisher_rpc: str
    role: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    sent_unix_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Payload of a record: numbered events, or one part of a snapshot, or a heartbeat."""

    header: Header
    first_event_id: int = 0
    """Event_id of `events[0]`, from 1; 0 in a batch without events."""
    events: tuple[Event, ...] = ()
    snapshot: SnapshotPart | None = None
    heartbeat: Heartbeat | None = None
