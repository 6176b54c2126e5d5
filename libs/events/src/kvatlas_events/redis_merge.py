"""Reading shards that lie in different places as one log.

Each place has a read of its own under way, which outlives the call that began it: an XREAD that is
given up costs its connection. No place may fail or stall in the shadow of the others. While one
does not answer, the log does not: what the others have read is kept, at most a slice of each.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvatlas_events.log import LogPosition, LogSlice

_POLL_S = 0.5
"""A place waits so long for news."""
_LATE_S = 0.5
"""Beyond that, before nothing more is given out until it answers."""


class PlaceReader(Protocol):
    """What reads one place: a `ShardsReader`."""

    async def read(self, wait_s: float) -> LogSlice:
        """As of `LogReader`."""
        ...


@dataclass(slots=True)
class _Place:
    reader: PlaceReader
    reading: asyncio.Task[LogSlice] | None = None
    due_s: float = 0.0
    answers: bool = False
    at_head: bool = False
    caught_up: bool = False
    position: LogPosition | None = None

    def take(self, slice_: LogSlice) -> LogSlice:
        """Give out what the read has brought."""
        self.reading, self.answers, self.position = None, True, slice_.position
        self.at_head = slice_.at_head
        self.caught_up |= slice_.caught_up
        return slice_


class Merge:
    """Reads several places; each one's records in order, those that are behind last.

    Args:
        readers: of the places, in the order of their shards.
        monotonic_s: a clock; of lateness.
    """

    def __init__(
        self, readers: Sequence[PlaceReader], *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic_s = monotonic_s
        self._places = [_Place(reader) for reader in readers]

    async def read(self, wait_s: float) -> LogSlice:
        """As of `LogReader`."""
        clock = self._monotonic_s
        until_s = clock() + wait_s
        at_once = wait_s <= 0
        if at_once:
            await self._interrupt()
        while True:
            self._begin(clock(), at_once=at_once)
            await self._some(clock(), until_s, all_of_them=at_once)
            slices = self._take()
            if clock() >= until_s or any(map(_says_something, slices)):
                return self._merged(slices)

    async def close(self) -> None:
        """End what is under way."""
        await self._interrupt()
        ended = [each.reading for each in self._places if each.reading is not None]
        await asyncio.gather(*ended, return_exceptions=True)  # nobody asks any more

    def _begin(self, now_s: float, *, at_once: bool) -> None:
        """Begin a read wherever none is under way or waits to be taken."""
        for place in self._places:
            if place.reading is None:
                wait_s = 0.0 if at_once or not place.answers else _POLL_S
                place.reading = asyncio.create_task(place.reader.read(wait_s))
                place.due_s = now_s + wait_s + _LATE_S

    async def _some(self, now_s: float, until_s: float, *, all_of_them: bool) -> None:
        """Wait for a place to have read something, but for those that owe an answer in any case."""
        reading = [each.reading for each in self._places if each.reading is not None]
        owed = [
            each.reading
            for each in self._places
            if each.reading is not None and (all_of_them or not each.answers or each.due_s <= now_s)
        ]
        if owed:
            await asyncio.wait(owed)
            return
        wake_s = min(until_s, *(each.due_s for each in self._places))
        timeout_s = max(0.0, wake_s - now_s)
        await asyncio.wait(reading, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)

    def _take(self) -> list[LogSlice]:
        """Take what has been read, unless a place has failed: then it waits for the next time."""
        done = [
            (place, place.reading)
            for place in self._places
            if place.reading is not None and place.reading.done()
        ]
        failures: list[BaseException] = []
        for place, reading in done:
            if reading.cancelled():
                place.reading = None
            elif (error := reading.exception()) is not None:
                place.reading, place.answers = None, False
                failures.append(error)
        if failures:
            raise failures[0]
        slices: list[LogSlice] = []
        for place, reading in done:
            if place.reading is reading:
                slices.append(place.take(reading.result()))
        return slices

    async def _interrupt(self) -> None:
        """End the reads that wait for news; what one has brought already is kept."""
        reading = [each.reading for each in self._places if each.reading is not None]
        for each in reading:
            each.cancel()
        if reading:
            await asyncio.wait(reading)
        for place in self._places:
            if place.reading is not None and place.reading.cancelled():
                place.reading = None

    def _merged(self, slices: Sequence[LogSlice]) -> LogSlice:
        # A reader's lag is that of the last record of a slice: it shall be the oldest.
        ordered = sorted(slices, key=lambda each: (not each.at_head, -_newest(each)))
        return LogSlice(
            records=[record for each in ordered for record in each.records],
            appended_unix_ms=[at_ms for each in ordered for at_ms in each.appended_unix_ms],
            at_head=all(place.at_head for place in self._places),
            caught_up=all(place.caught_up for place in self._places),
            trimmed=any(each.trimmed for each in ordered),
            foreign=sum(each.foreign for each in ordered),
            position=self._position(),
            probes=[probe for each in ordered for probe in each.probes],
        )

    def _position(self) -> LogPosition | None:
        positions = [each.position for each in self._places if each.position is not None]
        if len(positions) < len(self._places):
            return None
        return LogPosition(
            ",".join(each.identity for each in positions),
            ",".join(each.entry for each in positions),
        )


def _says_something(slice_: LogSlice) -> bool:
    return bool(slice_.records or slice_.probes or slice_.foreign or slice_.trimmed)


def _newest(slice_: LogSlice) -> int:
    return slice_.appended_unix_ms[-1] if slice_.appended_unix_ms else 0
