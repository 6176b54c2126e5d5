"""Rows that compare the flat index with its targets, from the results of all streams."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvatlas_loadtest.bench.index.results import FLAT, Result, StreamResults
from kvatlas_loadtest.bench.rows import Row, Setting

NAME = "index"
KEPT = f"{FLAT}, memory kept"
"""Label of the flat index that grows from empty in memory taken from the system beforehand."""
PRESIZED = f"{FLAT}, presized"
"""Label of the flat index that is sized for the whole stream beforehand."""

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
        """The targets, by quantile."""
        return {"p50": 0.9, "p99": 3.0} if self.limit else {"p50": 1.5, "p99": 5.0}


ANSWERS = (Answer("pairs", 0), Answer("ids", 0), Answer("pairs", 32), Answer("ids", 32))


def stream_rows(results: StreamResults) -> list[Row]:
    """The flat index's rows of one stream; empty if it was not measured."""
    flat = results.result(FLAT)
    if flat is None:
        return []
    kind = results.stream.kind
    settings = _settings(results)
    rows = [_kept_up(flat, KEPT_UP_TARGETS.get(kind), settings)]
    if kept := results.result(KEPT):
        rows.append(_kept_up(kept, None, settings | {"kept_memory": True}))
    if presized := results.result(PRESIZED):
        rows.append(_kept_up(presized, PRESIZED_TARGET, settings | {"presized": True}))
    ratio = results.ratio(flat)
    best = results.best_baseline
    if ratio is not None and best is not None:
        beside = settings | {"baseline": best.label} | _part(best)
        rows.append(Row(NAME, "kept up / best baseline", ratio, "ratio", 1.0, "higher", beside))
    rows += _lookups(results, flat, settings)
    if flat.apply_ms:
        p99 = flat.apply_ms["p99"]
        rows.append(Row(NAME, "event apply p99", p99, "ms", APPLY_MS_TARGET, settings=settings))
    if kind == "hub" and flat.bytes_per_membership is not None:
        churned = flat.bytes_per_membership
        figure = "bytes a membership, after churn"
        rows.append(Row(NAME, figure, churned, "B", CHURNED_BYTES_TARGET, settings=settings))
    return rows


def answer_rows(
    results: StreamResults, measured: Mapping[Answer, Mapping[str, float]]
) -> list[Row]:
    """Look-ups of the flat index at half load by form of answer: p50 and p99, in µs."""
    return [
        Row(
            NAME,
            f"look-up {quantile}, half load",
            figures[quantile],
            "us",
            target,
            settings=_settings(results) | {"answers": answer.form, "limit": answer.limit},
        )
        for answer, figures in measured.items()
        for quantile, target in answer.targets_us.items()
    ]


def fresh_row(results: StreamResults, bytes_per_membership: float, memberships: int) -> Row:
    """The row of bytes per membership in an index from which nothing has been removed yet."""
    return Row(
        NAME,
        "bytes a membership, fresh",
        bytes_per_membership,
        "B",
        FRESH_BYTES_TARGET,
        settings=_settings(results) | {"memberships": memberships},
    )


def _kept_up(result: Result, target: float | None, settings: dict[str, Setting]) -> Row:
    value = (result.block_ops_per_s or 0.0) / 1e6
    all_settings = settings | _part(result)
    return Row(NAME, "block operations kept up", value, "M/s", target, "higher", all_settings)


def _part(result: Result) -> dict[str, Setting]:
    """The share of the stream that was played, if it was not all of it."""
    return {} if result.share == 1 else {"share": result.share}


def _lookups(results: StreamResults, flat: Result, settings: dict[str, Setting]) -> list[Row]:
    """Rows of look-ups at half of each design's rate, alone and relative to the best baseline."""
    if not flat.lookup_us:
        return []
    rows: list[Row] = []
    for quantile in ("p50", "p99"):
        mine_us = flat.lookup_us[quantile]
        targets = NO_HUB_LOOKUP_TARGETS_US if results.stream.kind == "no-hub" else {}
        figure = f"look-up {quantile}, half load"
        rows.append(Row(NAME, figure, mine_us, "us", targets.get(quantile), settings=settings))
        if best := _quickest(results.results, quantile):
            label, theirs_us = best
            beside = settings | {"baseline": label}
            figure = f"look-up {quantile} / best baseline"
            ratio = mine_us / theirs_us
            rows.append(Row(NAME, figure, ratio, "ratio", 1.0, settings=beside))
    return rows


def _quickest(results: Sequence[Result], quantile: str) -> tuple[str, float] | None:
    """The exact baseline with the fastest look-ups, of those that played the whole stream."""
    times_us = [
        (result.label, result.lookup_us[quantile])
        for result in results
        if not result.ours and result.exact and result.share == 1 and result.lookup_us
    ]
    kept = [(label, time_us) for label, time_us in times_us if time_us > 0]
    return min(kept, key=lambda pair: pair[1], default=None)


def _settings(results: StreamResults) -> dict[str, Setting]:
    header = results.stream.header
    return {
        "stream": results.stream.kind,
        "workers": header.workers,
        "block_size": header.block_tokens,
        "replicas": header.replicas,
    }
