"""Chooses the replica to ask next, from what was observed of each. Time and randomness are arguments.

A replica that failed is tried last until its backoff is over; each failure in a row doubles the
backoff. Then one call tries it first again, and if that is answered, all calls do. Healthy replicas
take turns, so each gets its share of the calls and every failure is noticed.
"""

import threading
from collections.abc import Sequence
from random import Random

from kvatlas_client.types import ReplicaHealth

BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 5.0


class Replicas:
    """Observed health of all replicas. Thread-safe; every method holds a lock for a few steps."""

    def __init__(self, addresses: Sequence[str], rng: Random) -> None:
        """All replicas start healthy; `rng` picks the first one and jitters backoffs."""
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
        """Return all addresses, the one to ask first in front."""
        with self._lock:
            count = len(self._states)
            self._turn = (self._turn + 1) % count
            if not self._failing:
                return self._rotations[self._turn]
            turns = [self._states[(self._turn + i) % count] for i in range(count)]
            # Stable: replicas that may be asked (0) keep their turns, the others follow by time.
            turns.sort(key=lambda state: max(0.0, state.retry_s - now_s))
            first = turns[0]
            if first.failures and first.retry_s <= now_s:
                # Only this call tries it; until it succeeds, other calls use healthy replicas.
                first.retry_s = now_s + self._backoff_s(first.failures)
                first.probed = True
            return [state.address for state in turns]

    def answered(self, address: str) -> None:
        """Report that the replica answered."""
        if not self._failing:
            return
        with self._lock:
            state = self._find(address)
            state.failures, state.retry_s, state.last_error = 0, 0.0, None
            state.probed = False
            self._failing = any(state.failures for state in self._states)

    def failed(self, address: str, now_s: float, error: str) -> None:
        """Report that the replica was not reached in time, or cannot serve."""
        with self._lock:
            state = self._find(address)
            self._failing = True
            # Calls under way at the same time fail together; that is one failure.
            if not state.failures or state.probed or state.retry_s <= now_s:
                state.failures += 1
                state.probed = False
                state.retry_s = now_s + self._backoff_s(state.failures)
            state.last_error = error

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until some replica may be asked; 0: now."""
        with self._lock:
            return max(0.0, min(state.retry_s for state in self._states) - now_s)

    def observed(self) -> list[ReplicaHealth]:
        """Return a copy of the observations, in the order of configuration."""
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
