"""When a replica may answer, and the ticks that its cell needs.

A replica is ready once every log is read to the head that it had at the start, and no worker with a
running lease is recovering, or `recover_ms` has passed since. A log that fails later stops leases, not
answers.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from kvatlas_indexer.logs.log_feed import Feed
from kvatlas_native import Cell

log = logging.getLogger(__name__)


class Readiness:
    """Ticks the cell and watches its feeds. `run` is its one task.

    Args:
        cell: the cell that becomes ready.
        recover_ms: how long recovering workers are waited for, once the logs are read.
        tick_s: time between two ticks.
        unix_ms: the wall clock.
    """

    def __init__(
        self, cell: Cell, *, recover_ms: int, tick_s: float, unix_ms: Callable[[], int]
    ) -> None:
        self._cell = cell
        self._recover_s = recover_ms / 1000
        self._tick_s = tick_s
        self._unix_ms = unix_ms
        self._feeds: Sequence[Feed] | None = None
        self._caught_up_at: float | None = None
        self._recovering = 0
        self.ready = asyncio.Event()

    def obstacles(self) -> list[str]:
        """Return what keeps the replica from answering; nothing once it is ready."""
        if self.ready.is_set():
            return []
        if self._feeds is None:
            return ["reading the state to start from"]
        waiting = [feed.obstacle for feed in self._feeds if feed.obstacle is not None]
        if not waiting and self._recovering:
            waiting = [f"{self._recovering} workers are recovering"]
        return waiting or ["starting"]

    async def run(self, feeds: Sequence[Feed]) -> None:
        """Tick for ever, with records from these feeds; every tick is short and off the event loop."""
        self._feeds = feeds
        while True:
            alive = any(feed.is_alive for feed in feeds)
            await asyncio.to_thread(self._cell.tick, self._unix_ms(), log_alive=alive)
            for notice in self._cell.take_notices():
                log.warning("%s", notice)
            if not self.ready.is_set():
                self._check(feeds, time.monotonic())
            await asyncio.sleep(self._tick_s)

    def _check(self, feeds: Sequence[Feed], now_s: float) -> None:
        if any(feed.obstacle is not None for feed in feeds):
            return
        if self._caught_up_at is None:
            self._caught_up_at = now_s
        # Includes workers that were given up before the logs were read, when recovery had not begun.
        self._recovering = self._cell.gauges()['workers{state="recovering"}']
        if self._recovering and now_s - self._caught_up_at < self._recover_s:
            return
        self._cell.set_ready(ready=True)
        self.ready.set()
