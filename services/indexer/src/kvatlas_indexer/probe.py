"""Whether a log takes what is appended, shown by marks of this replica's own that come back.

A log whose writes are refused or stuck reads like one in which nobody speaks: every answer in time,
nothing new. Its workers would all fall silent at once. So the replica appends a small mark every
now and then and waits to read it; while the newest that has come back is too old, the log is not
alive, however well it answers.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from kvatlas_events import LogProber, LogUnavailable, RecordsRejected

_LATE_INTERVALS = 3
"""A log is not alive when so many marks in a row could have come back and have not."""
_SHARE_OF_LEASE = 8
"""Marks are appended at least so often in a lease, for a stop to be known long before its end."""
_MARKS_MAX = 64
"""Of which something may still come back; a mark that is older proves nothing any more."""


def interval_s(probe_ms: int, lease_ms: int) -> float:
    """Return the time between two marks, seconds, of what the settings say."""
    return min(probe_ms, lease_ms / _SHARE_OF_LEASE) / 1000


@dataclass(slots=True)
class _Mark:
    appended_s: float
    awaited: frozenset[int] | None = None  # parts of the log, once they have taken it
    back: set[int] = field(default_factory=set[int])


class Marks:
    """What has been appended and what has come back. Pure: times come in, as seconds of any clock.

    Args:
        name: of this life of the replica, among all that use the log.
        late_s: how old the newest mark that has come back may be.
        now_s: from when on that counts.
    """

    def __init__(self, name: str, *, late_s: float, now_s: float) -> None:
        self._name = name
        self._late_s = late_s
        self._proven_s = now_s
        self._out: dict[bytes, _Mark] = {}
        self._number = 0

    def next(self, now_s: float) -> bytes:
        """Return the mark to append now."""
        self._number += 1
        mark = f"{self._name}/{self._number}".encode()
        self._out[mark] = _Mark(now_s)
        if len(self._out) > _MARKS_MAX:
            del self._out[next(iter(self._out))]
        return mark

    def taken(self, mark: bytes, parts: frozenset[int]) -> None:
        """Note that these parts of the log have taken it: from each of them it shall come back."""
        if mark in self._out:
            self._out[mark].awaited = parts
            self._settle(mark)

    def came_back(self, part: int, mark: bytes) -> None:
        """Note what was read; other replicas' marks, and those of an earlier life, say nothing."""
        if mark in self._out:
            self._out[mark].back.add(part)
            self._settle(mark)

    def age_s(self, now_s: float) -> float:
        """Return how long ago the newest mark was appended that has come back as a whole."""
        return max(0.0, now_s - self._proven_s)

    def are_late(self, now_s: float) -> bool:
        """Whether that is too long."""
        return self.age_s(now_s) > self._late_s

    def _settle(self, mark: bytes) -> None:
        each = self._out[mark]
        if each.awaited is not None and each.awaited <= each.back:
            del self._out[mark]
            self._proven_s = max(self._proven_s, each.appended_s)


class Probe:
    """Appends marks to one log. `run` is its one task; the rest may be called at any time.

    Args:
        prober: of the log.
        name: of this life of the replica, among all that use the log.
        interval_s: between two marks.
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
        """Marks that the log did not take."""
        self._prober = prober
        self._interval_s = interval_s
        self._monotonic_s = monotonic_s
        late_s = _LATE_INTERVALS * interval_s
        self._marks = Marks(name, late_s=late_s, now_s=monotonic_s())
        self._refusal: str | None = None

    @property
    def obstacle(self) -> str | None:
        """What is wrong with the log while marks do not come back in time; None: they do."""
        if not self._marks.are_late(self._monotonic_s()):
            return None
        if self._refusal is not None:
            return f"takes no probes: {self._refusal}"
        return "does not give back in time what is appended"

    @property
    def age_s(self) -> float:
        """How long ago the newest mark was appended that has come back."""
        return self._marks.age_s(self._monotonic_s())

    def came_back(self, part: int, mark: bytes) -> None:
        """Note a mark that was read."""
        self._marks.came_back(part, mark)

    async def run(self) -> None:
        """Append for ever; what the log refuses is for whoever asks for the obstacle to say."""
        while True:
            began_s = self._monotonic_s()
            await self._append(self._marks.next(began_s))
            passed_s = self._monotonic_s() - began_s
            await asyncio.sleep(max(0.0, self._interval_s - passed_s))

    async def close(self) -> None:
        """Let go of the log."""
        await self._prober.close()

    async def _append(self, mark: bytes) -> None:
        try:
            parts = await self._prober.append_probe(mark)
        except (LogUnavailable, RecordsRejected) as error:
            self.failures += 1
            self._refusal = str(error)
        else:
            self._refusal = None
            self._marks.taken(mark, parts)
