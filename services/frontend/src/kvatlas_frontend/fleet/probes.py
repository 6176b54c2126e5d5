"""Health checks of engines.

An engine that gets no requests cannot show that it is dead, and one that failed gets none. So each
interval the engines are asked for `/health`: all of a small fleet, a part of a large one in turn, and
always those that are stale or have failed. Dead ones stay out, and live ones come back without a lost
request.
"""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Final

import aiohttp

from kvatlas_client import WorkerState
from kvatlas_frontend.fleet.table import Fleet, Worker
from kvatlas_frontend.metrics import FrontendMetrics

_CONCURRENT_MAX: Final = 16
_ENGINES_A_ROUND: Final = 64
_TIMEOUT = aiohttp.ClientTimeout(total=1.0)


class Probes:
    """Checks engines, each URL once a round."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        fleet: Fleet,
        metrics: FrontendMetrics,
        now_s: Callable[[], float],
    ) -> None:
        self._session = session
        self._fleet = fleet
        self._metrics = metrics
        self._now_s = now_s
        self._rounds = 0

    async def run(self, interval_s: float) -> None:
        """Check every `interval_s` seconds, for ever."""
        while True:
            await asyncio.sleep(interval_s)
            await self.check()

    async def check(self) -> None:
        """Check the engines of one round, at most `_CONCURRENT_MAX` at a time."""
        gate = asyncio.Semaphore(_CONCURRENT_MAX)

        async def one(worker: Worker) -> None:
            async with gate:
                await self._check(worker)

        await asyncio.gather(*(one(worker) for worker in self._round()))

    def _round(self) -> list[Worker]:
        by_url = {worker.record.engine_url: worker for worker in self._fleet if worker.urls}
        doubtful = {
            worker.record.engine_url: worker
            for worker in self._fleet
            if worker.urls and (worker.record.state is WorkerState.STALE or worker.breaker.failures)
        }
        parts = max(1, -(-len(by_url) // _ENGINES_A_ROUND))
        self._rounds += 1
        in_turn = islice(by_url.items(), self._rounds % parts, None, parts)
        return list({**dict(in_turn), **doubtful}.values())

    async def _check(self, worker: Worker) -> None:
        """Any status counts as an answer: an engine that answers 500 is reachable."""
        try:
            async with self._session.get(
                worker.urls["/health"], timeout=_TIMEOUT, allow_redirects=False
            ):
                self._fleet.reached(worker)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._metrics.probes_failed.inc()
            refused = isinstance(error, aiohttp.ClientConnectorError) and isinstance(
                error.os_error, ConnectionRefusedError
            )
            self._fleet.unreachable(worker, self._now_s(), refused=refused)
