"""How long to wait before the next attempt."""

import random


class Backoff:
    """Doubling pauses with jitter, so that a fleet does not come back in step.

    Args:
        s_min: the first pause, in seconds, before jitter.
        s_max: no pause is longer.
        rng: of the jitter, which takes up to half of a pause away.
    """

    def __init__(self, s_min: float, s_max: float, rng: random.Random) -> None:
        self._s_min = s_min
        self._s_max = s_max
        self._rng = rng
        self._s = s_min

    def next_s(self) -> float:
        """Return the pause before the next attempt, and lengthen the one after it."""
        pause_s = self._s * (1 - self._rng.random() / 2)
        self._s = min(self._s * 2, self._s_max)
        return pause_s

    def reset(self) -> None:
        """Begin again with the first pause: an attempt has worked."""
        self._s = self._s_min
