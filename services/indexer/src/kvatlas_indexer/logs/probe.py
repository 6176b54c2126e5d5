"""Shows that a log accepts writes, by marks that this replica appends and reads back.

A log whose writes are refused or stuck reads like a silent one: every answer in time, and nothing new.
All its workers would become stale at once. So the replica appends a small mark at an interval and
waits to read it. While the newest mark that has come back is too old, the log is not alive, even if
it answers in time.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from kvatlas_events import LogProber, LogUnavailable, RecordsRejected

_LATE_INTERVALS = 3
"""Age of the newest returned mark, in intervals, beyond which the log is not alive."""
_SHARE_OF_LEASE = 8
"""Lowest number of marks per lease, so that a stopped log is detected before the lease ends."""
_MARKS_MAX = 64
"""Number of newest marks that may still come back; older ones are forgotten."""


def interval_s(probe_ms: int, lease_ms: int) -> float:
    """Return the time between two marks in seconds."""
    return min(probe_ms, lease_ms / _SHARE_OF_LEASE) / 1000


@dataclass(slots=True)
class _Mark:
    appended_s: float
    awaited: frozenset[int] | None = None  # parts of the log that have accepted it
    returned: set[int] = field(default_factory=set[int])


class Marks:
    """The marks that were appended and that have come back. Pure: times are seconds of any clock.

    Args:
        name: prefix of the marks, unique among all processes that use the log.
        late_s: greatest age of the newest returned mark.
        now_s: the time at which the first interval begins.
    """

    def __init__(self, name: str, *, late_s: float, now_s: float) -> None:
        self._name = name
        self._late_s = late_s
        self._proven_s = now_s
        self._pending: dict[bytes, _Mark] = {}
        self._number = 0

    def next(self, now_s: float) -> bytes:
        """Return the mark to append now."""
        self._number += 1
        mark = f"{self._name}/{self._number}".encode()
        self._pending[mark] = _Mark(now_s)
        if len(self._pending) > _MARKS_MAX:
            del self._pending[next(iter(self._pending))]
        return mark

    def accepted(self, mark: bytes, parts: frozenset[int]) -> None:
        """Note that these parts of the log have accepted the mark; it must come back from each."""
        if mark in self._pending:
            self._pending[mark].awaited = parts
            self._settle(mark)

    def came_back(self, part: int, mark: bytes) -> None:
        """Note a mark that was read; marks of other processes are ignored."""
        if mark in self._pending:
            self._pending[mark].returned.add(part)
            self._settle(mark)

    def age_s(self, now_s: float) -> float:
        """Return the age of the newest mark that has come back from all its parts."""
        return max(0.0, now_s - self._proven_s)

    def are_late(self, now_s: float) -> bool:
        """Whether that mark is too old."""
        return self.age_s(now_s) > self._late_s

    def _settle(self, mark: bytes) -> None:
        each = self._pending[mark]
        if each.awaited is not None and each.awaited <= each.returned:
            del self._pending[mark]
            self._proven_s = max(self._proven_s, each.appended_s)


class Probe:
    """Appends marks to one log. `run` is its one task; the rest may be called at any time.

    Args:
        prober: appends to the log.
        name: prefix of the marks, unique among all processes that use the log.
        interval_s: time between two marks, in seconds.
        monotonic_s: the clock.
    """

    def __init__(
        self,
        prober: LogProber,
        *,
        name: str,
        interval_s: float,
        monotonic_s: Callable[[], float],
    ) -> None:
        self.failures = 0
        """Number of marks that the log refused."""
        self._prober = prober
        self._interval_s = interval_s
        self._monotonic_s = monotonic_s
        late_s = _LATE_INTERVALS * interval_s
        self._marks = Marks(name, late_s=late_s, now_s=monotonic_s())
        self._refusal: str | None = None

    @property
    def obstacle(self) -> str | None:
        """Why marks do not come back in time; None: they do."""
        if not self._marks.are_late(self._monotonic_s()):
            return None
        if self._refusal is not None:
            return f"takes no probes: {self._refusal}"
        return "does not give back in time what is appended"

    @property
    def age_s(self) -> float:
        """Age of the newest mark that has come back."""
        return self._marks.age_s(self._monotonic_s())

    def came_back(self, part: int, mark: bytes) -> None:
        """Note a mark that was read."""
        self._marks.came_back(part, mark)

    async def run(self) -> None:
        """Append marks for ever; `obstacle` tells of refusals."""
        while True:
            began_s = self._monotonic_s()
            await self._append(self._marks.next(began_s))
            passed_s = self._monotonic_s() - began_s
            await asyncio.sleep(max(0.0, self._interval_s - passed_s))

    async def close(self) -> None:
        """Close the connection to the log."""
        await self._prober.close()

    async def _append(self, mark: bytes) -> None:
        try:
            parts = await self._prober.append_probe(mark)
        except (LogUnavailable, RecordsRejected) as error:
            self.failures += 1
            self._refusal = str(error)
        else:
            self._refusal = None
            self._marks.accepted(mark, parts)
