"""Reads several groups of shards as one log.

Each group has one read under way, which outlives the call that began it: cancelling an XREAD costs
its connection. No failure or delay of a group is hidden by the others. While one group does not
answer, the log does not; what the other groups have read is kept, at most a slice of each.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvatlas_events.log import LogPosition, LogSlice

_POLL_S = 0.5
"""Time that one read of a group waits for records, in seconds."""
_LATE_S = 0.5
"""Time beyond `_POLL_S` after which no slice is returned until the group answers, in seconds."""


class SliceReader(Protocol):
    """Reads one group."""

    async def read(self, wait_s: float) -> LogSlice:
        """See `LogReader`."""
        ...


@dataclass(slots=True)
class _Source:
    reader: SliceReader
    reading: asyncio.Task[LogSlice] | None = None
    due_s: float = 0.0
    answers: bool = False
    at_head: bool = False
    caught_up: bool = False
    position: LogPosition | None = None

    def take(self, slice_: LogSlice) -> LogSlice:
        """Note the state that the finished read returned, and return its slice."""
        self.reading, self.answers, self.position = None, True, slice_.position
        self.at_head = slice_.at_head
        self.caught_up |= slice_.caught_up
        return slice_


class MergedReader:
    """Reads several groups; each group's records in order, groups that are behind last.

    Args:
        readers: one per group, in the order of their shards.
        monotonic_s: clock for lateness, in seconds.
    """

    def __init__(
        self, readers: Sequence[SliceReader], *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic_s = monotonic_s
        self._sources = [_Source(reader) for reader in readers]

    async def read(self, wait_s: float) -> LogSlice:
        """See `LogReader`."""
        clock = self._monotonic_s
        until_s = clock() + wait_s
        at_once = wait_s <= 0
        if at_once:
            await self._interrupt()
        while True:
            self._begin(clock(), at_once=at_once)
            await self._wait(clock(), until_s, for_all=at_once)
            slices = self._take()
            if clock() >= until_s or any(map(_is_news, slices)):
                return self._merged(slices)

    async def close(self) -> None:
        """Cancel the reads under way."""
        await self._interrupt()
        reading = [each.reading for each in self._sources if each.reading is not None]
        await asyncio.gather(*reading, return_exceptions=True)  # marks their errors as seen

    def _begin(self, now_s: float, *, at_once: bool) -> None:
        """Begin a read at every source that has none."""
        for source in self._sources:
            if source.reading is None:
                wait_s = 0.0 if at_once or not source.answers else _POLL_S
                source.reading = asyncio.create_task(source.reader.read(wait_s))
                source.due_s = now_s + wait_s + _LATE_S

    async def _wait(self, now_s: float, until_s: float, *, for_all: bool) -> None:
        """Wait for the first finished read, or for all reads that are late or must answer now."""
        reading = [each.reading for each in self._sources if each.reading is not None]
        owed = [
            each.reading
            for each in self._sources
            if each.reading is not None and (for_all or not each.answers or each.due_s <= now_s)
        ]
        if owed:
            await asyncio.wait(owed)
            return
        wake_s = min(until_s, *(each.due_s for each in self._sources))
        timeout_s = max(0.0, wake_s - now_s)
        await asyncio.wait(reading, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)

    def _take(self) -> list[LogSlice]:
        """Return the slices of finished reads; if one failed, raise and keep the slices."""
        done = [
            (source, source.reading)
            for source in self._sources
            if source.reading is not None and source.reading.done()
        ]
        failures: list[BaseException] = []
        for source, reading in done:
            if reading.cancelled():
                source.reading = None
            elif (error := reading.exception()) is not None:
                source.reading, source.answers = None, False
                failures.append(error)
        if failures:
            raise failures[0]
        return [
            source.take(reading.result()) for source, reading in done if source.reading is reading
        ]

    async def _interrupt(self) -> None:
        """Cancel the reads that wait; keep what a finished one has read."""
        reading = [each.reading for each in self._sources if each.reading is not None]
        for each in reading:
            each.cancel()
        if reading:
            await asyncio.wait(reading)
        for source in self._sources:
            if source.reading is not None and source.reading.cancelled():
                source.reading = None

    def _merged(self, slices: Sequence[LogSlice]) -> LogSlice:
        # A reader's lag is that of a slice's last record, so the oldest record comes last.
        ordered = sorted(slices, key=lambda each: (not each.at_head, -_newest(each)))
        return LogSlice(
            records=[record for each in ordered for record in each.records],
            appended_unix_ms=[at_ms for each in ordered for at_ms in each.appended_unix_ms],
            at_head=all(source.at_head for source in self._sources),
            caught_up=all(source.caught_up for source in self._sources),
            trimmed=any(each.trimmed for each in ordered),
            foreign=sum(each.foreign for each in ordered),
            position=self._position(),
            probes=[probe for each in ordered for probe in each.probes],
        )

    def _position(self) -> LogPosition | None:
        positions = [each.position for each in self._sources if each.position is not None]
        if len(positions) < len(self._sources):
            return None
        return LogPosition(
            ",".join(each.identity for each in positions),
            ",".join(each.entry for each in positions),
        )


def _is_news(slice_: LogSlice) -> bool:
    return bool(slice_.records or slice_.probes or slice_.foreign or slice_.trimmed)


def _newest(slice_: LogSlice) -> int:
    return slice_.appended_unix_ms[-1] if slice_.appended_unix_ms else 0
