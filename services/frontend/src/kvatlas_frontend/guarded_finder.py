"""Asks the indexers only while they answer."""

from collections.abc import Callable
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from kvatlas_client import Matches
from kvatlas_frontend.fleet.circuit_breaker import INDEXERS, CircuitBreaker
from kvatlas_frontend.metrics import FrontendMetrics
from kvatlas_frontend.routing.interfaces import MatchFinder, NoIndexerError
from kvatlas_native import Finder, FindMatchesError


class NativeFinds(Protocol):
    """The finder that a data plane uses to ask the same indexers by itself."""

    @property
    def native(self) -> Finder:
        """The finder; the client that owns it closes it."""
        ...

    def no_matches(self, error: FindMatchesError) -> NoIndexerError:
        """The failure that the finder's one stands for; it is logged."""
        ...


class GuardedFinder:
    """A `MatchFinder` behind a circuit breaker.

    Indexers that hang would cost every request its whole deadline. Once a few calls in a row have had
    no answer, requests are routed by load at once, and one call in a while tries whether they are
    back.

    Where the data plane asks, it reports each outcome here. It asks only while the breaker is closed;
    the trials are this class's own.
    """

    def __init__(
        self,
        finder: MatchFinder,
        metrics: FrontendMetrics,
        now_s: Callable[[], float],
        *,
        native: NativeFinds | None = None,
    ) -> None:
        self._finder = finder
        self.native: Final = native
        self._set_asking: Callable[[bool], None] | None = None
        self._is_asking = True
        self._skipped = metrics.indexer_calls_skipped
        self._now_s = now_s
        self._breaker = CircuitBreaker(INDEXERS)

    async def find(
        self, chunk_hashes: NDArray[np.uint64], *, limit: int, deadline_ms: float
    ) -> Matches:
        """See `MatchFinder`."""
        breaker = self._breaker
        now_s = self._now_s()
        if breaker.is_open(now_s):
            self._skipped.inc()
            raise NoIndexerError("the last calls had no answer")
        breaker.sent(now_s)
        try:
            found = await self._finder.find(chunk_hashes, limit=limit, deadline_ms=deadline_ms)
        except NoIndexerError:
            self._failed()
            raise
        self._succeeded()
        return found

    def steer(self, set_asking: Callable[[bool], None]) -> None:
        """Switch the data plane's asking on and off from now on."""
        self._set_asking = set_asking

    def report(self, outcome: Matches | FindMatchesError) -> Matches | NoIndexerError:
        """Count what the data plane's own question came to."""
        if isinstance(outcome, Matches):
            self._succeeded()
            return outcome
        self._failed()
        assert self.native is not None  # noqa: S101 - its finder was used
        return self.native.no_matches(outcome)

    def _failed(self) -> None:
        self._breaker.failed(self._now_s())
        self._switch()

    def _succeeded(self) -> None:
        self._breaker.succeeded()
        self._switch()

    def _switch(self) -> None:
        is_asking = self._breaker.is_closed
        if is_asking != self._is_asking and self._set_asking is not None:
            self._set_asking(is_asking)
        self._is_asking = is_asking
