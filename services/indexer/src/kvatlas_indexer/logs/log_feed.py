"""Reads one event log into the cell, for as long as the service runs.

A read that fails is tried again for ever, with growing pauses; /readyz shows the reason. Leases stand
still while the log is not alive, that is, while a read fails, an answer is late, or this replica's
probes do not come back. A late answer counts, since a client reports a stalled server only after a
lease would have ended. The time that leases have counted since the last sign of life is taken back.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kvatlas_chassis import LogRateLimiter
from kvatlas_events import LogReader, LogSlice, LogUnavailable
from kvatlas_events.backoff import Backoff
from kvatlas_indexer.logs.probe import Probe
from kvatlas_native import Cell

_READ_WAIT_S = 0.5
_LATE_S = 0.5
"""Delay of an answer, beyond the wait for new records, after which the log is not alive."""

_TIMES = re.compile(r"\b\d{12,17}\b")
"""Epochs and clocks in a rejection's text, which differ each time."""

log = logging.getLogger(__name__)


class Feed(Protocol):
    """A source of records, as readiness and leases see it."""

    @property
    def is_alive(self) -> bool:
        """Whether existing records would arrive."""
        ...

    @property
    def obstacle(self) -> str | None:
        """Why the source is not read to its head yet; None: it is."""
        ...


@dataclass(frozen=True)
class PushedFeed:
    """Direct gRPC: publishers push to the cell's own server, so there is no head to reach."""

    is_alive: bool = True
    obstacle: str | None = None


class LogFeed:
    """Reads one log into the cell. `run` is its one task; the properties may be read at any time."""

    def __init__(
        self,
        cell: Cell,
        reader: LogReader,
        transport: str,
        *,
        backoff: Backoff,
        unix_ms: Callable[[], int],
        probe: Probe | None = None,
    ) -> None:
        self.transport = transport
        self.probe = probe
        self._cell = cell
        self._reader = reader
        self._backoff = backoff
        self._unix_ms = unix_ms
        self._records = 0
        self._failure: str | None = "not read yet"
        self._answered_s = time.monotonic()
        self._is_alive = False
        self._was_stuck = False
        self._caught_up = False
        self._rejections = LogRateLimiter()

    @property
    def is_alive(self) -> bool:
        """Whether the last read was answered in time and probes come back."""
        return self._is_alive

    @property
    def obstacle(self) -> str | None:
        """Why the log is not read to the head that it had at the start; None: it is."""
        if self._caught_up:
            return None
        return f"log {self._reader.name}: {self._failure or 'reading towards its head'}"

    async def run(self) -> None:
        """Read for ever; the next slice is read while the last one is applied.

        A cancellation waits until the slice at hand is applied.
        """
        applying: asyncio.Task[None] | None = None
        try:
            while True:
                try:
                    part = await self._read()
                except LogUnavailable as error:
                    await _finished(applying)
                    await self._wait_for_log(str(error))
                    continue
                await _finished(applying)
                applying = asyncio.create_task(self._apply(part))
        finally:
            await _finished(applying)

    async def _read(self) -> LogSlice:
        """Read a slice, however long that takes; the log is not alive while its answer is late."""
        reading = asyncio.ensure_future(self._reader.read(_READ_WAIT_S))
        try:
            await asyncio.wait([reading], timeout=_READ_WAIT_S + _LATE_S)
            if not reading.done():
                self._fail(f"{self._reader.name} is late with its answer")
            return await reading
        finally:
            if reading.cancel():
                await asyncio.wait([reading])

    def _fail(self, failure: str) -> None:
        if failure != self._failure:
            log.warning("%s", failure)
        self._failure = failure
        self._report(lag_ms=0)

    async def _wait_for_log(self, failure: str) -> None:
        self._fail(failure)
        await asyncio.sleep(self._backoff.next_s())

    async def _apply(self, part: LogSlice) -> None:
        if self._failure is not None:
            log.info("reading the log %s", self._reader.name)
        self._failure = None
        self._answered_s = time.monotonic()
        self._backoff.reset()
        if part.trimmed:
            log.warning("log %s: records were trimmed before they were read", self._reader.name)
        now_ms = self._unix_ms()
        if part.records:
            applied = await asyncio.to_thread(
                self._cell.apply,
                part.records,
                transport=self.transport,
                appended_unix_ms=part.appended_unix_ms,
                now_unix_ms=now_ms,
            )
            if applied.first_rejection is not None:
                self._log_rejected(applied.rejected, len(part.records), applied.first_rejection)
        if self.probe is not None:
            for log_part, mark in part.probes:
                self.probe.came_back(log_part, mark)
        self._records += len(part.records) + part.foreign
        behind = part.records and not part.at_head
        if part.position is not None:
            self._cell.set_log_position(
                self.transport, identity=part.position.identity, entry=part.position.entry
            )
        self._report(lag_ms=max(0, now_ms - part.appended_unix_ms[-1]) if behind else 0)
        self._caught_up |= part.caught_up

    def _log_rejected(self, rejected: int, records: int, first: str) -> None:
        """Log each cause of rejections once in a while, since its sender may go on."""
        if self._rejections.allows(_TIMES.sub("", first)):
            log.warning(
                "log %s: %d of %d records rejected; the first: %s",
                self._reader.name,
                rejected,
                records,
                first,
            )

    def _report(self, lag_ms: int) -> None:
        alive = self._failure is None and not self._is_stuck()
        if self._is_alive and not alive:
            self._cell.rewind_log_time(self.transport, unproven_ms=self._unproven_ms())
        self._is_alive = alive
        self._cell.set_log_status(
            self.transport, alive=self.is_alive, records=self._records, lag_ms=lag_ms
        )

    def _is_stuck(self) -> bool:
        """Return whether probes do not come back, and log each change."""
        obstacle = None if self.probe is None else self.probe.obstacle
        stuck = obstacle is not None
        if stuck != self._was_stuck and self._failure is None:
            self._was_stuck = stuck
            if stuck:
                log.warning("log %s %s; leases stand still", self._reader.name, obstacle)
            else:
                log.info("log %s takes writes again; leases go on", self._reader.name)
        return stuck

    def _unproven_ms(self) -> int:
        """Return the age of the last sign that existing records would have arrived."""
        read_s = time.monotonic() - self._answered_s
        proven_s = 0.0 if self.probe is None else self.probe.age_s
        return int(max(read_s, proven_s) * 1_000)


async def _finished(task: asyncio.Task[None] | None) -> None:
    """Wait for the task and raise its error; cancelling the wait does not cancel the task."""
    if task is not None:
        await asyncio.wait([task])
        task.result()
