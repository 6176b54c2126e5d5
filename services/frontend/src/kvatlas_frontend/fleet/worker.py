"""What is known of one worker."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class WorkerKey(NamedTuple):
    """A worker's name: (`worker_id`: u64, `dp_rank`: u32)."""

    worker_id: int
    dp_rank: int

    def __str__(self) -> str:
        return f"{self.worker_id}/{self.dp_rank}"


class WorkerState(Enum):
    """As the indexers see it."""

    LIVE = "live"  # matched and routable
    RECOVERING = "recovering"  # routable by load
    STALE = "stale"  # routable by load, while it answers
    OVER_BUDGET = "over_budget"  # routable by load


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker as an indexer told of it."""

    key: WorkerKey
    state: WorkerState
    epoch: int
    engine_url: str  # "": not told, so not routable
    requests_reported: int | None  # running and waiting on the engine; None: unknown


@dataclass(frozen=True, slots=True)
class FleetChange:
    """A change of the set of workers; `full`: those not in `workers` are gone."""

    full: bool
    workers: tuple[WorkerRecord, ...]
    removed: tuple[WorkerKey, ...]
