"""The ledger of optimizations: its turns and ratios; its names are those of the switches."""

import tomllib
from pathlib import Path

import pytest

from kvatlas_loadtest.bench.index.program import Trial
from kvatlas_loadtest.bench.ledger.rounds import (
    KEPT_UP,
    MEMORY,
    P99,
    Ratio,
    play_round,
    turns_of,
)
from kvatlas_loadtest.bench.ledger.tables import gain_rows
from kvatlas_loadtest.bench.ledger.tricks import TRICKS, Trick

REPOSITORY = Path(__file__).parents[3]
INDEX = REPOSITORY / "libs" / "index"
FAKES = (*(Trick(name) for name in "abcd"), Trick("page", kept_memory=False))


def trial(slowness: float, window_ms: int) -> Trial:
    return Trial(
        window_ms=window_ms,
        issued_ms=100.0,
        finished_ms=100.0 * slowness,
        counted=True,
        block_ops=1,
        block_ops_per_s=1e6 / slowness,
        lookup_us={"p50": slowness, "p99": slowness},
        apply_ms={"p99": slowness},
        bytes_per_membership=24.0 * slowness,
        memberships=1,
        write_ns=slowness,
    )


def test_a_machine_that_slows_down_evenly_does_not_change_a_ratio() -> None:
    played: list[tuple[str | None, int]] = []

    def play(trick: Trick | None, window_ms: int, kept_memory: bool) -> Trial:
        assert trick is None or trick.kept_memory == kept_memory
        played.append((trick.name if trick else None, window_ms))
        return trial(2.0 if trick else 1.0, window_ms)

    ratios = list(play_round(play, FAKES, "hub", backwards=False))
    assert len(played) == turns_of(FAKES)
    assert [name for name, _ in played[:7]] == [None, "a", "b", "c", None, "d", None]
    assert {window_ms for _, window_ms in played} == {0, 200}
    assert {r.ratio for r in ratios if r.figure == KEPT_UP} == {0.5}
    assert {r.ratio for r in ratios if r.figure == P99} == {2.0}
    assert {r.trick for r in ratios if r.figure == MEMORY} == {"page"}


def test_the_gain_is_that_of_the_best_figure_and_rare_rounds_do_not_make_one() -> None:
    kept_up = [Ratio("hub", "a", KEPT_UP, ratio, 1.0) for ratio in (0.5, 0.8, 0.8, 0.8, 0.8)]
    p99 = [Ratio("fine", "a", P99, ratio, 1.0) for ratio in (1.0, 1.0, 1.0, 9.0)]
    (row,) = gain_rows(FAKES, [*kept_up, *p99])
    assert row.value == pytest.approx(25.0)
    assert row.settings == {"trick": "a", "stream": "hub", "figure": KEPT_UP}


def test_each_optimization_has_a_switch_lines_of_code_and_a_row_in_the_readme() -> None:
    manifest = tomllib.loads((INDEX / "rust" / "Cargo.toml").read_text())
    names = [trick.name for trick in TRICKS]
    assert {f"without-{name}" for name in names} == manifest["features"].keys()
    page = (INDEX / "README.md").read_text()
    assert [name for name in names if f"`without-{name}`" not in page] == []
    assert all(trick.lines(REPOSITORY / "libs") > 0 for trick in TRICKS)
