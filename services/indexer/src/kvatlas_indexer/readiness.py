"""When a replica may answer, and the housekeeping that its cell needs meanwhile.

Ready once: every log read to the head it had at the start, and every worker whose lease runs whole
or given up. After that a log's failure freezes leases but stops no answer.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from kvatlas_indexer.feed import Feed
from kvatlas_native import Cell

log = logging.getLogger(__name__)


class Readiness:
    """Ticks the cell and watches its feeds. `run` is its one task.

    Args:
        cell: what becomes ready.
        feeds: where its records come from.
        recover_ms: how long recovering workers are waited for, once the logs are read.
        tick_s: between two ticks.
        unix_ms: the wall clock.
    """

    def __init__(
        self,
        cell: Cell,
        feeds: Sequence[Feed],
        *,
        recover_ms: int,
        tick_s: float,
        unix_ms: Callable[[], int],
    ) -> None:
        self._cell = cell
        self._feeds = feeds
        self._recover_s = recover_ms / 1000
        self._tick_s = tick_s
        self._unix_ms = unix_ms
        self._caught_up_at: float | None = None
        self._recovering = 0
        self.ready = asyncio.Event()

    def obstacles(self) -> list[str]:
        """Say what keeps the replica from answering; nothing once it is ready."""
        if self.ready.is_set():
            return []
        waiting = [feed.obstacle for feed in self._feeds if feed.obstacle is not None]
        if not waiting and self._recovering:
            waiting = [f"{self._recovering} workers recover"]
        return waiting or ["starting"]

    async def run(self) -> None:
        """Tick for ever; every tick is short and off the event loop."""
        while True:
            alive = any(feed.is_alive for feed in self._feeds)
            await asyncio.to_thread(self._cell.tick, self._unix_ms(), log_alive=alive)
            for notice in self._cell.take_notices():
                log.warning("%s", notice)
            if not self.ready.is_set():
                self._check(time.monotonic())
            await asyncio.sleep(self._tick_s)

    def _check(self, now_s: float) -> None:
        if any(feed.obstacle is not None for feed in self._feeds):
            return
        if self._caught_up_at is None:
            self._caught_up_at = now_s
        # Those included that were given up while the logs were read, when nobody was asked yet.
        self._recovering = self._cell.gauges()['workers{state="recovering"}']
        if self._recovering and now_s - self._caught_up_at < self._recover_s:
            return
        self._cell.set_ready(ready=True)
        self.ready.set()
