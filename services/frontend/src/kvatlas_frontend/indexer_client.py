"""Adapts `kvatlas_client` to what routing and the worker table need from the cell's indexers.

Only this module knows the client's errors and its stream of workers.
"""

import logging
import time
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
from kvatlas_native import Finder, FindMatchesError

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
        self._deadline_s = settings.deadline_ms / 1e3
        self._log_limit = LogRateLimiter()

    @property
    def native(self) -> Finder:
        """See `NativeFinds`."""
        return self._client.finder

    def no_matches(self, error: FindMatchesError) -> NoIndexerError:
        """See `NativeFinds`."""
        return self._no_indexer(self._client.error_of(error, self._deadline_s))

    async def find(
        self, chunk_hashes: NDArray[np.uint64], *, limit: int, deadline_ms: float
    ) -> Matches:
        """See `MatchFinder`."""
        try:
            return await self._client.find_matches(
                chunk_hashes=chunk_hashes, limit=limit, deadline_ms=deadline_ms
            )
        except IndexerError as error:
            raise self._no_indexer(error) from None

    async def watch(self) -> AsyncGenerator[FleetChange]:
        """See `WorkerSource`."""
        try:
            async with aclosing(self._client.watch_workers()) as changes:
                async for change in changes:
                    yield fleet_change(change, time.monotonic())
        except CellMismatch as error:
            raise CellMismatchError(str(error)) from None

    async def aclose(self) -> None:
        """Close all connections and streams."""
        await self._client.close()

    def _no_indexer(self, error: IndexerError) -> NoIndexerError:
        """Log why there are no matches, at a limited rate; a metric counts each fallback."""
        if self._log_limit.allows(""):
            level = logging.WARNING if isinstance(error, NoReplicaAnswered) else logging.ERROR
            log.log(level, "no matches for a request; it is routed by load alone: %s", error)
        return NoIndexerError(str(error))


def fleet_change(change: WorkersChange, now_s: float) -> FleetChange:
    """A change as the worker table takes it; `now_s` is the monotonic time of its arrival."""
    return FleetChange(
        full=change.full,
        workers=tuple(_record(info, now_s) for info in change.workers),
        removed=change.removed,
    )


def _record(info: WorkerInfo, now_s: float) -> WorkerRecord:
    return WorkerRecord(
        key=info.key,
        state=info.state,
        epoch=info.epoch,
        engine_url=info.engine_url,
        load=info.load,
        load_told_s=now_s - info.heartbeat_age_ms / 1e3,
        role=info.role,
        labels=info.labels,
        capacity_blocks=info.capacity_blocks,
    )
