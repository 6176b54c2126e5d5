"""An event log inside one process.

It keeps the newest `records_max` records. A reader that falls behind them is told so.
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
    """One log, for one event loop; writers and readers share the object.

    `outage`: while it is set, every append and read raises `LogUnavailable` with this reason.
    """

    def __init__(
        self, *, records_max: int = 100_000, now_unix_ms: Callable[[], int] = _now_unix_ms
    ) -> None:
        self.identity = uuid.uuid4().hex
        self.outage: str | None = None
        self._now_unix_ms = now_unix_ms
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=records_max)
        self._appended = 0  # number of all records ever appended: the position of the last one
        self._grown = asyncio.Event()

    def writer(self) -> "MemoryWriter":
        """Return a new writer to this log."""
        return MemoryWriter(self)

    def reader(self, position: LogPosition | None = None) -> "MemoryReader":
        """Return a new reader, from the oldest kept record or after `position`."""
        return MemoryReader(self, position)

    @property
    def head(self) -> int:
        """Position of the newest record; 0 in an empty log."""
        return self._appended

    def check(self) -> None:
        """Raise `LogUnavailable` during an outage."""
        if self.outage is not None:
            raise LogUnavailable(f"memory: {self.outage}")

    def append(self, records: Sequence[bytes]) -> None:
        """Append `records`, drop the oldest ones beyond the limit, and wake the readers."""
        now = self._now_unix_ms()
        self._kept.extend((now, record) for record in records)
        self._appended += len(records)
        self._grown.set()
        self._grown = asyncio.Event()

    def after(self, position: int, records_max: int) -> tuple[int, list[tuple[int, bytes]]]:
        """Return the records after `position`, and the position before the first of them."""
        oldest = self._appended - len(self._kept)
        start = max(position, oldest)
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
        """See `LogWriter`."""
        return "memory:"

    async def append(self, records: Sequence[bytes]) -> Appended:
        """See `LogWriter`."""
        self._log.check()
        self._log.append(records)
        return Appended(identity=self._log.identity)

    async def close(self) -> None:
        """See `LogWriter`."""


class MemoryReader:
    """A `LogReader` of a `MemoryLog`."""

    def __init__(self, log: MemoryLog, position: LogPosition | None) -> None:
        self._log = log
        self._head_at_start = log.head
        self._position = 0
        self._lost = False
        self._resumes = position is not None
        if position is not None:
            self._lost = position.identity != log.identity
            self._position = 0 if self._lost else int(position.entry)

    @property
    def name(self) -> str:
        """See `LogReader`."""
        return "memory:"

    async def read(self, wait_s: float) -> LogSlice:
        """See `LogReader`."""
        self._log.check()
        if self._position == self._log.head:
            try:
                async with asyncio.timeout(wait_s):
                    await self._log.grown()
            except TimeoutError:
                pass  # still at the head: an empty slice
            self._log.check()
        start, kept = self._log.after(self._position, _SLICE_RECORDS_MAX)
        # A reader from the beginning loses nothing by earlier trimming.
        trimmed = self._lost or (start > self._position and self._resumes)
        self._position = start + len(kept)
        self._lost = False
        self._resumes = True
        return LogSlice(
            records=[record for _, record in kept],
            appended_unix_ms=[at for at, _ in kept],
            at_head=self._position == self._log.head,
            caught_up=self._position >= self._head_at_start,
            trimmed=trimmed,
            foreign=0,
            position=LogPosition(self._log.identity, str(self._position)),
        )

    async def close(self) -> None:
        """See `LogReader`."""
