"""Adapts `kvatlas_client` to what routing and the worker table need from the cell's indexers.

Only this module knows the client's errors and its stream of workers.
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

import numpy as np
from numpy.typing import NDArray

from kvatlas_chassis import LogRateLimiter
from kvatlas_client import (
    AsyncIndexer,
    CellMismatch,
    IndexerError,
    Matches,
    NoReplicaAnswered,
    WorkerInfo,
    WorkersChange,
)
from kvatlas_frontend.fleet.watch import CellMismatchError
from kvatlas_frontend.fleet.worker import FleetChange, WorkerRecord
from kvatlas_frontend.routing.interfaces import NoIndexerError
from kvatlas_frontend.settings import FrontendSettings

log = logging.getLogger(__name__)


class IndexerClient:
    """Asks the replicas that the settings name; `aclose` closes all connections."""

    def __init__(self, settings: FrontendSettings) -> None:
        self._client = AsyncIndexer(
            [str(address) for address in settings.indexer],
            model=settings.model,
            block_size=settings.block_size,
            deadline_ms=settings.deadline_ms,
        )
        self._log_limit = LogRateLimiter()

    async def find(
        self, chunk_hashes: NDArray[np.uint64], *, limit: int, deadline_ms: float
    ) -> Matches:
        """See `MatchFinder`."""
        try:
            return await self._client.find_matches(
                chunk_hashes=chunk_hashes, limit=limit, deadline_ms=deadline_ms
            )
        except IndexerError as error:
            self._log_failure(error)
            raise NoIndexerError(str(error)) from None

    async def watch(self) -> AsyncGenerator[FleetChange]:
        """See `WorkerSource`."""
        try:
            async with aclosing(self._client.watch_workers()) as changes:
                async for change in changes:
                    yield _fleet_change(change)
        except CellMismatch as error:
            raise CellMismatchError(str(error)) from None

    async def aclose(self) -> None:
        """Close all connections and streams."""
        await self._client.close()

    def _log_failure(self, error: IndexerError) -> None:
        """Log why there are no matches, at a limited rate; a metric counts each fallback."""
        if self._log_limit.allows(""):
            level = logging.WARNING if isinstance(error, NoReplicaAnswered) else logging.ERROR
            log.log(level, "no matches for a request; it is routed by load alone: %s", error)


def _fleet_change(change: WorkersChange) -> FleetChange:
    return FleetChange(
        full=change.full,
        workers=tuple(_record(info) for info in change.workers),
        removed=change.removed,
    )


def _record(info: WorkerInfo) -> WorkerRecord:
    load = info.load
    return WorkerRecord(
        key=info.key,
        state=info.state,
        epoch=info.epoch,
        engine_url=info.engine_url,
        requests_reported=None if load is None else load.requests_running + load.requests_waiting,
    )
