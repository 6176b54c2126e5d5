"""Limits how often events of the same kind are logged; counters report how many there were."""

import time
from collections.abc import Callable

_KINDS_MAX = 64


class LogRateLimiter:
    """Allows the first event of a kind, and then one every `interval_s` seconds.

    Kinds may come from outside the process. At most 64 are remembered; one more clears them all.
    """

    def __init__(
        self, interval_s: float = 10.0, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval_s = interval_s
        self._monotonic_s = monotonic_s
        self._last_logged_s: dict[str, float] = {}

    def allows(self, kind: str) -> bool:
        """Return whether to log an event of `kind` now; True counts as logged."""
        now_s = self._monotonic_s()
        if now_s - self._last_logged_s.get(kind, -self._interval_s) < self._interval_s:
            return False
        if kind not in self._last_logged_s and len(self._last_logged_s) >= _KINDS_MAX:
            self._last_logged_s.clear()
        self._last_logged_s[kind] = now_s
        return True
