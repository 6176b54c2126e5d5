"""Prints figures of traces as tables in a terminal."""

from collections.abc import Mapping

import numpy as np
from rich.table import Table

from kvatlas_loadtest.traces.analysis import SHARES, Analysis, quantiles
from kvatlas_loadtest.traces.models import compare
from kvatlas_loadtest.traces.requests import Ints

_CAPACITIES_SHOWN = 8
_CAPACITIES_COMPARED = 12


def analysis_table(analysis: Analysis) -> Table:
    """The figures of one trace, one a row."""
    table = Table(title=analysis.name, title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for figure, value in _lengths(analysis) + _prefixes(analysis):
        table.add_row(figure, value)
    return table


def _lengths(analysis: Analysis) -> list[tuple[str, str]]:
    rows = [("requests", f"{analysis.requests:,}"), ("time span, s", f"{analysis.span_s:,.0f}")]
    for name, counts in (
        ("input tokens", analysis.input_tokens),
        ("output tokens", analysis.output_tokens),
    ):
        values = " / ".join(f"{value:,}" for value in quantiles(counts).values())
        rows += [
            (f"{name}, mean", f"{counts.mean:,.1f}"),
            (f"{name}, p50 / p90 / p99 / max", values),
        ]
    return rows


def _prefixes(analysis: Analysis) -> list[tuple[str, str]]:
    if analysis.lengths_only:
        return [("prefixes", "no hash ids: unknown")]
    tree = analysis.tree
    distances = " / ".join(f"{analysis.distances.quantile(s):,}" for s in SHARES.values())
    times = " / ".join(f"{seconds:,.1f}" for seconds in analysis.reuse_s.values())
    rows = [
        (f"blocks of {analysis.tokens_per_id} tokens, in all requests", f"{analysis.references:,}"),
        ("hit ratio, infinite cache", f"{analysis.infinite_hit_ratio:.2%}"),
    ]
    chosen = _shown_capacities(analysis, _CAPACITIES_SHOWN)
    for blocks, ratio in zip(chosen, analysis.lru_hit_ratio(chosen), strict=True):
        rows.append((f"hit ratio, LRU cache of {blocks:,} blocks", f"{ratio:.2%}"))
    return [
        *rows,
        ("reuse distance, blocks, p50 / p90 / p99", distances),
        ("reuse time, s, p50 / p90 / p99", times),
        ("prefix tree: distinct blocks", f"{tree.nodes:,}"),
        ("… in several requests", f"{tree.shared:,} ({tree.shared / max(1, tree.nodes):.1%})"),
        ("… that begin a prompt / that end the tree", f"{tree.roots:,} / {tree.leaves:,}"),
        ("… depth of the deepest", f"{tree.depth_max:,}"),
        ("… with several children", f"{tree.branches:,}"),
        ("children of these, mean / max", f"{tree.branching_mean:.2f} / {tree.branching_max:,}"),
    ]


def _shown_capacities(analysis: Analysis, most: int) -> Ints:
    """Some of the capacities, evenly over their logarithms."""
    capacities = analysis.capacities
    places = np.linspace(0, len(capacities) - 1, min(most, len(capacities)))
    return capacities[np.unique(places.astype(np.int64))]


def fidelity_table(source: Analysis, models: Mapping[str, Analysis]) -> Table:
    """The source beside what each model makes of it."""
    table = Table(title=f"{source.name} and its models", title_justify="left")
    table.add_column("figure")
    every = [source, *models.values()]
    for name in ("source", *models):
        table.add_column(name, justify="right")
    table.add_row("requests", *(f"{one.requests:,}" for one in every))
    table.add_row("time span, s", *(f"{one.span_s:,.0f}" for one in every))
    table.add_row("input tokens, mean", *(f"{one.input_tokens.mean:,.1f}" for one in every))
    table.add_row("output tokens, mean", *(f"{one.output_tokens.mean:,.1f}" for one in every))
    table.add_row("hit ratio, infinite cache", *(f"{one.infinite_hit_ratio:.2%}" for one in every))
    for blocks in _shown_capacities(source, _CAPACITIES_COMPARED):
        ratios = [float(one.lru_hit_ratio(np.array([blocks]))[0]) for one in every]
        table.add_row(f"hit ratio, LRU, {blocks:,} blocks", *(f"{ratio:.2%}" for ratio in ratios))
    worst = [compare(source, one) for one in models.values()]
    table.add_row("LRU, most off, points", "", *(f"{one.lru_points:+.2f}" for one in worst))
    table.add_row("… at this many blocks", "", *(f"{one.lru_blocks:,}" for one in worst))
    return table
