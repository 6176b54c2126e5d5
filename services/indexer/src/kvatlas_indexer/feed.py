"""One event log, read for as long as the service runs, into the cell.

A log that does not answer is tried again for ever, with growing pauses, and says why on /readyz;
the cell is told, so that leases stand still meanwhile. It is told as soon as an answer is late: a
server that stalls without closing its connections is given up only after longer than a lease. A log
that answers and does not give back this replica's probes is not alive either. What leases have
counted between the last sign of life and that is taken back.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kvatlas_chassis import Seldom
from kvatlas_events import LogReader, LogSlice, LogUnavailable
from kvatlas_events.backoff import Backoff
from kvatlas_indexer.probe import Probe
from kvatlas_native import Cell

_READ_WAIT_S = 0.5
_LATE_S = 0.5
"""Beyond what a read waits for news. Late answers are no failure, and what they bring is taken."""

_TIMES = re.compile(r"\b\d{12,17}\b")
"""In what is said of a record: epochs and clocks, which differ each time."""

log = logging.getLogger(__name__)


class Feed(Protocol):
    """Where records come from, as readiness and leases see it."""

    @property
    def is_alive(self) -> bool:
        """Records that exist would arrive."""
        ...

    @property
    def obstacle(self) -> str | None:
        """What keeps this source from having been read to its head; None: it has been."""
        ...


@dataclass(frozen=True)
class PushedFeed:
    """Direct gRPC: publishers push into the cell's own server, so there is no head to reach."""

    is_alive: bool = True
    obstacle: str | None = None


class LogFeed:
    """Reads one log into the cell. `run` is its one task; the rest may be read at any time."""

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
        self._stuck = False
        self._caught_up = False
        self._refusals = Seldom()

    @property
    def is_alive(self) -> bool:
        """The last read answered, and what was appended has come back."""
        return self._is_alive

    @property
    def obstacle(self) -> str | None:
        """Why the log has not been read to the head it had at the start."""
        if self._caught_up:
            return None
        return f"log {self._reader.name}: {self._failure or 'reading towards its head'}"

    async def run(self) -> None:
        """Read for ever, the next slice while the one before is applied.

        A cancellation waits for what is being applied, and loses nothing that a later run of the
        process needs.
        """
        applying: asyncio.Task[None] | None = None
        try:
            while True:
                try:
                    part = await self._read()
                except LogUnavailable as error:
                    await _end_of(applying)
                    await self._wait_for_log(str(error))
                    continue
                await _end_of(applying)
                applying = asyncio.create_task(self._take(part))
        finally:
            await _end_of(applying)

    async def _read(self) -> LogSlice:
        """Read a slice, however long that takes; a log that is late is not alive meanwhile."""
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

    async def _take(self, part: LogSlice) -> None:
        if self._failure is not None:
            log.info("reading the log %s", self._reader.name)
        self._failure = None
        self._answered_s = time.monotonic()
        self._backoff.reset()
        if part.trimmed:
            log.warning("log %s: records are gone before they were read", self._reader.name)
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
                self._say_refused(applied.rejected, len(part.records), applied.first_rejection)
        if self.probe is not None:
            for place, mark in part.probes:
                self.probe.came_back(place, mark)
        self._records += len(part.records) + part.foreign
        behind = part.records and not part.at_head
        if part.position is not None:
            self._cell.set_log_position(
                self.transport, identity=part.position.identity, entry=part.position.entry
            )
        self._report(lag_ms=max(0, now_ms - part.appended_unix_ms[-1]) if behind else 0)
        self._caught_up |= part.caught_up

    def _say_refused(self, refused: int, records: int, first: str) -> None:
        """Name what is wrong, not every record: whoever appends it may go on doing so."""
        if self._refusals.is_due(_TIMES.sub("", first)):
            log.warning(
                "log %s: %d of %d records refused; the first: %s",
                self._reader.name,
                refused,
                records,
                first,
            )

    def _report(self, lag_ms: int) -> None:
        alive = self._failure is None and not self._is_stuck()
        if self._is_alive and not alive:
            self._cell.take_back_log_time(self.transport, unproven_ms=self._silent_ms())
        self._is_alive = alive
        self._cell.set_log_status(
            self.transport, alive=self.is_alive, records=self._records, lag_ms=lag_ms
        )

    def _is_stuck(self) -> bool:
        """Whether the log does not give probes back; what begins and what ends is said once."""
        obstacle = None if self.probe is None else self.probe.obstacle
        stuck = obstacle is not None
        if stuck != self._stuck and self._failure is None:
            self._stuck = stuck
            if stuck:
                log.warning("log %s %s; leases stand still", self._reader.name, obstacle)
            else:
                log.info("log %s takes writes again; leases go on", self._reader.name)
        return stuck

    def _silent_ms(self) -> int:
        """How old the last sign is that records which exist would have arrived."""
        read_s = time.monotonic() - self._answered_s
        proven_s = 0.0 if self.probe is None else self.probe.age_s
        return int(max(read_s, proven_s) * 1_000)


async def _end_of(task: asyncio.Task[None] | None) -> None:
    """Wait for it, and raise its error; a cancellation of the waiting does not reach it."""
    if task is not None:
        await asyncio.wait([task])
        task.result()
