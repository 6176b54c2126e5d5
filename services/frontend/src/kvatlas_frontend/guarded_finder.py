"""Asks the indexers only while they answer."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvatlas_client import Matches
from kvatlas_frontend.fleet.circuit_breaker import INDEXERS, CircuitBreaker
from kvatlas_frontend.metrics import FrontendMetrics
from kvatlas_frontend.routing.interfaces import MatchFinder, NoIndexerError


class GuardedFinder:
    """A `MatchFinder` behind a circuit breaker.

    Indexers that hang would cost every request its whole deadline. Once a few calls in a row have had
    no answer, requests are routed by load at once, and one call in a while tries whether they are
    back.
    """

    def __init__(
        self, finder: MatchFinder, metrics: FrontendMetrics, now_s: Callable[[], float]
    ) -> None:
        self._finder = finder
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
            breaker.failed(self._now_s())
            raise
        breaker.succeeded()
        return found
