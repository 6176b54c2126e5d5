"""Keeps the worker table up to date: applies the changes that the indexers stream."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Protocol

from kvatlas_client import WorkerState
from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.fleet.worker import FleetChange
from kvatlas_frontend.metrics import FrontendMetrics

log = logging.getLogger(__name__)


class WorkerSource(Protocol):
    """Streams the cell's workers: all of them first, then every change, without end."""

    def watch(self) -> AsyncIterator[FleetChange]:
        """Changes in order. Raises CellMismatchError if the indexers serve another cell."""
        ...


class CellMismatchError(Exception):
    """The indexers serve another model, block size or hash contract; the message names both."""


async def follow_workers(
    source: WorkerSource, fleet: Fleet, metrics: FrontendMetrics, *, workers_known: asyncio.Event
) -> None:
    """Apply the source's changes to the fleet; set `workers_known` after the first one.

    Raises:
        CellMismatchError: before the first change. The configuration is wrong, and serving would
            mean a hit rate of zero that nobody notices. After the first change only one replica
            is wrong: that is logged and counted, and the other replicas are used.
    """
    pause_s = 1.0
    while True:
        try:
            async for change in source.watch():
                fleet.apply(change)
                count_workers(fleet, metrics)
                workers_known.set()
        except CellMismatchError as error:
            if not workers_known.is_set():
                raise
            metrics.watch_errors.labels("cell_mismatch").inc()
            log.error("an indexer serves another cell: %s", error)  # noqa: TRY400 - the message says it all
        else:
            metrics.watch_errors.labels("ended").inc()
        await asyncio.sleep(pause_s)


def count_workers(fleet: Fleet, metrics: FrontendMetrics) -> None:
    """Set the gauge of workers by state."""
    counts = dict.fromkeys((state.value for state in WorkerState), 0)
    for worker in fleet:
        counts[worker.record.state.value] += 1
    for state, count in counts.items():
        metrics.workers.labels(state).set(count)
