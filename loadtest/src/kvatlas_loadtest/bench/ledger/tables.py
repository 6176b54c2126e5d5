"""The ratios as one table per stream, and as rows with the largest gain of each optimization."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles

from kvatlas_loadtest.bench.index.streams import KINDS
from kvatlas_loadtest.bench.index.text_table import TextTable
from kvatlas_loadtest.bench.ledger.rounds import FIGURES, HIGHER_IS_BETTER, Ratio
from kvatlas_loadtest.bench.ledger.tricks import Trick
from kvatlas_loadtest.bench.rows import Row

NAME = "ledger"
GAIN_TARGET = 5.0
"""Per cent that an optimization buys at least, in its best figure."""

LEGEND = (
    "Each figure without the optimization, divided by the figure with it: the median of all rounds,"
    " and the quartiles. Kept up, store or remove, and memory: without pacing. Look-ups and apply:"
    " at half that rate, ordered answers of 32 workers."
)


def stream_table(
    kind: str, tricks: Sequence[Trick], ratios: Sequence[Ratio], libs: Path
) -> TextTable:
    """One stream's table: a row per optimization."""
    rows = [
        (
            trick.name,
            str(trick.lines(libs)),
            *(_cell(_of(ratios, kind, trick, figure)) for figure in FIGURES),
        )
        for trick in tricks
    ]
    return TextTable(KINDS[kind].title, ("without", "lines", *FIGURES), tuple(rows))


def _of(ratios: Sequence[Ratio], kind: str, trick: Trick, figure: str) -> list[float]:
    key = (kind, trick.name, figure)
    return [r.ratio for r in ratios if (r.stream, r.trick, r.figure) == key]


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    low, high = _quartiles(values)
    return f"{median(values):.2f} ({low:.2f} to {high:.2f})"


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


def gain_rows(tricks: Sequence[Trick], ratios: Sequence[Ratio]) -> list[Row]:
    """Per optimization the figure in which it buys most, over all streams.

    A gain is what three rounds of four reach: the largest of many medians would be noise.
    """
    rows: list[Row] = []
    for trick in tricks:
        gains: dict[tuple[str, str], float] = {}
        for kind, figure in dict.fromkeys((r.stream, r.figure) for r in ratios):
            if values := _of(ratios, kind, trick, figure):
                low, high = _quartiles(values)
                worse = 1 / high if figure in HIGHER_IS_BETTER else low
                gains[kind, figure] = 100 * (worse - 1)
        if not gains:
            continue
        kind, figure = max(gains, key=lambda key: gains[key])
        settings = {"trick": trick.name, "stream": kind, "figure": figure}
        gain = max(0.0, gains[kind, figure])
        rows.append(Row(NAME, "largest gain", gain, "%", GAIN_TARGET, "higher", settings))
    return rows
