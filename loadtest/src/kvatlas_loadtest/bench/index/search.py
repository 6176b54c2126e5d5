"""Searches the shortest window that a design keeps up with.

A trial plays a stream compressed into a window of time, and counts or does not; the majority of its
trials decides about a window. From a guess, the search widens until it has one window that counts
and one that does not. Then it bisects between them, on a logarithmic scale. The next window is a
pure function of the outcomes, so that trials of several designs can take turns.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

_SQUARINGS_MAX = 4


@dataclass(frozen=True, slots=True)
class TriedWindow:
    """One trial's outcome."""

    window_ms: int
    counted: bool


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of the search.

    Attributes:
        trials: trials of one window; more than half of them must count.
        start: the first window, in multiples of the guess.
        precision: the search ends when the shortest window that counts is at most this many times
            the longest one that does not.
        widen: ratio of the first step away from the guess; each later step is its square.
        windows_max: largest number of windows to try.
    """

    trials: int = 3
    start: float = 1.0
    precision: float = 1.04
    widen: float = 1.1
    windows_max: int = 9


def next_window(guess_ms: float, tried: Sequence[TriedWindow], rules: Rules) -> int | None:
    """The window of the next trial, in whole ms; None when the search is over.

    Args:
        guess_ms: the time of a run without pacing.
        tried: outcomes of the trials so far, in any order.
        rules: rules of the search.
    """
    verdicts = _verdicts(tried, rules.trials)
    for window_ms, verdict in verdicts.items():
        if verdict is None:
            return window_ms
    if not verdicts:
        return max(1, round(guess_ms * rules.start))
    if len(verdicts) >= rules.windows_max:
        return None
    counted = [window_ms for window_ms, verdict in verdicts.items() if verdict]
    failed = [window_ms for window_ms, verdict in verdicts.items() if not verdict]
    step = rules.widen ** (2 ** min(len(verdicts) - 1, _SQUARINGS_MAX))
    if not counted:
        return math.ceil(max(failed) * step)
    shortest_ms = min(counted)
    if not failed:
        return max(1, math.floor(shortest_ms / step)) if shortest_ms > 1 else None
    longest_ms = max(failed)
    following = round(math.sqrt(shortest_ms * longest_ms))
    within = shortest_ms <= longest_ms * rules.precision
    return None if within or not longest_ms < following < shortest_ms else following


def shortest_window(tried: Sequence[TriedWindow], rules: Rules) -> int | None:
    """The shortest window, in ms, in which most trials counted; None: there is none."""
    verdicts = _verdicts(tried, rules.trials)
    return min((window_ms for window_ms, verdict in verdicts.items() if verdict), default=None)


def _verdicts(tried: Sequence[TriedWindow], trials: int) -> dict[int, bool | None]:
    """Whether most trials of each window counted; None: not decided yet."""
    verdicts: dict[int, bool | None] = {}
    ordered = sorted(tried, key=lambda trial: trial.window_ms)
    for window_ms, group in groupby(ordered, key=lambda trial: trial.window_ms):
        outcomes = [trial.counted for trial in group]
        majority = trials // 2 + 1
        if sum(outcomes) >= majority:
            verdicts[window_ms] = True
        elif len(outcomes) - sum(outcomes) > trials - majority:
            verdicts[window_ms] = False
        else:
            verdicts[window_ms] = None
    return verdicts
