"""What a publisher says of its engine's cache, as Python values.

`protos/kvatlas/v1/events.proto` is the same on the wire; `codec.py` is the only way between the
two. Sequence hashes are one-dimensional numpy `uint64` arrays everywhere, so that a batch of
thousands of blocks is a few objects. A message compares by its content; what holds an array
cannot be a dictionary's key.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

RECORD_BYTES_MAX = 1 << 20
"""A longer record is refused by whoever encodes it."""
BATCH_EVENTS_MAX = 4_096
BATCH_HASHES_MAX = 65_536
SNAPSHOT_PART_HASHES_MAX = 65_536


class _ByContent:
    """Equality of a dataclass that holds arrays; such a message has no hash."""

    __slots__ = ()
    __hash__: ClassVar[None]  # pyright: ignore[reportIncompatibleMethodOverride] - has none

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in self.__slots__
        )


class Tier(enum.StrEnum):
    """Where a block lies; the order is from near to far, and is the order of a snapshot's parts."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
    REMOTE = "remote"


class ShutdownReason(enum.StrEnum):
    """Why an epoch ends."""

    ENGINE_GONE = "engine gone"
    PUBLISHER_LEAVING = "publisher leaving"


@dataclass(frozen=True, slots=True, order=True)
class Worker:
    """One engine rank that holds a cache of its own."""

    worker_id: int
    dp_rank: int = 0

    def __str__(self) -> str:
        return f"{self.worker_id}/{self.dp_rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Who speaks, of which worker, in which life, and in which terms."""

    worker: Worker
    epoch: int
    instance_id: int
    cell: str
    model: str
    block_size: int
    hash_contract: str
    publisher: str


@dataclass(frozen=True, slots=True, eq=False)
class Store(_ByContent):
    """The worker holds these blocks from now on: a chain, head first, below `parent`."""

    parent: int | None
    """Sequence hash of the block before the first; None: the first is a prompt's first block."""
    sequence_hashes: Hashes
    tier: Tier


@dataclass(frozen=True, slots=True, eq=False)
class Remove(_ByContent):
    """The worker no longer holds these blocks on this tier; tail first."""

    sequence_hashes: Hashes
    tier: Tier


@dataclass(frozen=True, slots=True)
class Clear:
    """The worker holds nothing any more on this tier; None: on any tier."""

    tier: Tier | None = None


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The end of the epoch."""

    reason: ShutdownReason


Event = Store | Remove | Clear | Shutdown


@dataclass(frozen=True, slots=True)
class TierDigest:
    """The number and the XOR of the live sequence hashes of one tier."""

    tier: Tier
    blocks: int
    digest: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SnapshotPart(_ByContent):
    """One part of the whole mirror, copied at one event_id; its hashes are of one tier."""

    as_of_event_id: int
    part: int
    parts: int
    tier: Tier
    sequence_hashes: Hashes
    digests: tuple[TierDigest, ...]
    """Of the whole mirror, not of this part; a tier without blocks may be absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the engine says of its load, from its own metrics."""

    requests_running: int
    requests_waiting: int
    kv_usage: float
    """The share of the engine's cache in use, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The publisher lives, and this is what its receiver should have by now; uses no event_id."""

    last_event_id: int
    digests: tuple[TierDigest, ...]
    load: Load | None
    """None: the engine's metrics could not be read."""
    capacity_blocks: int
    """Of the engine's device tier; 0: unknown."""
    engine_url: str
    publisher_rpc: str
    role: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    sent_unix_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A record's payload: numbered events, or one part of a snapshot, or a heartbeat."""

    header: Header
    first_event_id: int = 0
    """Of `events[0]`, from 1; 0 in a batch without events, which uses no event_id."""
    events: tuple[Event, ...] = ()
    snapshot: SnapshotPart | None = None
    heartbeat: Heartbeat | None = None
