"""The results of the designs as one table per stream."""

from collections.abc import Callable
from dataclasses import dataclass

from kvatlas_loadtest.bench.index.results import Result, StreamResults
from kvatlas_loadtest.bench.index.text_table import TextTable
from kvatlas_loadtest.bench.rows import number_text

NOTHING = "-"

LEGEND = (
    "Mops/s: millions of blocks queried, stored and removed per second, until all are applied, in "
    "the shortest window in which most trials issued all within 1.01 times the window and applied "
    "all within 1.10 times. Look-ups and p99 of applying an event: at half that rate. Bytes per "
    "membership, and ns per block stored or removed: at that rate. One thread issues and looks up, "
    "one applies."
)


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    of: Callable[[StreamResults, Result], float | None]


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


def results_table(results: StreamResults) -> TextTable:
    """The table of one stream, with one row per design."""
    return TextTable(
        heading(results),
        ("design", *(column.title for column in _COLUMNS), "note"),
        tuple((result.label, *_cells(results, result), note(result)) for result in results.results),
        has_note=True,
        strong=frozenset(at for at, result in enumerate(results.results) if result.ours),
    )


def heading(results: StreamResults) -> str:
    """A stream described in one line."""
    header = results.stream.header
    return (
        f"{results.stream.title}: {header.workers:,} workers of {header.capacity:,} blocks, "
        f"{header.block_ops / 1e6:,.1f} M block operations"
    )


def note(result: Result) -> str:
    """Remarks on a row."""
    inexact = [] if result.exact else ["inexact"]
    return "; ".join([*inexact, *([result.note] if result.note else [])])


def _cells(results: StreamResults, result: Result) -> list[str]:
    values = [column.of(results, result) for column in _COLUMNS]
    return [NOTHING if value is None else number_text(value) for value in values]
