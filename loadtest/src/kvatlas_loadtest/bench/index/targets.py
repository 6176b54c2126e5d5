"""Rows of the flat index against what was asked of it, from the results of all streams."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvatlas_loadtest.bench.index.results import FLAT, Result, Standing
from kvatlas_loadtest.bench.rows import Row, Setting

NAME = "index"
KEPT = f"{FLAT}, memory kept"
"""The label of the flat index that grows from empty in memory taken from the system beforehand."""
PRESIZED = f"{FLAT}, presized"
"""The label of the flat index that is told how much is to come."""

KEPT_UP_TARGETS = {"hub": 50.0, "no-hub": 55.0, "steady": 45.0, "fine": 65.0}
PRESIZED_TARGET = 60.0
NO_HUB_LOOKUP_TARGETS_US = {"p50": 0.3, "p99": 2.5}
APPLY_MS_TARGET = 1.0
FRESH_BYTES_TARGET = 24.0
CHURNED_BYTES_TARGET = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A form of answer to look-ups, timed on the warm index at half load.

    Attributes:
        form: "pairs" of worker slot and depth, or ordered worker "ids".
        limit: workers in an answer; 0: all.
    """

    form: str
    limit: int

    @property
    def targets_us(self) -> Mapping[str, float]:
        """What was asked of it."""
        return {"p50": 0.9, "p99": 3.0} if self.limit else {"p50": 1.5, "p99": 5.0}


ANSWERS = (Answer("pairs", 0), Answer("ids", 0), Answer("pairs", 32), Answer("ids", 32))


def stream_rows(standing: Standing) -> list[Row]:
    """What one stream says of the flat index; nothing if that was not measured."""
    flat = standing.result(FLAT)
    if flat is None:
        return []
    kind = standing.stream.kind
    settings = _settings(standing)
    rows = [_kept_up(flat, KEPT_UP_TARGETS.get(kind), settings)]
    if kept := standing.result(KEPT):
        rows.append(_kept_up(kept, None, settings | {"kept_memory": True}))
    if presized := standing.result(PRESIZED):
        rows.append(_kept_up(presized, PRESIZED_TARGET, settings | {"presized": True}))
    ratio = standing.ratio(flat)
    best = standing.best_baseline
    if ratio is not None and best is not None:
        beside = settings | {"baseline": best.label} | _part(best)
        rows.append(Row(NAME, "kept up / best baseline", ratio, "ratio", 1.0, "higher", beside))
    rows += _lookups(standing, flat, settings)
    if flat.apply_ms:
        p99 = flat.apply_ms["p99"]
        rows.append(Row(NAME, "event apply p99", p99, "ms", APPLY_MS_TARGET, settings=settings))
    if kind == "hub" and flat.bytes_per_membership is not None:
        churned = flat.bytes_per_membership
        figure = "bytes a membership, after churn"
        rows.append(Row(NAME, figure, churned, "B", CHURNED_BYTES_TARGET, settings=settings))
    return rows


def answer_rows(standing: Standing, measured: Mapping[Answer, Mapping[str, float]]) -> list[Row]:
    """Look-ups of the flat index at half load by form of answer: p50 and p99, in µs."""
    return [
        Row(
            NAME,
            f"look-up {quantile}, half load",
            figures[quantile],
            "us",
            target,
            settings=_settings(standing) | {"answers": answer.form, "limit": answer.limit},
        )
        for answer, figures in measured.items()
        for quantile, target in answer.targets_us.items()
    ]


def fresh_row(standing: Standing, bytes_per_membership: float, memberships: int) -> Row:
    """What a membership takes in an index from which nothing has been removed yet."""
    return Row(
        NAME,
        "bytes a membership, fresh",
        bytes_per_membership,
        "B",
        FRESH_BYTES_TARGET,
        settings=_settings(standing) | {"memberships": memberships},
    )


def _kept_up(result: Result, target: float | None, settings: dict[str, Setting]) -> Row:
    value = (result.block_ops_per_s or 0.0) / 1e6
    told = settings | _part(result)
    return Row(NAME, "block operations kept up", value, "M/s", target, "higher", told)


def _part(result: Result) -> dict[str, Setting]:
    """Which part of the stream was played, where it was not the whole."""
    return {} if result.share == 1 else {"share": result.share}


def _lookups(standing: Standing, flat: Result, settings: dict[str, Setting]) -> list[Row]:
    """At half of what the design keeps up with, and beside the best baseline at half of its own."""
    if not flat.lookup_us:
        return []
    rows: list[Row] = []
    for quantile in ("p50", "p99"):
        mine_us = flat.lookup_us[quantile]
        targets = NO_HUB_LOOKUP_TARGETS_US if standing.stream.kind == "no-hub" else {}
        figure = f"look-up {quantile}, half load"
        rows.append(Row(NAME, figure, mine_us, "us", targets.get(quantile), settings=settings))
        if best := _quickest(standing.results, quantile):
            label, theirs_us = best
            beside = settings | {"baseline": label}
            figure = f"look-up {quantile} / best baseline"
            ratio = mine_us / theirs_us
            rows.append(Row(NAME, figure, ratio, "ratio", 1.0, settings=beside))
    return rows


def _quickest(results: Sequence[Result], quantile: str) -> tuple[str, float] | None:
    """The exact baseline with the shortest look-ups that were measured on the whole stream."""
    times_us = [
        (result.label, result.lookup_us[quantile])
        for result in results
        if not result.ours and result.exact and result.share == 1 and result.lookup_us
    ]
    kept = [(label, time_us) for label, time_us in times_us if time_us > 0]
    return min(kept, key=lambda pair: pair[1], default=None)


def _settings(standing: Standing) -> dict[str, Setting]:
    header = standing.stream.header
    return {
        "stream": standing.stream.kind,
        "workers": header.workers,
        "block_size": header.block_tokens,
        "replicas": header.replicas,
    }
