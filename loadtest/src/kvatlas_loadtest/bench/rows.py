"""A benchmark's results: rows of one shape, as a table and as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

from rich.table import Table

from kvatlas_chassis import FatalError

Setting = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    Attributes:
        better: whether a lower or a higher value is better.
        target: the value to reach; None: there is no target.
        settings: the settings that the figure depends on.
    """

    bench: str
    figure: str
    value: float
    unit: str
    target: float | None = None
    better: Literal["lower", "higher"] = "lower"
    settings: Mapping[str, Setting] = field(default_factory=dict[str, Setting])

    @property
    def met(self) -> bool | None:
        """Whether the target was reached; None: there is no target."""
        if self.target is None:
            return None
        return self.value <= self.target if self.better == "lower" else self.value >= self.target

    def document(self) -> dict[str, Any]:
        """The row in the format of `--json`."""
        return {
            "bench": self.bench,
            "figure": self.figure,
            "value": self.value,
            "unit": self.unit,
            "target": self.target,
            "met": self.met,
            "settings": dict(self.settings),
        }


def rows_table(rows: Sequence[Row]) -> Table:
    """All rows as a table, by benchmark."""
    table = Table()
    for name in ("bench", "figure"):
        table.add_column(name)
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("target", justify="right")
    table.add_column("met")
    table.add_column("settings", style="dim")
    for number, row in enumerate(rows):
        shown = {True: "[green]yes", False: "[red]no", None: "-"}[row.met]
        sign = "≤" if row.better == "lower" else "≥"
        table.add_row(
            row.bench,
            row.figure,
            number_text(row.value),
            row.unit,
            "-" if row.target is None else f"{sign} {number_text(row.target)}",
            shown,
            ", ".join(f"{name} {value}" for name, value in row.settings.items()),
            end_section=number + 1 < len(rows) and rows[number + 1].bench != row.bench,
        )
    return table


def number_text(value: float) -> str:
    """The value with at least three significant digits and separated thousands."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"  # noqa: PLR2004


def write_rows(file: Path, rows: Sequence[Row]) -> None:
    """Write `--json FILE`.

    Raises:
        FatalError: the file cannot be written.
    """
    try:
        file.write_text(json.dumps([row.document() for row in rows], indent=2) + "\n")
    except OSError as error:
        raise FatalError(f"kvatlas bench: cannot write {file}: {error.strerror}") from None


class Medians:
    """Collects values by name over several runs; returns the median of each.

    Benchmarks take turns between the things that they compare, so that a machine that slows down
    for a while slows all of them.
    """

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, name: str, value: float) -> None:
        """Add one run's value."""
        self._values.setdefault(name, []).append(value)

    def __getitem__(self, name: str) -> float:
        """The median of a name's values."""
        return median(self._values[name])
