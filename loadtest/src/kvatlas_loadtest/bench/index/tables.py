"""What was found out about the designs, as a table a stream."""

from collections.abc import Callable
from dataclasses import dataclass

from kvatlas_loadtest.bench.index.results import Result, Standing
from kvatlas_loadtest.bench.index.sheets import Sheet
from kvatlas_loadtest.bench.rows import number_text

NOTHING = "-"

LEGEND = (
    "Mops/s: millions of blocks asked for, stored and removed a second, the drain included, in the "
    "shortest window in which most trials issued all within 1.01 times the window and applied all "
    "within 1.10 times. Look-ups and p99 of applying an event: at half that rate. Bytes a "
    "membership, and ns a block stored or removed: at that rate. One thread issues and looks up, "
    "one applies."
)


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    of: Callable[[Standing, Result], float | None]


_COLUMNS = (
    _Column("Mops/s kept up", lambda _, r: _scaled(r.block_ops_per_s, 1e-6)),
    _Column("look-up p50, µs", lambda _, r: _quantile(r.lookup_us, "p50")),
    _Column("p99, µs", lambda _, r: _quantile(r.lookup_us, "p99")),
    _Column("p99.9, µs", lambda _, r: _quantile(r.lookup_us, "p999")),
    _Column("apply p99, ms", lambda _, r: _quantile(r.apply_ms, "p99")),
    _Column("at even cost, ms", lambda _, r: _quantile(r.apply_ms, "even_p99")),
    _Column("bytes a membership", lambda _, r: r.bytes_per_membership),
    _Column("store or remove, ns", lambda _, r: r.write_ns),
    _Column("times best baseline", lambda s, r: s.ratio(r)),
)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _quantile(figures: dict[str, float] | None, name: str) -> float | None:
    return None if figures is None else figures.get(name)


def standing_sheet(standing: Standing) -> Sheet:
    """One stream: a row a design."""
    return Sheet(
        heading(standing),
        ("design", *(column.title for column in _COLUMNS), "note"),
        tuple(
            (result.label, *_cells(standing, result), note(result)) for result in standing.results
        ),
        has_note=True,
        strong=frozenset(at for at, result in enumerate(standing.results) if result.ours),
    )


def heading(standing: Standing) -> str:
    """A stream in a line."""
    header = standing.stream.header
    return (
        f"{standing.stream.title}: {header.workers:,} workers of {header.capacity:,} blocks, "
        f"{header.block_ops / 1e6:,.1f} M block operations"
    )


def note(result: Result) -> str:
    """What a reader must know of a row."""
    inexact = [] if result.exact else ["inexact"]
    return "; ".join([*inexact, *([result.note] if result.note else [])])


def _cells(standing: Standing, result: Result) -> list[str]:
    values = [column.of(standing, result) for column in _COLUMNS]
    return [NOTHING if value is None else number_text(value) for value in values]
