"""Designs on one stream, without a process: turns, shortened streams, results, rows, labels."""

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.transforms import Bbox

from kvatlas_chassis import SettingsError
from kvatlas_loadtest.bench.index.opstream import Header
from kvatlas_loadtest.bench.index.options import Options, add_flags, read_options
from kvatlas_loadtest.bench.index.plot import draw, free_place, label
from kvatlas_loadtest.bench.index.program import Design, Trial
from kvatlas_loadtest.bench.index.race import Contender, Race, RaceLimits
from kvatlas_loadtest.bench.index.results import FLAT, Result, StreamResults, documents
from kvatlas_loadtest.bench.index.search import Rules
from kvatlas_loadtest.bench.index.streams import Stream
from kvatlas_loadtest.bench.index.tables import results_table
from kvatlas_loadtest.bench.index.targets import stream_rows
from kvatlas_loadtest.bench.index.text_table import page
from kvatlas_loadtest.bench.main import command as bench

BLOCK_OPS = 1_000_000
HEADER = Header(8, 128, 512, 1, 64, 1, 9, (1, 1, 1), (600_000, 300_000, 100_000), 0)
EXACT = Design("slow tree", exact=True, queued=False)
OURS = Design(FLAT, exact=True, queued=False)


@dataclass
class World:
    """Designs that need so many ns a block, no more and no less."""

    ns: dict[str, float]
    played: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    expected: int = 0
    stepped: int = 0

    def cut(self, share: float) -> Path:
        return Path(f"{share}")

    def play(
        self, file: Path, contender: Contender, window_ms: int, patience_s: float
    ) -> Trial | None:
        name = contender.design.name
        self.played.append((name, window_ms))
        blocks = BLOCK_OPS * float(file.name)
        busy_ms = blocks * self.ns[name] / 1e6
        if busy_ms / 1e3 > patience_s:
            return None
        finished_ms = max(busy_ms, float(window_ms))
        return Trial(
            window_ms=window_ms,
            issued_ms=window_ms,
            finished_ms=finished_ms,
            counted=window_ms > 0 and finished_ms <= 1.1 * window_ms,
            block_ops=int(blocks),
            block_ops_per_s=blocks / finished_ms * 1e3,
            lookup_us={"p50": 1.0, "p99": self.ns[name], "p999": 9.0},
            apply_ms=None if contender.design.queued else {"p50": 0.1, "p99": 0.2, "even_p99": 0.1},
            bytes_per_membership=20.0,
            memberships=5,
            write_ns=self.ns[name],
        )

    def expect(self, steps: int) -> None:
        self.expected += steps

    def now(self, what: str) -> None:
        assert what

    def done(self, steps: int = 1) -> None:
        self.stepped += steps


def raced(world: World, *designs: Design, budget_s: float = 60.0) -> tuple[Result, ...]:
    race = Race(world.play, world.cut, RaceLimits(Rules(), budget_s), world)
    results = race.run([Contender(design, design.name) for design in designs])
    assert world.stepped == world.expected
    return results


def stream_results(results: tuple[Result, ...], kind: str = "hub") -> StreamResults:
    return StreamResults(Stream(kind, "a stream", Path("s"), 0.0, HEADER), results)


def test_each_design_finds_what_it_keeps_up_with() -> None:
    slow, flat = raced(World({"slow tree": 2_000.0, FLAT: 500.0}), EXACT, OURS)
    for result, busy_ms in ((slow, 2_000.0), (flat, 500.0)):
        assert result.window_ms == pytest.approx(busy_ms / 1.1, rel=0.05)
        assert result.block_ops_per_s == pytest.approx(BLOCK_OPS / busy_ms * 1e3, rel=0.05)
    both = stream_results((slow, flat))
    assert both.best_baseline is slow
    assert both.ratio(flat) == pytest.approx(4, rel=0.1)
    assert (slow.ours, flat.ours) == (False, True)


def test_trials_take_turns() -> None:
    world = World({"slow tree": 501.0, FLAT: 500.0})
    raced(world, EXACT, OURS)
    paced = [name for name, window_ms in world.played if window_ms]
    assert paced[:6] == ["slow tree", FLAT] * 3
    assert paced[-6:] == ["slow tree", FLAT] * 3


def test_a_slow_design_is_given_the_first_part_and_the_row_says_so() -> None:
    slow, flat = raced(World({"slow tree": 5e6, FLAT: 500.0}), EXACT, OURS, budget_s=600)
    assert slow.share == 0.1
    assert "first 10% of the stream" in slow.note
    assert (flat.share, flat.note) == (1.0, "")


def test_a_hopeless_design_is_given_up_and_the_row_says_so() -> None:
    (slow,) = raced(World({"slow tree": 1e9}), EXACT)
    assert slow.window_ms is None
    assert "did not get through the first 1%" in slow.note


def test_rows_hold_the_flat_index_against_its_targets_and_the_best_baseline() -> None:
    results = raced(World({"slow tree": 2_000.0, FLAT: 500.0}), EXACT, OURS)
    rows = {row.figure: row for row in stream_rows(stream_results(results))}
    assert rows["block operations kept up"].target == 50.0
    assert rows["block operations kept up"].met is False
    assert rows["kept up / best baseline"].met is True
    assert rows["look-up p99 / best baseline"].value == 0.25
    assert rows["event apply p99"].met is True
    assert rows["bytes a membership, after churn"].met is True
    no_hub = {row.figure: row for row in stream_rows(stream_results(results, "no-hub"))}
    assert no_hub["look-up p99, half load"].target == 2.5
    assert stream_rows(stream_results(results[:1])) == []


def test_the_table_and_the_json_name_every_design() -> None:
    results = raced(World({"slow tree": 2_000.0, FLAT: 500.0}), EXACT, OURS)
    queued = Result("a queue", ours=False, exact=False, note="unpaced")
    both = stream_results((*results, queued))
    text = page(["in a test"], [results_table(both)])
    assert "| slow tree |" in text
    assert "in a test" in text
    assert "inexact; unpaced" in text
    assert "a stream: 8 workers of 64 blocks, 1.0 M block operations" in text
    (document,) = json.loads(json.dumps(documents([both])))
    assert [design["label"] for design in document["designs"]] == ["slow tree", FLAT, "a queue"]
    assert document["designs"][2]["ratio_to_best_baseline"] is None


def test_the_picture_is_drawn_with_and_without_points(tmp_path: Path) -> None:
    results = raced(World({"slow tree": 2_000.0, FLAT: 500.0}), EXACT, OURS)
    file = tmp_path / "index.png"
    draw([stream_results(results), stream_results(()), stream_results(results)], file)
    assert file.read_bytes().startswith(b"\x89PNG")
    part = Result("a tree", ours=False, exact=True, share=0.05)
    assert label(part) == "a tree (first 5%)"


@given(
    st.lists(st.tuples(st.floats(100, 900), st.floats(100, 700)), min_size=1, max_size=16),
    st.floats(30, 250),
)
def test_labels_keep_apart(points: list[tuple[float, float]], width: float) -> None:
    frame = Bbox.from_extents(0, 0, 2_000, 1_600)
    taken: list[Bbox] = []
    for x, y in points:
        _, _, box = free_place((x, y), (width, 16), taken=taken, frame=frame)
        assert not any(box.fully_overlaps(other) for other in taken)
        taken.append(box)


def parsed(*words: str) -> Options:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return read_options(parser.parse_args(words))


def test_flags_without_words_are_the_defaults(tmp_path: Path) -> None:
    assert parsed() == Options()
    file = tmp_path / "x"
    file.touch()
    assert parsed("--stream", str(file)).streams == (file,)
    with pytest.raises(SettingsError, match="played as it is"):
        parsed("--stream", str(file), "--replicas", "3")


def test_a_benchmarks_own_flags_need_its_name_first(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench(["index", "--help"])
    assert "--designs" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        bench(["hashing", "--help"])
    assert "--designs" not in capsys.readouterr().out
    assert bench(["hashing", "--designs", "x"]) == 2
    assert bench(["index", "--trace", "/nowhere/trace"]) == 2
    assert bench(["index", "--trials", "0"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3
