"""Which of many like events are worth a line in the log; counters tell the rest."""

import time
from collections.abc import Callable

_KINDS_MAX = 64


class Seldom:
    """The first event of a kind is due, and then one every `every_s` seconds.

    Kinds may come from outside, so only so many are remembered; beyond that all begin anew.
    """

    def __init__(
        self, every_s: float = 10.0, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._every_s = every_s
        self._monotonic_s = monotonic_s
        self._said_s: dict[str, float] = {}

    def is_due(self, kind: str) -> bool:
        """Whether to say it now; then it counts as said."""
        now_s = self._monotonic_s()
        if now_s - self._said_s.get(kind, -self._every_s) < self._every_s:
            return False
        if kind not in self._said_s and len(self._said_s) >= _KINDS_MAX:
            self._said_s.clear()
        self._said_s[kind] = now_s
        return True
