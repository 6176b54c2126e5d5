"""Plots throughput against look-up p99 on log axes: one panel per stream, every design labelled."""

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import Bbox

from kvatlas_chassis import FatalError
from kvatlas_loadtest.bench.index.results import Result, StreamResults

# matplotlib's own types leave much unknown, so figures and panels are `Any` here.
_OURS = "#c2410c"
_THEIRS = "#334155"
_PANEL_INCHES = (7.6, 5.6)
_DPI = 150
_LABEL_POINTS = 8.5
_LINE = 1.05  # height of a label's place, in heights of its text
_KEY = (
    "filled: the whole stream, hollow: its first part · round: exact, square: inexact as published"
)
_MARGIN = 0.35
"""Space for labels on every side of a panel's range, in decades."""


def draw(all_results: Sequence[StreamResults], file: Path) -> None:
    """Write the picture as PNG; streams on which nothing kept up have an empty panel.

    Raises:
        FatalError: it cannot be written.
    """
    columns = 1 if len(all_results) == 1 else 2
    rows = max(1, math.ceil(len(all_results) / columns))
    width, height = _PANEL_INCHES
    figure: Any = Figure(figsize=(width * columns, height * rows), dpi=_DPI, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    figure.suptitle("Block operations kept up, and look-ups at half that load", fontsize=13)
    figure.supxlabel(_KEY, fontsize=9)
    panels = [figure.add_subplot(rows, columns, at + 1) for at in range(len(all_results))]
    for panel, results in zip(panels, all_results, strict=True):
        _points(panel, results)
    canvas.draw()  # places the panels, so that labels can be placed in pixels
    for panel, results in zip(panels, all_results, strict=True):
        _labels(panel, canvas, results)
    try:
        figure.savefig(file)
    except OSError as error:
        raise FatalError(f"kvatlas bench: cannot write {file}: {error.strerror}") from None


def _drawn(results: StreamResults) -> list[tuple[Result, float, float]]:
    """Designs with a place in the panel: M operations/s, and p99 in µs."""
    return [
        (result, result.block_ops_per_s / 1e6, result.lookup_us["p99"])
        for result in results.results
        if result.window_ms
        and result.block_ops_per_s
        and result.lookup_us
        and result.lookup_us["p99"] > 0
    ]


def _points(panel: Axes, results: StreamResults) -> None:
    any_panel: Any = panel
    any_panel.set_title(results.stream.title, fontsize=10.5, loc="left")
    any_panel.set_xscale("log")
    any_panel.set_yscale("log")
    any_panel.set_xlabel("M block operations a second, kept up  (right is better)", fontsize=9)
    any_panel.set_ylabel("look-up p99, µs  (down is better)", fontsize=9)
    any_panel.grid(visible=True, which="major", color="#e2e8f0", linewidth=0.8)
    for axis in (any_panel.xaxis, any_panel.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=20))
        axis.set_major_formatter(FuncFormatter(_plain))
        axis.set_minor_formatter(NullFormatter())
    for side in ("top", "right"):
        any_panel.spines[side].set_visible(False)
    drawn = _drawn(results)
    if not drawn:
        return
    for result, throughput, p99 in drawn:
        any_panel.plot(
            throughput,
            p99,
            marker="o" if result.exact else "s",
            markersize=8 if result.ours else 6.5,
            markeredgecolor=_OURS if result.ours else _THEIRS,
            markerfacecolor="white" if result.share < 1 else (_OURS if result.ours else _THEIRS),
            linestyle="none",
            zorder=3,
        )
    any_panel.set_xlim(*_range([throughput for _, throughput, _ in drawn]))
    any_panel.set_ylim(*_range([p99 for _, _, p99 in drawn]))


def _plain(value: float, _position: int) -> str:
    return f"{value:g}"


def _range(values: Sequence[float]) -> tuple[float, float]:
    spread = math.log10(max(values) / min(values))
    margin = 10 ** max(_MARGIN, spread * 0.16)
    return min(values) / margin, max(values) * margin


def _labels(panel: Axes, canvas: FigureCanvasAgg, results: StreamResults) -> None:
    """Put each name at the nearest free place beside its point, with a line if that is far."""
    any_panel: Any = panel
    drawn = _drawn(results)
    frame: Bbox = any_panel.get_window_extent()
    points = [any_panel.transData.transform((x, y)) for _, x, y in drawn]
    taken = [Bbox.from_bounds(x - 8, y - 8, 16, 16) for x, y in points]
    # The densest points first: they have the fewest free places.
    order = sorted(range(len(drawn)), key=lambda at: (_nearest_distance(points, at), at))
    for at in order:
        result, x, y = drawn[at]
        text: Any = any_panel.annotate(
            label(result),
            xy=(x, y),
            xytext=(0, 0),
            textcoords="offset pixels",
            fontsize=_LABEL_POINTS,
            color=_OURS if result.ours else _THEIRS,
            fontweight="bold" if result.ours else "normal",
            zorder=4,
        )
        extent = text.get_window_extent(canvas.get_renderer())
        dx, dy, box = free_place(
            points[at], (extent.width, _LINE * extent.height), taken=taken, frame=frame
        )
        taken.append(box)
        text.set_position((dx, dy))
        if abs((box.y0 + box.y1) / 2 - points[at][1]) > extent.height / 2:
            nearest = np.clip(points[at], box.min, box.max)
            ends = any_panel.transData.inverted().transform([points[at], nearest])
            any_panel.plot(*ends.T, color="#64748b", linewidth=0.8, zorder=2)


def label(result: Result) -> str:
    """A design's name in a panel."""
    return result.label if result.share == 1 else f"{result.label} (first {result.share:.0%})"


def _nearest_distance(points: Sequence[Any], at: int) -> float:
    x, y = points[at]
    return min((math.hypot(x - u, y - v) for i, (u, v) in enumerate(points) if i != at), default=0)


def free_place(
    point: tuple[float, float], size: tuple[float, float], *, taken: Sequence[Bbox], frame: Bbox
) -> tuple[float, float, Bbox]:
    """The nearest place for a label: its lower left corner from the point, and its box, in pixels.

    Where all places are taken, the one beside the point.
    """
    width, height = size
    x, y = point
    places = [
        (dx, dy, Bbox.from_bounds(x + dx, y + dy, width, height))
        for dx, dy in _offsets(width, height)
    ]
    for dx, dy, box in places:
        within = frame.contains(box.x0, box.y0) and frame.contains(box.x1, box.y1)
        if within and not any(box.fully_overlaps(other) for other in taken):
            return dx, dy, box
    return places[0]


def _offsets(width: float, height: float) -> list[tuple[float, float]]:
    """Places around a point, nearest first: right, left, above, below, then farther out."""
    rings: list[tuple[float, float]] = []
    for right, up in product((1, -1, 0), range(-48, 49)):
        dx = {1: 14.0, -1: -14.0 - width, 0: -width / 2}[right]
        dy = up * height / 4 - height / 2
        if right or abs(up) > 5:  # noqa: PLR2004 - clear of the point itself
            rings.append((dx, dy))
    return sorted(
        rings, key=lambda offset: abs(offset[1] + height / 2) + 0.1 * abs(offset[0] - 14.0)
    )
