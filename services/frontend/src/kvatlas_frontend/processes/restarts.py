"""When a process that ended is started again. Times are arguments."""

from typing import Final

_FIRST_S: Final = 0.1
_MAX_S: Final = 5.0
_STEADY_S: Final = 60.0


class Backoff:
    """The pause before each restart: it doubles, and begins anew after a life of a minute."""

    def __init__(self) -> None:
        self._next_s = _FIRST_S

    def pause_s(self, lived_s: float) -> float:
        """The pause after a life of `lived_s` seconds."""
        if lived_s >= _STEADY_S:
            self._next_s = _FIRST_S
        pause_s = self._next_s
        self._next_s = min(_MAX_S, 2.0 * pause_s)
        return pause_s
