"""Answers of the client: plain, immutable values without protobuf or gRPC."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from kvatlas_wire import Load, TierDigest, WorkerKey


class WorkerState(Enum):
    """State of a worker, which decides how it can be used."""

    LIVE = "live"
    """Matched and routable."""
    RECOVERING = "recovering"
    """Its set is not complete yet: no matches, routable by load."""
    STALE = "stale"
    """Its lease ended, or its publisher left: no matches, routable by load."""
    OVER_BUDGET = "over_budget"
    """The replica has no memory for its set: no matches, routable by load."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Everything that a replica knows of a worker, except its blocks."""

    worker_id: int
    dp_rank: int
    state: WorkerState
    epoch: int
    engine_url: str
    publisher_rpc: str
    role: str
    labels: Mapping[str, str]
    load: Load | None
    """None: the engine's metrics cannot be read."""
    capacity_blocks: int
    """Size of the device tier; 0: unknown."""
    blocks: int
    last_event_id: int
    heartbeat_age_ms: int

    @property
    def key(self) -> WorkerKey:
        """The worker's key."""
        return WorkerKey(self.worker_id, self.dp_rank)


@dataclass(frozen=True, slots=True)
class WorkersChange:
    """One message of the stream of workers."""

    full: bool
    """True: `workers` are all workers, others are gone."""
    workers: tuple[WorkerInfo, ...]
    removed: tuple[WorkerKey, ...]
    replica: str


@dataclass(frozen=True, slots=True)
class CellTerms:
    """Settings that must be equal in a whole cell; in a query, "" and 0 mean "not checked"."""

    model: str
    block_size: int
    hash_contract: str

    def agree_with(self, served: "CellTerms") -> bool:
        """Whether a query with these terms fits a replica that serves `served`."""
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
class WorkerStatus:
    """A worker in a replica's status."""

    info: WorkerInfo
    instance_id: int
    digests: tuple[TierDigest, ...]
    events_held_back: int
    incomplete: bool
    """Its set is not complete; possible for a stale worker, too."""


@dataclass(frozen=True, slots=True)
class LogStatus:
    """One transport of the event log, as the replica sees it."""

    transport: str
    alive: bool
    records: int
    lag_ms: int


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica's own report: its terms, logs, workers and counters."""

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
    """This client's observations of a replica."""

    address: str
    failures: int
    """Failures in a row; 0: the last call was answered, or there was none."""
    last_error: str | None
