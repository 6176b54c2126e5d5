"""Circuit breakers: what fails gets no requests for a while.

So many failures in a row open a breaker for a time that doubles up to a bound. Once the time is over
the breaker is half open: one request is sent as a trial, and others only once it is answered.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """When a breaker opens and for how long, in seconds."""

    failures: int  # in a row
    first_s: float
    max_s: float
    trial_s: float  # the longest that others wait for the outcome of a trial


class CircuitBreaker:
    """A breaker. Times are monotonic seconds."""

    __slots__ = ("_limits", "failures", "open_until_s")

    def __init__(self, limits: BreakerLimits) -> None:
        self._limits = limits
        self.failures = 0  # in a row
        self.open_until_s = 0.0

    def is_open(self, now_s: float) -> bool:
        """Whether nothing may be sent now."""
        return now_s < self.open_until_s

    @property
    def is_closed(self) -> bool:
        """Whether all requests may be sent: it is neither open nor half open."""
        return self.failures < self._limits.failures

    def failed(self, now_s: float) -> None:
        """Count a failure; open if it is one too many."""
        limits = self._limits
        self.failures += 1
        beyond = self.failures - limits.failures
        if beyond >= 0:
            self.open_until_s = now_s + min(limits.max_s, limits.first_s * 2.0 ** min(beyond, 16))

    def trip(self, now_s: float) -> None:
        """Count a failure that is certain to last, and open."""
        self.failures = max(self.failures, self._limits.failures - 1)
        self.failed(now_s)

    def sent(self, now_s: float) -> None:
        """A request is sent; if the breaker is half open, it is the trial."""
        if self.failures >= self._limits.failures:
            self.open_until_s = max(self.open_until_s, now_s + self._limits.trial_s)

    def succeeded(self) -> None:
        """Close."""
        self.failures = 0
        self.open_until_s = 0.0


class Trouble(Enum):
    """The two kinds of failure of an engine, counted apart: a health check tells about one only.

    UNREACHABLE: no connection. Any answer at all, to a health check too, ends the count.
    FAILING: the engine died before its first byte, answered with a status of 500 or more, or not in
    time. Only a good answer to a request ends the count.
    """

    UNREACHABLE = BreakerLimits(failures=2, first_s=2.0, max_s=30.0, trial_s=5.0)
    FAILING = BreakerLimits(failures=3, first_s=2.0, max_s=30.0, trial_s=5.0)


INDEXERS: Final = BreakerLimits(failures=3, first_s=0.5, max_s=5.0, trial_s=1.0)
"""All replicas of the indexer together: each call that none answers costs a request its deadline."""


class EngineBreaker:
    """The breakers of one engine, one for each kind of trouble."""

    __slots__ = ("__weakref__", "_breakers")

    def __init__(self) -> None:
        self._breakers = {trouble: CircuitBreaker(trouble.value) for trouble in Trouble}

    def __getitem__(self, trouble: Trouble) -> CircuitBreaker:
        return self._breakers[trouble]

    @property
    def failures(self) -> int:
        """Number of failures since the last good answer."""
        return sum(breaker.failures for breaker in self._breakers.values())

    def sent(self, now_s: float) -> None:
        """A request goes to the engine."""
        for breaker in self._breakers.values():
            breaker.sent(now_s)

    def answered(self) -> None:
        """The engine answered a request."""
        for breaker in self._breakers.values():
            breaker.succeeded()
