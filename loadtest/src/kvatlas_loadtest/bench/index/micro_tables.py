"""Tables of single calls: queries by depth, holders and size; changes by event size and holders."""

from collections.abc import Sequence
from itertools import product
from typing import Any

from kvatlas_loadtest.bench.index.micro import Line, lines_of
from kvatlas_loadtest.bench.index.text_table import TextTable
from kvatlas_loadtest.bench.rows import number_text

TEMPERATURES = ("hot", "cold")
_HASHES = ("chunk", "sequence")
_NOTHING = "-"


def micro_tables(lines: Sequence[Line]) -> list[TextTable]:
    """The tables with at least one row."""
    return [table for table in (_queries(lines), _changes(lines)) if table.rows]


def _queries(lines: Sequence[Line]) -> TextTable:
    settings = ("memberships", "fleet", "depth", "workers", "limit")
    cases = list(product(_HASHES, TEMPERATURES))
    queries = lines_of(lines, "query")
    return TextTable(
        "query of the flat index, all blocks found, µs (median)",
        (
            *("memberships", "live workers", "blocks", "holders", "limit"),
            *(f"{hashes} hashes, {temperature}" for hashes, temperature in cases),
        ),
        tuple(
            (
                *(_count(value) for value in row),
                *(
                    _figure(queries, "query", "us", settings, row, hashes=h, temperature=t)
                    for h, t in cases
                ),
            )
            for row in _distinct(queries, settings)
        ),
    )


def _changes(lines: Sequence[Line]) -> TextTable:
    settings = ("memberships", "depth", "workers")
    cases = list(product(("store", "remove"), TEMPERATURES))
    return TextTable(
        "store and remove of the flat index, ns a block",
        (
            *("memberships", "blocks of an event", "holders"),
            *(f"{operation}, {temperature}" for operation, temperature in cases),
        ),
        tuple(
            (
                *(_count(value) for value in row),
                *(
                    _figure(lines, o, "ns_per_block", settings, row, temperature=t)
                    for o, t in cases
                ),
            )
            for row in _distinct(lines_of(lines, "store"), settings)
        ),
    )


def _distinct(lines: Sequence[Line], settings: Sequence[str]) -> list[tuple[Any, ...]]:
    """The distinct values of some settings, in the order in which they were printed."""
    return list(dict.fromkeys(tuple(line[name] for name in settings) for line in lines))


def _figure(
    lines: Sequence[Line],
    operation: str,
    figure: str,
    settings: Sequence[str],
    row: Sequence[Any],
    **case: str,
) -> str:
    wanted = dict(zip(settings, row, strict=True)) | case
    found = lines_of(lines, operation, **wanted)
    return number_text(found[0][figure]) if found else _NOTHING


def _count(value: int) -> str:
    return f"{value:,}"
