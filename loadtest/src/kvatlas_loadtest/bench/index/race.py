"""All designs on one stream: for each the shortest window that counts, then half that load.

Trials of the designs take turns, so that a machine that slows down for a while slows all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from kvatlas_loadtest.bench.index.program import Design, Trial
from kvatlas_loadtest.bench.index.progress import Watch
from kvatlas_loadtest.bench.index.results import FLAT, Result
from kvatlas_loadtest.bench.index.search import Rules, Tried, next_window, shortest_window

Play = Callable[[Path, "Entrant", int, float], Trial | None]
"""Plays a file on an entrant within so many ms, at most so many seconds; None: it took longer."""

Cut = Callable[[float], Path]
"""The first part of the stream, by share, as a file."""

_PREPARING = 2
"""Steps before the search: a look at how fast the design is, and a whole play without a clock."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A design, and how it is run.

    Attributes:
        label: its name in tables.
        flags: further flags of each trial.
    """

    design: Design
    label: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    Attributes:
        rules: of the search.
        budget_s: what a design may take for the stream as fast as it goes.
        shares: parts of the stream that may be played instead, in falling order, from 1.
        from_share: what comes before this share of the records only warms the index up.
        patience_s: after which a process is given up, beyond what its window explains.
    """

    rules: Rules
    budget_s: float
    shares: tuple[float, ...] = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01)
    from_share: float = 0.0
    patience_s: float = 60.0

    @property
    def steps(self) -> int:
        """Trials of one design, at most."""
        return _PREPARING + (self.rules.windows_max + 1) * self.rules.trials


@dataclass(slots=True)
class _Lane:
    """One entrant's way through the race."""

    entrant: Entrant
    file: Path
    share: float
    guess: Trial
    tried: list[Tried] = field(default_factory=list[Tried])
    counted: dict[int, list[Trial]] = field(default_factory=dict[int, list[Trial]])
    half: list[Trial] = field(default_factory=list[Trial])


class Race:
    """One stream's race. `play` and `cut` are the world outside."""

    def __init__(self, play: Play, cut: Cut, effort: Effort, watch: Watch) -> None:
        self._play = play
        self._cut = cut
        self._effort = effort
        self._watch = watch

    def run(self, entrants: Sequence[Entrant]) -> tuple[Result, ...]:
        """Results in the order of the entrants."""
        self._watch.expect(len(entrants) * self._effort.steps)
        prepared = [(entrant, self._prepare(entrant)) for entrant in entrants]
        lanes = [lane for _, lane in prepared if lane is not None]
        self._search(lanes)
        self._half_load(lanes)
        return tuple(
            self._gave_up(entrant) if lane is None else self._result(lane)
            for entrant, lane in prepared
        )

    def _prepare(self, entrant: Entrant) -> _Lane | None:
        """How much of the stream the design can be asked for, and how long it takes at least."""
        effort = self._effort
        shares = list(effort.shares)
        if len(shares) > 1:
            probed = self._unpaced(entrant, shares[-1])
            if probed is None:
                self._watch.done(effort.steps)
                return None
            whole_s = self._takes_s(probed) / shares[-1]
            fitting = [share for share in shares if whole_s * share <= effort.budget_s]
            shares = fitting or shares[-1:]
        for share in shares:
            guess = self._unpaced(entrant, share)
            if guess is not None and (
                self._takes_s(guess) <= 2 * effort.budget_s or share == shares[-1]
            ):
                self._watch.done(_PREPARING)
                return _Lane(entrant, self._cut(share), share, guess)
        self._watch.done(effort.steps)
        return None

    def _unpaced(self, entrant: Entrant, share: float) -> Trial | None:
        self._watch.now(f"{entrant.label}: as fast as it goes, {share:.0%} of the stream")
        patience_s = self._effort.patience_s + 4 * self._effort.budget_s
        return self._play(self._cut(share), entrant, 0, patience_s)

    def _takes_s(self, trial: Trial) -> float:
        return trial.finished_ms / 1e3 / (1 - self._effort.from_share)

    def _search(self, lanes: Sequence[_Lane]) -> None:
        """One trial of each design in turn, until each has found its window."""
        rules = self._effort.rules
        running = list(lanes)
        while running:
            still: list[_Lane] = []
            for lane in running:
                window_ms = next_window(lane.guess.finished_ms, lane.tried, rules)
                if window_ms is None:
                    self._watch.done(rules.windows_max * rules.trials - len(lane.tried))
                    continue
                self._watch.now(f"{lane.entrant.label}: window of {window_ms:,} ms")
                trial = self._paced(lane, window_ms)
                counted = trial is not None and trial.counted
                lane.tried.append(Tried(window_ms, counted))
                if trial is not None and counted:
                    lane.counted.setdefault(window_ms, []).append(trial)
                self._watch.done()
                still.append(lane)
            running = still

    def _half_load(self, lanes: Sequence[_Lane]) -> None:
        """At half the rate that each keeps up with."""
        for _ in range(self._effort.rules.trials):
            for lane in lanes:
                window_ms = shortest_window(lane.tried, self._effort.rules)
                if window_ms is not None:
                    self._watch.now(f"{lane.entrant.label}: half load")
                    trial = self._paced(lane, 2 * window_ms)
                    if trial is not None:
                        lane.half.append(trial)
                self._watch.done()

    def _paced(self, lane: _Lane, window_ms: int) -> Trial | None:
        slowest_s = max(window_ms / 1e3, 4 * self._takes_s(lane.guess))
        patience_s = self._effort.patience_s + 2 * slowest_s
        return self._play(lane.file, lane.entrant, window_ms, patience_s)

    def _gave_up(self, entrant: Entrant) -> Result:
        share = self._effort.shares[-1]
        return Result(
            entrant.label,
            ours=entrant.design.name == FLAT,
            exact=entrant.design.exact,
            share=share,
            note=f"did not get through the first {share:.0%} in time",
        )

    def _result(self, lane: _Lane) -> Result:
        window_ms = shortest_window(lane.tried, self._effort.rules)
        fast = lane.counted[window_ms] if window_ms is not None else [lane.guess]
        half = lane.half
        notes = [
            *([f"first {lane.share:.0%} of the stream"] if lane.share < 1 else []),
            *(["kept up with no window tried"] if window_ms is None else []),
        ]
        return Result(
            lane.entrant.label,
            ours=lane.entrant.design.name == FLAT,
            exact=lane.entrant.design.exact,
            share=lane.share,
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
    """The median over trials of each quantile that all of them have; None where there is none."""
    known = [figures for trial in trials if (figures := of(trial)) is not None]
    told = [name for name in names if all(name in figures for figures in known)]
    return {name: median(figures[name] for figures in known) for name in told} if known else None


def _median(trials: Sequence[Trial], of: Callable[[Trial], float | None]) -> float | None:
    known = [value for trial in trials if (value := of(trial)) is not None]
    return median(known) if known else None
