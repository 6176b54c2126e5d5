"""Keeps the worker table up to date from whichever indexer answers."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Protocol

from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.fleet.worker import FleetChange, WorkerState
from kvatlas_frontend.metrics import FrontendMetrics

log = logging.getLogger(__name__)


class WorkerSource(Protocol):
    """The cell's workers: all of them first, then every change, for ever."""

    def watch(self) -> AsyncIterator[FleetChange]:
        """Changes in order. Raises CellMismatchError if the cell is another than this frontend's."""
        ...


class CellMismatchError(Exception):
    """The indexers serve another model, block size or hash contract; the message names both."""


async def follow(
    source: WorkerSource, fleet: Fleet, metrics: FrontendMetrics, *, told: asyncio.Event
) -> None:
    """Apply the source's changes to the fleet; sets `told` with the first one.

    Raises:
        CellMismatchError: before the first change: the configuration is wrong, and serving on
            would mean a silent zero hit rate. Later it is one replica that is wrong: logged and
            counted, and the others are listened to.
    """
    pause_s = 1.0
    while True:
        try:
            async for change in source.watch():
                fleet.apply(change)
                count_workers(fleet, metrics)
                told.set()
        except CellMismatchError as error:
            if not told.is_set():
                raise
            metrics.watch_errors.labels("cell_mismatch").inc()
            log.error("an indexer serves another cell: %s", error)  # noqa: TRY400 - the message says it all
        else:
            metrics.watch_errors.labels("ended").inc()
        await asyncio.sleep(pause_s)


def count_workers(fleet: Fleet, metrics: FrontendMetrics) -> None:
    """Set the gauge of workers by state."""
    counts = dict.fromkeys((state.value for state in WorkerState), 0)
    for member in fleet:
        counts[member.record.state.value] += 1
    for state, count in counts.items():
        metrics.workers.labels(state).set(count)
