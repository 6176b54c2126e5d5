"""Measures all designs on one stream: the shortest window that counts, then half that load.

Trials of the designs take turns, so that a machine that slows down for a while slows all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from kvatlas_loadtest.bench.index.program import Design, Trial
from kvatlas_loadtest.bench.index.progress import ProgressListener
from kvatlas_loadtest.bench.index.results import FLAT, Result
from kvatlas_loadtest.bench.index.search import Rules, TriedWindow, next_window, shortest_window

Play = Callable[[Path, "Contender", int, float], Trial | None]
"""Plays a file on a contender in a window (ms), with a timeout (s); None: the time ran out."""

Cut = Callable[[float], Path]
"""Returns the first part of the stream, by share, as a file."""

_PREPARING = 2
"""Steps before the search: a probe of the design's speed, and a play of the stream without pacing."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A design with the flags that it is run with.

    Attributes:
        label: its name in tables.
        flags: further flags of each trial.
    """

    design: Design
    label: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RaceLimits:
    """Limits of the measurement.

    Attributes:
        rules: rules of the search.
        budget_s: longest time for playing the stream without pacing.
        shares: parts of the stream to play instead, in descending order, from 1.
        from_share: records before this share only warm the index up.
        patience_s: time after which a process is ended, in addition to its window.
    """

    rules: Rules
    budget_s: float
    shares: tuple[float, ...] = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01)
    from_share: float = 0.0
    patience_s: float = 60.0

    @property
    def steps(self) -> int:
        """Largest number of trials of one design."""
        return _PREPARING + (self.rules.windows_max + 1) * self.rules.trials


@dataclass(slots=True)
class _ContenderState:
    """One contender's state during the race."""

    contender: Contender
    file: Path
    share: float
    guess: Trial
    tried: list[TriedWindow] = field(default_factory=list[TriedWindow])
    counted: dict[int, list[Trial]] = field(default_factory=dict[int, list[Trial]])
    half: list[Trial] = field(default_factory=list[Trial])


class Race:
    """The race on one stream. `play` and `cut` do all input and output."""

    def __init__(self, play: Play, cut: Cut, limits: RaceLimits, watch: ProgressListener) -> None:
        self._play = play
        self._cut = cut
        self._limits = limits
        self._watch = watch

    def run(self, contenders: Sequence[Contender]) -> tuple[Result, ...]:
        """Results in the order of the contenders."""
        self._watch.expect(len(contenders) * self._limits.steps)
        prepared = [(contender, self._prepare(contender)) for contender in contenders]
        states = [state for _, state in prepared if state is not None]
        self._search(states)
        self._half_load(states)
        return tuple(
            self._gave_up(contender) if state is None else self._result(state)
            for contender, state in prepared
        )

    def _prepare(self, contender: Contender) -> _ContenderState | None:
        """Find the part of the stream that the design can play, and its time without pacing."""
        limits = self._limits
        shares = list(limits.shares)
        if len(shares) > 1:
            probed = self._unpaced(contender, shares[-1])
            if probed is None:
                self._watch.done(limits.steps)
                return None
            whole_s = self._takes_s(probed) / shares[-1]
            fitting = [share for share in shares if whole_s * share <= limits.budget_s]
            shares = fitting or shares[-1:]
        for share in shares:
            guess = self._unpaced(contender, share)
            if guess is not None and (
                self._takes_s(guess) <= 2 * limits.budget_s or share == shares[-1]
            ):
                self._watch.done(_PREPARING)
                return _ContenderState(contender, self._cut(share), share, guess)
        self._watch.done(limits.steps)
        return None

    def _unpaced(self, contender: Contender, share: float) -> Trial | None:
        self._watch.now(f"{contender.label}: as fast as it goes, {share:.0%} of the stream")
        patience_s = self._limits.patience_s + 4 * self._limits.budget_s
        return self._play(self._cut(share), contender, 0, patience_s)

    def _takes_s(self, trial: Trial) -> float:
        return trial.finished_ms / 1e3 / (1 - self._limits.from_share)

    def _search(self, states: Sequence[_ContenderState]) -> None:
        """Play one trial of each design in turn, until each one's window is found."""
        rules = self._limits.rules
        running = list(states)
        while running:
            still: list[_ContenderState] = []
            for state in running:
                window_ms = next_window(state.guess.finished_ms, state.tried, rules)
                if window_ms is None:
                    self._watch.done(rules.windows_max * rules.trials - len(state.tried))
                    continue
                self._watch.now(f"{state.contender.label}: window of {window_ms:,} ms")
                trial = self._paced(state, window_ms)
                counted = trial is not None and trial.counted
                state.tried.append(TriedWindow(window_ms, counted))
                if trial is not None and counted:
                    state.counted.setdefault(window_ms, []).append(trial)
                self._watch.done()
                still.append(state)
            running = still

    def _half_load(self, states: Sequence[_ContenderState]) -> None:
        """Play trials at half the rate that each design keeps up with."""
        for _ in range(self._limits.rules.trials):
            for state in states:
                window_ms = shortest_window(state.tried, self._limits.rules)
                if window_ms is not None:
                    self._watch.now(f"{state.contender.label}: half load")
                    trial = self._paced(state, 2 * window_ms)
                    if trial is not None:
                        state.half.append(trial)
                self._watch.done()

    def _paced(self, state: _ContenderState, window_ms: int) -> Trial | None:
        slowest_s = max(window_ms / 1e3, 4 * self._takes_s(state.guess))
        patience_s = self._limits.patience_s + 2 * slowest_s
        return self._play(state.file, state.contender, window_ms, patience_s)

    def _gave_up(self, contender: Contender) -> Result:
        share = self._limits.shares[-1]
        return Result(
            contender.label,
            ours=contender.design.name == FLAT,
            exact=contender.design.exact,
            share=share,
            note=f"did not get through the first {share:.0%} in time",
        )

    def _result(self, state: _ContenderState) -> Result:
        window_ms = shortest_window(state.tried, self._limits.rules)
        fast = state.counted[window_ms] if window_ms is not None else [state.guess]
        half = state.half
        notes = [
            *([f"first {state.share:.0%} of the stream"] if state.share < 1 else []),
            *(["kept up with no window tried"] if window_ms is None else []),
        ]
        return Result(
            state.contender.label,
            ours=state.contender.design.name == FLAT,
            exact=state.contender.design.exact,
            share=state.share,
            window_ms=window_ms,
            block_ops_per_s=_median(fast, lambda t: t.block_ops_per_s) if window_ms else None,
            lookup_us=quantiles(half, lambda t: t.lookup_us, ("p50", "p99", "p999")),
            apply_ms=quantiles(half, lambda t: t.apply_ms, ("p50", "p99", "even_p99")),
            bytes_per_membership=_median(fast, lambda t: t.bytes_per_membership),
            write_ns=_median(fast, lambda t: t.write_ns),
            note="; ".join(notes),
        )


def quantiles(
    trials: Sequence[Trial], of: Callable[[Trial], dict[str, float] | None], names: Sequence[str]
) -> dict[str, float] | None:
    """The median over trials of each quantile that all of them have; None: no trial has any."""
    known = [figures for trial in trials if (figures := of(trial)) is not None]
    common = [name for name in names if all(name in figures for figures in known)]
    return {name: median(figures[name] for figures in known) for name in common} if known else None


def _median(trials: Sequence[Trial], of: Callable[[Trial], float | None]) -> float | None:
    known = [value for trial in trials if (value := of(trial)) is not None]
    return median(known) if known else None
