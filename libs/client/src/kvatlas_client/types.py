"""What the client answers: plain, immutable values. Nothing here knows protobuf or gRPC."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Who holds how much of a prompt: parallel columns, deepest first, then by worker and rank."""

    worker_ids: NDArray[np.uint64]
    dp_ranks: NDArray[np.uint32]
    depths: NDArray[np.uint32]
    """Leading full blocks of the prompt that the worker holds."""
    replica: str
    """The address that answered."""

    def __len__(self) -> int:
        return len(self.worker_ids)


class WorkerKey(NamedTuple):
    """One engine rank that holds a cache of its own."""

    worker_id: int
    dp_rank: int


class WorkerState(Enum):
    """What a worker can be used for."""

    LIVE = "live"
    """Matched and routable."""
    RECOVERING = "recovering"
    """Its set is not whole yet: no matches, routable by load."""
    STALE = "stale"
    """Its lease ended, or its publisher left: no matches, routable by load."""
    OVER_BUDGET = "over_budget"
    """The replica has no memory for its set: no matches, routable by load."""


class Tier(Enum):
    """Where a block lies."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine says of itself in its metrics."""

    requests_running: int
    requests_waiting: int
    kv_usage: float
    """0 .. 1"""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """All that a replica knows of a worker, but its blocks."""

    worker_id: int
    dp_rank: int
    state: WorkerState
    epoch: int
    engine_url: str
    publisher_rpc: str
    role: str
    labels: Mapping[str, str]
    load: Load | None
    """None: the engine's metrics could not be read."""
    capacity_blocks: int
    """Of the device tier; 0: unknown."""
    blocks: int
    last_event_id: int
    heartbeat_age_ms: int

    @property
    def key(self) -> WorkerKey:
        """The worker's name."""
        return WorkerKey(self.worker_id, self.dp_rank)


@dataclass(frozen=True, slots=True)
class WorkersChange:
    """One message of the stream of workers."""

    full: bool
    """`workers` is all there is: forget the others."""
    workers: tuple[WorkerInfo, ...]
    removed: tuple[WorkerKey, ...]
    replica: str


@dataclass(frozen=True, slots=True)
class CellTerms:
    """What must be equal in a whole cell. "" and 0 stand for "not checked" in a question."""

    model: str
    block_size: int
    hash_contract: str

    def agree_with(self, served: "CellTerms") -> bool:
        """Whether what is asked for here is what is served there."""
        return (
            self.model in {"", served.model}
            and self.block_size in {0, served.block_size}
            and self.hash_contract in {"", served.hash_contract}
        )

    def __str__(self) -> str:
        return (
            f"model '{self.model}', block size {self.block_size}, "
            f"hash contract '{self.hash_contract}'"
        )


@dataclass(frozen=True, slots=True)
class TierDigest:
    """Number and XOR of a worker's live sequence hashes on one tier."""

    tier: Tier
    blocks: int
    digest: int


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker as a replica's status shows it."""

    info: WorkerInfo
    instance_id: int
    digests: tuple[TierDigest, ...]
    events_held_back: int
    incomplete: bool
    """Its set lacks something; a stale worker's can, too."""


@dataclass(frozen=True, slots=True)
class LogStatus:
    """One transport of the event log as a replica sees it."""

    transport: str
    alive: bool
    records: int
    lag_ms: int


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """Everything that a replica says of itself."""

    replica_id: str
    version: str
    cell: str
    terms: CellTerms
    ready: bool
    workers: tuple[WorkerStatus, ...]
    memberships: int
    index_bytes: int
    counters: Mapping[str, int]
    logs: tuple[LogStatus, ...]


@dataclass(frozen=True, slots=True)
class ReplicaHealth:
    """What this client has observed of a replica."""

    address: str
    failures: int
    """In a row; 0: the last call was answered, or none was made."""
    last_error: str | None
