"""Exponential backoff with jitter."""

import random


class Backoff:
    """Pauses that double; the jitter keeps the members of a fleet from retrying in step.

    Args:
        s_min: first pause before jitter, in seconds.
        s_max: longest pause, in seconds.
        rng: source of the jitter, which takes up to half of a pause away.
    """

    def __init__(self, s_min: float, s_max: float, rng: random.Random) -> None:
        self._s_min = s_min
        self._s_max = s_max
        self._rng = rng
        self._s = s_min

    def next_s(self) -> float:
        """Return the pause before the next attempt, and double the one after it."""
        pause_s = self._s * (1 - self._rng.random() / 2)
        self._s = min(self._s * 2, self._s_max)
        return pause_s

    def reset(self) -> None:
        """Start again with the first pause, after an attempt that worked."""
        self._s = self._s_min
