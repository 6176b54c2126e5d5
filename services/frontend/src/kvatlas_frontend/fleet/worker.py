"""The facts about workers that the frontend takes from an indexer."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvatlas_client import Load, WorkerKey, WorkerState


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker as an indexer describes it."""

    key: WorkerKey
    state: WorkerState
    epoch: int
    engine_url: str  # "": unknown, so not routable
    load: Load | None = None  # by the engine's own metrics; None: unknown
    load_told_s: float = 0.0  # monotonic time at which the publisher told it
    role: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    capacity_blocks: int = 0  # 0: unknown


@dataclass(frozen=True, slots=True)
class FleetChange:
    """A change of the set of workers; with `full`, workers that are not listed are gone."""

    full: bool
    workers: tuple[WorkerRecord, ...]
    removed: tuple[WorkerKey, ...]
