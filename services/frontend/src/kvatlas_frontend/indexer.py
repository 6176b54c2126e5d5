"""The cell's indexers, as routing and the worker table ask them: an adapter of `kvatlas_client`.

The one place that knows the client's types and errors; the rest of the frontend knows only what it
needs of them.
"""

import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvatlas_client import (
    AsyncIndexer,
    CellMismatch,
    IndexerError,
    NoReplicaAnswered,
    WorkerInfo,
    WorkersChange,
)
from kvatlas_frontend.fleet.source import CellMismatchError
from kvatlas_frontend.fleet.worker import FleetChange, WorkerKey, WorkerRecord, WorkerState
from kvatlas_frontend.routing.ports import FoundMatches, NoIndexerError
from kvatlas_frontend.settings import FrontendSettings

log = logging.getLogger(__name__)

_COMPLAINTS_EVERY_S: Final = 10.0


class IndexerClient:
    """Asks the replicas that the settings name; `aclose` gives up all connections."""

    def __init__(self, settings: FrontendSettings) -> None:
        self._client = AsyncIndexer(
            [str(address) for address in settings.indexer],
            model=settings.model,
            block_size=settings.block_size,
            deadline_ms=settings.deadline_ms,
        )
        self._silent_until_s = 0.0

    async def find(
        self, chunk_hashes: NDArray[np.uint64], *, limit: int, deadline_ms: float
    ) -> FoundMatches:
        """As `MatchFinder` says."""
        try:
            found = await self._client.find_matches(
                chunk_hashes=chunk_hashes, limit=limit, deadline_ms=deadline_ms
            )
        except IndexerError as error:
            self._complain(error)
            raise NoIndexerError(str(error)) from None
        return FoundMatches(found.worker_ids, found.dp_ranks, found.depths)

    async def watch(self) -> AsyncGenerator[FleetChange]:
        """As `WorkerSource` says."""
        try:
            async with aclosing(self._client.watch_workers()) as changes:
                async for change in changes:
                    yield _fleet_change(change)
        except CellMismatch as error:
            raise CellMismatchError(str(error)) from None

    async def aclose(self) -> None:
        """Give up all connections and streams."""
        await self._client.close()

    def _complain(self, error: IndexerError) -> None:
        """Each failure is counted as a fallback; the log says why, now and then."""
        now_s = time.monotonic()
        if now_s < self._silent_until_s:
            return
        self._silent_until_s = now_s + _COMPLAINTS_EVERY_S
        level = logging.WARNING if isinstance(error, NoReplicaAnswered) else logging.ERROR
        log.log(level, "no matches for a request, which goes by load alone: %s", error)


def _fleet_change(change: WorkersChange) -> FleetChange:
    return FleetChange(
        full=change.full,
        workers=tuple(_record(info) for info in change.workers),
        removed=tuple(WorkerKey(*key) for key in change.removed),
    )


def _record(info: WorkerInfo) -> WorkerRecord:
    load = info.load
    return WorkerRecord(
        key=WorkerKey(info.worker_id, info.dp_rank),
        state=WorkerState(info.state.value),
        epoch=info.epoch,
        engine_url=info.engine_url,
        requests_reported=None if load is None else load.requests_running + load.requests_waiting,
    )
