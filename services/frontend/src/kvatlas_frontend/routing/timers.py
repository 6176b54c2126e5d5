"""The time that stages and plugins take, as far as routing knows of metrics."""

from collections.abc import Callable
from typing import Protocol, TypeAlias


class Timer(Protocol):
    """Records a duration, in seconds."""

    def observe(self, amount: float) -> None:
        """Record one duration."""
        ...


PluginTimers: TypeAlias = Callable[[str, str], Timer]
"""Gives the timer of a plugin, by its kind and name. Called once for each plugin of a profile."""


class Laps:
    """Measures one plugin after another: each from the end of the one before."""

    __slots__ = ("_began_s", "_now_s")

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._began_s = now_s()

    def end(self, timer: Timer) -> None:
        """Record the time since the last end."""
        ended_s = self._now_s()
        timer.observe(ended_s - self._began_s)
        self._began_s = ended_s
