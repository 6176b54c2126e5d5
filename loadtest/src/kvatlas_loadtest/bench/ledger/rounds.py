"""Rounds of trials: the index as it is, and without one optimization at a time, on one stream.

Trials take turns, and the index as it is has every fourth one. The figures of a build without an
optimization are divided by the mean of those before and after it, so a machine that slows down
for a while slows both sides.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from statistics import mean

from kvatlas_loadtest.bench.index.program import Trial
from kvatlas_loadtest.bench.ledger.tricks import Trick

KEPT_UP, WRITE, P50, P99, APPLY, MEMORY = FIGURES = (
    "kept up",
    "store or remove",
    "look-up p50",
    "look-up p99",
    "apply p99",
    "memory",
)
"""Block operations per second and processor time per block without pacing; look-ups and time of
applying at half that rate; bytes per membership at the end."""

HIGHER_IS_BETTER = frozenset({KEPT_UP})

BETWEEN_BASES = 3
"""Trials between two trials of the index as it is."""

Play = Callable[[Trick | None, int, bool], Trial]
"""Plays the stream without an optimization, or with all (None), in a window (ms; 0: without pacing),
in memory taken beforehand or not."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure of one round: without the optimization, divided by with it."""

    stream: str
    trick: str
    figure: str
    ratio: float
    base: float


def play_round(
    play: Play, tricks: Sequence[Trick], stream: str, *, backwards: bool
) -> Generator[Ratio]:
    """The ratios of one round on one stream.

    Args:
        play: plays one trial.
        tricks: the optimizations to leave out, one at a time.
        stream: the stream's name.
        backwards: take the turns in reverse order.
    """
    for kept_memory in (True, False):
        turns = [trick for trick in tricks if trick.kept_memory == kept_memory]
        if backwards:
            turns.reverse()
        if not turns:
            continue
        window_ms = 0
        for paced in (False, True):
            bases: list[Trial] = [play(None, window_ms, kept_memory)]
            for at in range(0, len(turns), BETWEEN_BASES):
                group = turns[at : at + BETWEEN_BASES]
                trials = [play(trick, window_ms, kept_memory) for trick in group]
                bases.append(play(None, window_ms, kept_memory))
                for trick, trial in zip(group, trials, strict=True):
                    for figure, value in _figures(trial, paced=paced).items():
                        if figure == MEMORY and kept_memory:
                            continue  # what was taken beforehand hides it
                        base = mean(_figures(b, paced=paced)[figure] for b in bases[-2:])
                        if base:
                            yield Ratio(stream, trick.name, figure, value / base, base)
            window_ms = max(1, round(2 * mean(base.finished_ms for base in bases)))


def turns_of(tricks: Sequence[Trick]) -> int:
    """Trials of a round on one stream."""
    counts = [sum(t.kept_memory == kept for t in tricks) for kept in (True, False)]
    return 2 * sum(count + 1 + -(-count // BETWEEN_BASES) for count in counts if count)


def _figures(trial: Trial, *, paced: bool) -> dict[str, float]:
    if paced:
        return {
            P50: trial.lookup_us["p50"],
            P99: trial.lookup_us["p99"],
            APPLY: (trial.apply_ms or {}).get("p99", 0.0),
        }
    return {
        KEPT_UP: trial.block_ops_per_s / 1e6,
        WRITE: trial.write_ns or 0.0,
        MEMORY: trial.bytes_per_membership,
    }
