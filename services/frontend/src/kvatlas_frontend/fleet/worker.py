"""The facts about workers that the frontend takes from an indexer."""

from dataclasses import dataclass

from kvatlas_client import WorkerKey, WorkerState


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker as an indexer describes it."""

    key: WorkerKey
    state: WorkerState
    epoch: int
    engine_url: str  # "": unknown, so not routable
    requests_reported: int | None  # running and waiting on the engine; None: unknown


@dataclass(frozen=True, slots=True)
class FleetChange:
    """A change of the set of workers; with `full`, workers that are not listed are gone."""

    full: bool
    workers: tuple[WorkerRecord, ...]
    removed: tuple[WorkerKey, ...]
