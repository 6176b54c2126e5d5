"""Single calls of the flat index: compares the generator's figures with their targets.

Each line that the generator prints is one figure with its `operation` and its settings. Most lines
go to the tables; figures with a target are computed here from some of them.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from kvatlas_loadtest.bench.rows import Row, Setting

Line = Mapping[str, Any]

NAME = "index"
DEEP_QUERY_US_TARGET = 2.5
DEEP_QUERY_MEMBERSHIPS = 10_000_000
"""Memberships from which on a table is cold."""
DEEP_QUERY = {"depth": 1_024, "workers": 64, "limit": 0, "hashes": "sequence"}
FLEET_DEVIATION_TARGET = 0.2
DEPTH_GROWTH_TARGET = 1.0
RETIRE_US_TARGET = 1.0
SWEEP_RATIO_TARGET = 1.3
GIVEN_BACK_TARGET = 0.9
FURTHER_HOLDER_BYTES_TARGET = 4.0
WORST_BYTES_TARGET = 28.0
WORST_BYTES_MEMBERSHIPS = range(10_000_000, 20_000_001)
LARGE_GIB_TARGET = 3.0


def micro_rows(lines: Sequence[Line]) -> list[Row]:
    """The rows with targets; none for what was not measured."""
    return [
        *_deep_query(lines),
        *_fleet_deviation(lines),
        *_depth_growth(lines),
        *_sizes(lines),
        *_ends(lines),
        *_load(lines),
    ]


def lines_of(lines: Iterable[Line], operation: str, **settings: Setting) -> list[Line]:
    """The lines of an operation with these settings."""
    return [
        line
        for line in lines
        if line["operation"] == operation
        and all(line.get(name) == value for name, value in settings.items())
    ]


def _deep_query(lines: Sequence[Line]) -> Iterator[Row]:
    """Queries on large tables, or on the largest one measured; the target is for cold ones."""
    found = lines_of(lines, "query", **DEEP_QUERY)
    most = max((line["memberships"] for line in found), default=0)
    for line in found:
        if line["memberships"] < min(most, DEEP_QUERY_MEMBERSHIPS):
            continue
        settings = _settings(line, "memberships", "temperature", *DEEP_QUERY)
        target = DEEP_QUERY_US_TARGET if line["temperature"] == "cold" else None
        yield Row(NAME, "query, full match, p50", line["us"], "us", target, settings=settings)


def _fleet_deviation(lines: Sequence[Line]) -> Iterator[Row]:
    """The largest deviation of a query's time from the median over fleets, all else equal."""
    same = ("memberships", "depth", "workers", "temperature", "limit", "hashes")
    for group in _groups(lines_of(lines, "query", limit=0), same, varying="fleet"):
        middle_us = median(line["us"] for line in group)
        worst = max(abs(line["us"] / middle_us - 1) for line in group)
        fleets = f"{group[0]['fleet']} to {group[-1]['fleet']}"
        settings = _settings(group[0], *same) | {"fleet": fleets}
        figure = "query, deviation over fleets"
        yield Row(NAME, figure, worst, "ratio", FLEET_DEVIATION_TARGET, settings=settings)


def _depth_growth(lines: Sequence[Line]) -> Iterator[Row]:
    """The largest growth of a query's time, relative to the growth of the depth's logarithm.

    Only for sequence hashes: chaining chunk hashes takes time per block in any index.
    """
    same = ("memberships", "fleet", "workers", "temperature", "limit", "hashes")
    deep = [
        line for line in lines_of(lines, "query", limit=0, hashes="sequence") if line["depth"] > 1
    ]
    for group in _groups(deep, same, varying="depth"):
        first, *others = group
        worst = max(
            line["us"] / first["us"] / (math.log(line["depth"]) / math.log(first["depth"]))
            for line in others
        )
        depths = f"{first['depth']} to {group[-1]['depth']}"
        settings = _settings(first, *same) | {"depth": depths}
        figure = "query, growth / log depth"
        yield Row(NAME, figure, worst, "ratio", DEPTH_GROWTH_TARGET, settings=settings)


def _sizes(lines: Sequence[Line]) -> Iterator[Row]:
    for line in lines_of(lines, "size"):
        target = WORST_BYTES_TARGET if line["memberships"] in WORST_BYTES_MEMBERSHIPS else None
        settings = _settings(line, "memberships", "workers")
        figure = "bytes a membership, one holder a block"
        yield Row(NAME, figure, line["bytes_per_membership"], "B", target, settings=settings)
    for line in lines_of(lines, "holder"):
        settings = _settings(line, "memberships", "workers", "holder")
        more = line["bytes_more_per_membership"]
        figure = "bytes more for a further holder"
        yield Row(NAME, figure, more, "B", FURTHER_HOLDER_BYTES_TARGET, settings=settings)
    for line in (*lines_of(lines, "empty"), *lines_of(lines, "sweep")):
        settings = _settings(line, "operation", "memberships")
        share = line["given_back_share"]
        figure = "memory given back"
        yield Row(NAME, figure, share, "ratio", GIVEN_BACK_TARGET, "higher", settings)


def _ends(lines: Sequence[Line]) -> Iterator[Row]:
    for line in lines_of(lines, "retire"):
        settings = _settings(line, "blocks", "workers")
        yield Row(
            NAME, "worker out of answers", line["us"], "us", RETIRE_US_TARGET, settings=settings
        )
    for line in lines_of(lines, "sweep"):
        settings = _settings(line, "blocks", "windows")
        figure = "look-up p99 beside a sweep / without"
        yield Row(NAME, figure, line["ratio"], "ratio", SWEEP_RATIO_TARGET, settings=settings)


def _load(lines: Sequence[Line]) -> Iterator[Row]:
    for line in lines_of(lines, "load"):
        settings = _settings(line, "memberships", "workers")
        if line["peak_rss_bytes"] is not None:
            peak_gib = line["peak_rss_bytes"] / 2**30
            yield Row(NAME, "peak RSS", peak_gib, "GiB", LARGE_GIB_TARGET, settings=settings)
        yield Row(NAME, "time to load", line["seconds"], "s", settings=settings)


def _groups(lines: Iterable[Line], same: Sequence[str], *, varying: str) -> Iterator[list[Line]]:
    """Groups of at least two lines that differ in one setting only, ordered by it."""
    groups: defaultdict[tuple[Any, ...], list[Line]] = defaultdict(list)
    for line in lines:
        groups[tuple(line[name] for name in same)].append(line)
    for group in groups.values():
        if len({line[varying] for line in group}) > 1:
            yield sorted(group, key=lambda line: line[varying])


def _settings(line: Line, *names: str) -> dict[str, Setting]:
    return {name: line[name] for name in names}
