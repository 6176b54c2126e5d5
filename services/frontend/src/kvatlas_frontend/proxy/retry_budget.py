"""The retry budget: retries may not multiply the load of a fleet that fails.

Each request earns a part of a retry, time earns a few more, and a burst may use what has been saved.
Without a bound, a fleet whose engines all fail would get every request `attempts_max` times.
"""

from typing import Final

EARNED_A_REQUEST: Final = 0.2
EARNED_A_SECOND: Final = 10.0
SAVED_MAX: Final = 512.0


class RetryBudget:
    """Counts what may still be retried. Times are monotonic seconds."""

    def __init__(self, now_s: float) -> None:
        self._saved = SAVED_MAX
        self._at_s = now_s

    def earn(self) -> None:
        """A request arrived."""
        self._saved = min(SAVED_MAX, self._saved + EARNED_A_REQUEST)

    def spend(self, now_s: float) -> bool:
        """Take one retry; False: none is left."""
        self._saved = min(SAVED_MAX, self._saved + EARNED_A_SECOND * (now_s - self._at_s))
        self._at_s = now_s
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True
