"""The circuit breaker: an engine that cannot be reached is left alone for a while.

Failures in a row take a worker out for a time that doubles up to a bound; any answer brings it
back at once.
"""

from typing import Final

FAILURES_TO_TRIP: Final = 2
BACKOFF_FIRST_S: Final = 2.0
BACKOFF_MAX_S: Final = 30.0


class Breaker:
    """One worker's failures in a row."""

    __slots__ = ("_failures",)

    def __init__(self) -> None:
        self._failures = 0

    @property
    def has_failed(self) -> bool:
        """Whether the last thing heard was a failure."""
        return self._failures > 0

    def failed(self) -> float:
        """Count a failure; returns for how long to leave the worker alone, in seconds."""
        self._failures += 1
        trips = self._failures - FAILURES_TO_TRIP
        if trips < 0:
            return 0.0
        return min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(trips, 16))

    def answered(self) -> bool:
        """Forget the failures; whether there were any."""
        had = self._failures > 0
        self._failures = 0
        return had
