"""Draws an analysis: lengths, LRU curve, reuse, tree; as PNG, or as a page of HTML with its table."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from rich.console import Console

from kvatlas_loadtest.traces.analysis import Analysis, Counts, reuse_seconds
from kvatlas_loadtest.traces.report import analysis_table
from kvatlas_loadtest.traces.requests import Floats, Ints
from kvatlas_loadtest.traces.writers import replaced

_Panel = Any  # matplotlib's own types leave much unknown
_BLUE, _ORANGE = "#1d4ed8", "#c2410c"
_DPI = 130
_PANEL_INCHES = (4.2, 3.7)


def write_png(analysis: Analysis, file: Path) -> None:
    """Write the pictures; replaces the file at once."""
    with replaced(file) as draft:
        draft.write_bytes(_png(analysis))


def write_html(analysis: Analysis, file: Path) -> None:
    """Write a page that needs no other file; replaces the file at once."""
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(analysis_table(analysis))
    page = console.export_html(inline_styles=True)
    picture = base64.b64encode(_png(analysis)).decode()
    image = f'<img alt="pictures" style="max-width:100%" src="data:image/png;base64,{picture}">'
    with replaced(file) as draft:
        draft.write_text(page.replace("</body>", f"{image}\n</body>"))


def _png(analysis: Analysis) -> bytes:
    rows, columns = (1, 1) if analysis.lengths_only else (2, 3)
    size = (_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows)
    figure: Any = Figure(figsize=size, dpi=_DPI, layout="constrained")
    canvas: Any = FigureCanvasAgg(figure)
    figure.suptitle(f"{analysis.name}: {analysis.requests:,} requests", fontsize=13)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    _draw_lengths(panels[0], analysis)
    if not analysis.lengths_only:
        _draw_lru(panels[1], analysis)
        _draw_shares(panels[2], analysis.visits, "requests that contain a block", "of the blocks")
        _draw_distribution(panels[3], analysis.distances.values, analysis.distances)
        _titles(panels[3], "Reuse distance", "different blocks since the last use", "of reuses")
        _draw_distribution(panels[4], reuse_seconds(analysis), analysis.reuse_times)
        _titles(panels[4], "Reuse time", "seconds since the last use", "of reuses")
        _draw_depths(panels[5], analysis)
    file = io.BytesIO()
    canvas.print_png(file)
    return file.getvalue()


def _titles(panel: _Panel, title: str, below: str, beside: str | None) -> None:
    panel.set_title(title, loc="left", fontsize=11)
    panel.set_xlabel(below)
    panel.set_axisbelow(True)
    panel.grid(visible=True, color="#e2e8f0", linewidth=0.7)
    panel.spines[["top", "right"]].set_visible(False)
    if beside is not None:
        panel.set_ylabel(f"share {beside}")
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))


def _draw_distribution(panel: _Panel, values: Floats | Ints, counts: Counts, **style: str) -> None:
    """Share of the values up to each one; zeros are drawn at the left edge of the log axis."""
    if not counts.total:
        return
    above = values[values > 0]
    least = float(above.min()) if len(above) else 1.0
    shares = np.cumsum(counts.counts) / counts.total
    panel.step(np.maximum(values, least), shares, where="post", **({"color": _BLUE} | style))
    panel.set_xscale("log")
    panel.set_ylim(0, 1.02)


def _draw_lengths(panel: _Panel, analysis: Analysis) -> None:
    for label, color, counts in (
        ("input", _BLUE, analysis.input_tokens),
        ("output", _ORANGE, analysis.output_tokens),
    ):
        _draw_distribution(panel, counts.values, counts, color=color, label=label)
    _titles(panel, "Lengths", "tokens, up to", "of requests")
    panel.legend(frameon=False)


def _draw_lru(panel: _Panel, analysis: Analysis) -> None:
    capacities = analysis.capacities
    panel.plot(capacities, analysis.lru_hit_ratio(capacities), color=_BLUE, label="LRU")
    ratio = analysis.infinite_hit_ratio
    panel.axhline(ratio, color=_ORANGE, linestyle="--", label=f"infinite cache: {ratio:.1%}")
    panel.set_xscale("log")
    panel.set_ylim(0, max(0.01, ratio * 1.15))
    _titles(
        panel, "Hit ratio by capacity", f"blocks of {analysis.tokens_per_id} tokens", "of blocks"
    )
    panel.legend(frameon=False, loc="center left")


def _draw_shares(panel: _Panel, counts: Counts, below: str, beside: str) -> None:
    """Share of the values that are at least as large as each one."""
    at_least = counts.counts[::-1].cumsum()[::-1] / max(1, counts.total)
    panel.plot(counts.values, at_least, color=_BLUE, marker="o", markersize=3)
    panel.set_xscale("log")
    panel.set_yscale("log")
    _titles(panel, "Sharing", f"{below}, at least", None)
    panel.set_ylabel(f"share {beside}")


def _draw_depths(panel: _Panel, analysis: Analysis) -> None:
    nodes = analysis.nodes_by_depth
    panel.fill_between(np.arange(1, len(nodes) + 1), nodes, step="mid", color=_BLUE, alpha=0.35)
    panel.set_yscale("log")
    _titles(panel, "Prefix tree", "depth, in blocks", None)
    panel.set_ylabel("distinct blocks")
