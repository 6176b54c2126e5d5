"""The benchmark's figures: names, units, targets; rows for JSON, and a table of the routers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich.table import Table

from kvatlas_loadtest.bench.frontend.routers import KVATLAS, NGINX
from kvatlas_loadtest.bench.rows import Row, Setting, number_text

BENCH = "frontend"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table.

    Attributes:
        target: kvatlas' value to reach; None: there is no target.
        better: whether a lower or a higher value is better.
    """

    name: str
    unit: str
    target: float | None = None
    better: Literal["lower", "higher"] = "lower"


@dataclass(frozen=True, slots=True)
class Value:
    """A router's value of a figure.

    Attributes:
        target: replaces the figure's target.
    """

    figure: Figure
    value: float
    settings: Mapping[str, Setting] = field(default_factory=dict[str, Setting])
    target: float | None = None


ADDED_P50_SHORT = Figure("added p50, {short} tokens", "ms", 0.35)
ADDED_P99_SHORT = Figure("added p99, {short} tokens", "ms", 0.9)
ADDED_P50_LONG = Figure("added p50, {long} tokens", "ms", 0.55)
ADDED_P99_LONG = Figure("added p99, {long} tokens", "ms", 1.3)
REQUESTS_SHORT = Figure("requests a second, {short} tokens", "1/s", 8_000, "higher")
REQUESTS_LONG = Figure("requests a second, {long} tokens", "1/s", 3_000, "higher")
REQUESTS_SESSION = Figure("requests a second, {long} tokens, 9/10 seen", "1/s", 5_500, "higher")
CHUNK_CPU = Figure("CPU a streamed chunk", "us", 12)
TTFT_P50 = Figure("TTFT p50 at half load, {long} tokens", "ms")
TTFT_P99 = Figure("TTFT p99 at half load, {long} tokens", "ms", 5)
RSS_IDLE = Figure("RSS idle", "MiB", 220)
RSS_BURST = Figure("RSS after a burst of streams", "MiB")
BURST_TIME = Figure("burst of streams, time over ideal", "x")
BIG_BODY = Figure("delay of others by a 31 MB body, p99", "ms", 5)
_FIGURES = (
    *(ADDED_P50_SHORT, ADDED_P99_SHORT, ADDED_P50_LONG, ADDED_P99_LONG),
    *(REQUESTS_SHORT, REQUESTS_LONG, REQUESTS_SESSION, CHUNK_CPU, TTFT_P50, TTFT_P99),
    *(RSS_IDLE, RSS_BURST, BURST_TIME, BIG_BODY),
)
DECIDE_US_TARGETS: Mapping[int, float] = {8: 15, 256: 60, 4_096: 300}
DECIDE_ALL_US_TARGETS: Mapping[int, float] = {8: 25, 256: 80, 4_096: 400}


class Figures:
    """Collects the values of all routers."""

    def __init__(self, *, short_tokens: int, long_tokens: int) -> None:
        self._lengths = {"short": f"{short_tokens:,}", "long": f"{long_tokens:,}"}
        self._measured: dict[tuple[Figure, str], list[Value]] = {}
        self._missing: list[Row] = []

    def add(self, router: str, values: Sequence[Value]) -> None:
        """Add values of a router. A figure that is added again becomes the median."""
        for value in values:
            self._measured.setdefault((value.figure, router), []).append(value)

    def leave_out(self, router: str, problem: str, figure: Figure | None = None) -> None:
        """Add a row that says why a router, or one measurement of it, is left out."""
        name = f"{router}: {self._name(figure)}: left out" if figure else f"{router}: left out"
        self._missing.append(Row(BENCH, name, 0, "-", settings={"because": problem}))

    @property
    def _values(self) -> dict[tuple[Figure, str], Value]:
        """The median of each figure, with its settings."""
        return {
            key: sorted(values, key=lambda value: value.value)[len(values) // 2]
            for key, values in self._measured.items()
        }

    def rows(self) -> list[Row]:
        """All values, figure by figure; those of peers have no target."""
        rows: list[Row] = []
        for (figure, router), value in sorted(self._values.items(), key=_order):
            target = value.target if value.target is not None else figure.target
            ratio = self._ratio(figure, router)
            settings = dict(value.settings)
            if router != NGINX and ratio is not None:
                settings["times_nginx"] = float(f"{ratio:.3g}")
            rows.append(
                Row(
                    BENCH,
                    f"{router}: {self._name(figure)}",
                    value.value,
                    figure.unit,
                    target if router == KVATLAS else None,
                    figure.better,
                    settings,
                )
            )
        return rows + self._missing

    def table(self) -> Table:
        """One line per figure, one column per router, and kvatlas' ratio to nginx."""
        routers = list(dict.fromkeys(router for _, router in self._values))
        table = Table(title="Routers on one core, engines that answer at once")
        for name in ("figure", "unit", *routers, "kvatlas / nginx", "target"):
            table.add_column(name, justify="left" if name in ("figure", "unit") else "right")
        for figure in _FIGURES:
            values = [self._values.get((figure, router)) for router in routers]
            if not any(values):
                continue
            ratio = self._ratio(figure, KVATLAS)
            target = "-" if figure.target is None else number_text(figure.target)
            table.add_row(
                self._name(figure),
                figure.unit,
                *("-" if value is None else number_text(value.value) for value in values),
                "-" if ratio is None else number_text(ratio),
                target,
            )
        return table

    def _name(self, figure: Figure) -> str:
        return figure.name.format(**self._lengths)

    def _ratio(self, figure: Figure, router: str) -> float | None:
        mine, base = self._values.get((figure, router)), self._values.get((figure, NGINX))
        if mine is None or base is None or base.value == 0:
            return None
        return mine.value / base.value


def _order(item: tuple[tuple[Figure, str], Value]) -> int:
    (figure, _), _ = item
    return _FIGURES.index(figure)
