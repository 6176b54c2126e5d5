"""An event log inside one process: for tests, and for running everything in one.

It keeps the newest `records_max` records; a reader that falls behind them is told so.
"""

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence

from kvatlas_events.log import Appended, LogPosition, LogSlice, LogUnavailable

_SLICE_RECORDS_MAX = 1_024


def _now_unix_ms() -> int:
    return time.time_ns() // 1_000_000


class MemoryLog:
    """One log; hand it to those who shall share it. Of one event loop, without threads.

    `outage`: while it is set, everybody's append and read raise `LogUnavailable` with this reason.
    """

    def __init__(
        self, *, records_max: int = 100_000, now_unix_ms: Callable[[], int] = _now_unix_ms
    ) -> None:
        self.identity = uuid.uuid4().hex
        self.outage: str | None = None
        self._now_unix_ms = now_unix_ms
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=records_max)
        self._appended = 0  # records ever; the last one's place in the log, counted from 1
        self._grown = asyncio.Event()

    def writer(self) -> "MemoryWriter":
        """Return a new writer to this log."""
        return MemoryWriter(self)

    def reader(self, position: LogPosition | None = None) -> "MemoryReader":
        """Return a new reader, from the oldest kept record or after `position`."""
        return MemoryReader(self, position)

    @property
    def head(self) -> int:
        """The place of the newest record; 0 in an empty log."""
        return self._appended

    def check(self) -> None:
        """Raise `LogUnavailable` during an outage."""
        if self.outage is not None:
            raise LogUnavailable(f"memory: {self.outage}")

    def append(self, records: Sequence[bytes]) -> None:
        """Take `records`, forget as many old ones as needed, and wake the readers."""
        now = self._now_unix_ms()
        self._kept.extend((now, record) for record in records)
        self._appended += len(records)
        self._grown.set()
        self._grown = asyncio.Event()

    def after(self, place: int, records_max: int) -> tuple[int, list[tuple[int, bytes]]]:
        """Return the place before the first record returned, and the records after `place`."""
        oldest = self._appended - len(self._kept)
        start = max(place, oldest)
        stop = min(self._appended, start + records_max)
        return start, [self._kept[at - oldest] for at in range(start, stop)]

    async def grown(self) -> None:
        """Wait for the next append."""
        await self._grown.wait()


class MemoryWriter:
    """A `LogWriter` of a `MemoryLog`."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    @property
    def name(self) -> str:
        """As of `LogWriter`."""
        return "memory:"

    async def append(self, records: Sequence[bytes]) -> Appended:
        """As of `LogWriter`."""
        self._log.check()
        self._log.append(records)
        return Appended(identity=self._log.identity)

    async def close(self) -> None:
        """As of `LogWriter`."""


class MemoryReader:
    """A `LogReader` of a `MemoryLog`."""

    def __init__(self, log: MemoryLog, position: LogPosition | None) -> None:
        self._log = log
        self._head_at_start = log.head
        self._place = 0
        self._lost = False
        self._resumes = position is not None
        if position is not None:
            self._lost = position.identity != log.identity
            self._place = 0 if self._lost else int(position.entry)

    @property
    def name(self) -> str:
        """As of `LogReader`."""
        return "memory:"

    async def read(self, wait_s: float) -> LogSlice:
        """As of `LogReader`."""
        self._log.check()
        if self._place == self._log.head:
            try:
                async with asyncio.timeout(wait_s):
                    await self._log.grown()
            except TimeoutError:
                pass  # still at the head: an empty slice
            self._log.check()
        start, kept = self._log.after(self._place, _SLICE_RECORDS_MAX)
        # A reader from the beginning has lost nothing by what was trimmed before it came.
        trimmed = self._lost or (start > self._place and self._resumes)
        self._place = start + len(kept)
        self._lost = False
        self._resumes = True
        return LogSlice(
            records=[record for _, record in kept],
            appended_unix_ms=[at for at, _ in kept],
            at_head=self._place == self._log.head,
            caught_up=self._place >= self._head_at_start,
            trimmed=trimmed,
            foreign=0,
            position=LogPosition(self._log.identity, str(self._place)),
        )

    async def close(self) -> None:
        """As of `LogReader`."""
