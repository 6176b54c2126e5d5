"""Which replica to ask next, by what was observed of each. Pure: the clock and chance are arguments.

A replica that failed is tried last until a backoff is over, longer with every failure in a row. Then
one call tries it first again, and all others do when that one was answered. Replicas in good health
take turns, so that each sees its share of the calls and each one's failure is noticed.
"""

import threading
from collections.abc import Sequence
from random import Random

from kvatlas_client.types import ReplicaHealth

BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 5.0


class Replicas:
    """The observed health of all replicas. Thread-safe; every method is a few steps under a lock."""

    def __init__(self, addresses: Sequence[str], rng: Random) -> None:
        """Begins with everyone in good health; `rng` picks who is first, and jitters backoffs."""
        self._states = [_State(address) for address in addresses]
        self._failing = False
        count = len(addresses)
        self._rotations = [
            tuple(addresses[(turn + i) % count] for i in range(count)) for turn in range(count)
        ]
        self._rng = rng
        self._turn = rng.randrange(len(self._states))
        self._lock = threading.Lock()

    def order(self, now_s: float) -> Sequence[str]:
        """All addresses, the one to ask first in front."""
        with self._lock:
            count = len(self._states)
            self._turn = (self._turn + 1) % count
            if not self._failing:
                return self._rotations[self._turn]
            turns = [self._states[(self._turn + i) % count] for i in range(count)]
            # Stable: those that may be asked (0) keep their turns, the others follow by time.
            turns.sort(key=lambda state: max(0.0, state.retry_s - now_s))
            first = turns[0]
            if first.failures and first.retry_s <= now_s:
                # Only this call tries it; unless it succeeds the others keep to healthy ones.
                first.retry_s = now_s + self._backoff_s(first.failures)
                first.probed = True
            return [state.address for state in turns]

    def answered(self, address: str) -> None:
        """The replica is in good health."""
        if not self._failing:
            return
        with self._lock:
            state = self._find(address)
            state.failures, state.retry_s, state.last_error = 0, 0.0, None
            state.probed = False
            self._failing = any(state.failures for state in self._states)

    def failed(self, address: str, now_s: float, error: str) -> None:
        """The replica could not be reached in time, or says that it cannot serve."""
        with self._lock:
            state = self._find(address)
            self._failing = True
            # Calls that were under way together fail together: that is one failure.
            if not state.failures or state.probed or state.retry_s <= now_s:
                state.failures += 1
                state.probed = False
                state.retry_s = now_s + self._backoff_s(state.failures)
            state.last_error = error

    def wait_s(self, now_s: float) -> float:
        """Seconds until some replica may be asked again; 0 if one may be now."""
        with self._lock:
            return max(0.0, min(state.retry_s for state in self._states) - now_s)

    def observed(self) -> list[ReplicaHealth]:
        """A copy of what is known, in the order of configuration."""
        with self._lock:
            return [ReplicaHealth(s.address, s.failures, s.last_error) for s in self._states]

    def _backoff_s(self, failures: int) -> float:
        doubled = BACKOFF_FIRST_S * 2 ** min(failures - 1, 16)
        return min(doubled, BACKOFF_MAX_S) * self._rng.uniform(0.5, 1.0)

    def _find(self, address: str) -> "_State":
        return next(state for state in self._states if state.address == address)


class _State:
    __slots__ = ("address", "failures", "last_error", "probed", "retry_s")

    def __init__(self, address: str) -> None:
        self.address = address
        self.failures = 0
        self.last_error: str | None = None
        self.retry_s = 0.0
        self.probed = False
