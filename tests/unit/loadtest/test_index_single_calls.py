"""From the generator's lines about single calls to rows and tables."""

from typing import Any

import pytest

from kvatlas_loadtest.bench.index.micro import micro_rows
from kvatlas_loadtest.bench.index.micro_tables import micro_tables
from kvatlas_loadtest.bench.rows import Row


def query(us: float, **settings: str | int) -> dict[str, Any]:
    plain = {
        "operation": "query",
        "depth": 256,
        "workers": 8,
        "fleet": 16,
        "memberships": 1_000,
        "temperature": "cold",
        "limit": 0,
        "hashes": "chunk",
    }
    return plain | settings | {"us": us, "ns_per_block": us}


def only(rows: list[Row], figure: str) -> Row:
    (row,) = (row for row in rows if row.figure == figure)
    return row


def test_a_query_is_flat_over_fleets_if_each_is_near_the_middle() -> None:
    times_us = {16: 1.0, 64: 1.1, 1_024: 1.3}
    lines = [query(us, fleet=fleet) for fleet, us in times_us.items()]
    row = only(micro_rows(lines), "query, deviation over fleets")
    assert row.value == pytest.approx(0.2 / 1.1)
    assert row.met is True
    assert row.settings["fleet"] == "16 to 1024"
    assert micro_rows(lines[:1]) == []


def test_growth_with_depth_is_held_against_the_logarithm() -> None:
    def lines(deepest_us: float) -> list[dict[str, Any]]:
        times_us = {1: 9.0, 8: 1.0, 64: 1.5, 512: deepest_us}
        return [query(us, depth=depth, hashes="sequence") for depth, us in times_us.items()]

    figure = "query, growth / log depth"
    assert only(micro_rows(lines(3.0)), figure).value == pytest.approx(1.0)
    assert only(micro_rows(lines(3.3)), figure).met is False
    chunks = [line | {"hashes": "chunk"} for line in lines(3.0)]
    assert micro_rows(chunks) == []  # chaining them takes time by the block


def test_the_deep_query_is_asked_for_cold_on_the_largest_indexes() -> None:
    deep = {"depth": 1_024, "workers": 64, "hashes": "sequence", "fleet": 1_000}
    lines = [
        query(1.0, **deep, memberships=1_000),
        query(2.0, **deep, memberships=10_000_000, temperature="hot"),
        query(3.0, **deep, memberships=10_000_000),
    ]
    rows = {
        row.settings["temperature"]: row
        for row in micro_rows(lines)
        if row.figure == "query, full match, p50"
    }
    assert (rows["hot"].value, rows["hot"].met) == (2.0, None)
    assert (rows["cold"].value, rows["cold"].met) == (3.0, False)
    assert len(micro_rows([*lines, query(4.0, **deep, memberships=100_000_000)])) == len(rows) + 1


def test_ends_sizes_and_the_large_load_have_their_targets() -> None:
    size = {"operation": "size", "workers": 1_000, "bytes_per_membership": 25.0}
    rows = micro_rows(
        [
            size | {"memberships": 1_000},
            size | {"memberships": 10_000_000},
            {
                "operation": "holder",
                "memberships": 1_000,
                "workers": 1_000,
                "holder": 2,
                "bytes_more_per_membership": 4.5,
            },
            {"operation": "empty", "memberships": 1_000, "given_back_share": 0.95},
            {"operation": "retire", "blocks": 100_000, "workers": 24, "us": 0.4},
            {
                "operation": "sweep",
                "blocks": 100_000,
                "windows": 24,
                "memberships": 5_000,
                "ratio": 1.4,
                "given_back_share": 0.5,
            },
            {
                "operation": "load",
                "memberships": 100_000_000,
                "workers": 4_000,
                "seconds": 9.0,
                "peak_rss_bytes": 3 << 30,
            },
        ]
    )
    assert [(row.value, row.target, row.met) for row in rows] == [
        (25.0, None, None),
        (25.0, 28.0, True),
        (4.5, 4.0, False),
        (0.95, 0.9, True),
        (0.5, 0.9, False),
        (0.4, 1.0, True),
        (1.4, 1.3, False),
        (3.0, 3.0, True),
        (9.0, None, None),
    ]


def test_the_tables_have_a_row_for_each_case_and_a_column_for_each_way() -> None:
    store = {"operation": "store", "memberships": 1_000, "depth": 8, "temperature": "hot"}
    store |= {"workers": 1}
    lines = [
        query(1.25, temperature="hot"),
        query(2.5),
        query(3.5, fleet=64, hashes="sequence"),
        store | {"ns_per_block": 30.0},
        store | {"operation": "remove", "temperature": "cold", "ns_per_block": 40.0},
    ]
    queries, changes = micro_tables(lines)
    assert queries.rows == (
        ("1,000", "16", "256", "8", "0", "1.25", "2.5", "-", "-"),
        ("1,000", "64", "256", "8", "0", "-", "-", "-", "3.5"),
    )
    assert changes.rows == (("1,000", "8", "1", "30", "-", "-", "40"),)
    assert "| 1,000 | 16 | 256 | 8 | 0 | 1.25 | 2.5 | - | - |" in queries.markdown()
    assert micro_tables([]) == []
