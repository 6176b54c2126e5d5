"""`kvatlas trace synthesize`: new traces keep what the source showed, and the knobs do what they say."""

import json
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from kvatlas_loadtest.trace import read_trace
from kvatlas_loadtest.traces.analysis import Analysis, analyze
from kvatlas_loadtest.traces.draws import Knobs
from kvatlas_loadtest.traces.main import command
from kvatlas_loadtest.traces.markov import BATCH_REQUESTS
from kvatlas_loadtest.traces.models import (
    MODELS,
    Source,
    analysis_of,
    compare,
    synthesize,
    try_model,
)
from kvatlas_loadtest.traces.readers import read_parts
from kvatlas_loadtest.traces.requests import joined
from kvatlas_loadtest.traces.sessions import BRANCH, CONTINUATION, START, learn_turns
from kvatlas_loadtest.traces.shapes import learn_shapes
from tests.unit.loadtest.traces import Paths, write_paths

SLICE = Path(__file__).parents[3] / "loadtest/src/kvatlas_loadtest/data/conversation_slice.jsonl"


def source_of(file: Path) -> Source:
    return Source(file.name, joined(list(read_parts(file, tokens_per_id=512))), 512)


@pytest.fixture(scope="module")
def shipped() -> Source:
    return source_of(SLICE)


def changed(source: Source, model: str, knobs: Knobs) -> Analysis:
    parts = synthesize(source, model, count=len(source.requests), seed=5, knobs=knobs)
    return analyze(parts, name=model, tokens_per_id=512)


EXAMPLE = [[0, 1, 2, 3], [0, 1], [0, 1, 2], [0, 4, 5]]


def test_the_core_tree_has_the_chances_of_every_exit(tmp_path: Path) -> None:
    requests = source_of(write_paths(tmp_path / "t.jsonl", EXAMPLE)).requests
    shapes = learn_shapes(requests, name="t", prefix_len_multiplier=1)
    assert shapes.parent.tolist() == [0, 0, 1, 2]
    assert shapes.visits[1:].tolist() == [4, 3, 2]
    assert shapes.ends.tolist() == [0, 0, 1, 1]
    assert shapes.cache_ends.tolist() == [0, 1, 0, 1]
    assert shapes.tail.tolist() == [1, 0, 0, 2]
    # Transition probabilities multiply along the way to an exit to the share that took it.
    for segment in range(1, 4):
        chance, at = 1.0, segment
        while at:
            above = shapes.parent[at]
            chance *= shapes.visits[at] / (shapes.visits[above] if above else len(requests))
            at = int(above)
        exits = shapes.ends + shapes.cache_ends
        chance *= exits[segment] / shapes.visits[segment]
        assert chance == pytest.approx(np.count_nonzero(shapes.exit == segment) / 4)


@pytest.mark.parametrize(
    ("multiplier", "lengths"), [(1, [0, 1, 2, 3]), (2, [0, 2, 4, 6]), (1.5, [0, 2, 3, 5])]
)
def test_the_core_is_stretched(tmp_path: Path, multiplier: float, lengths: list[int]) -> None:
    requests = source_of(write_paths(tmp_path / "t.jsonl", EXAMPLE)).requests
    shapes = learn_shapes(requests, name="t", prefix_len_multiplier=multiplier)
    assert shapes.path_lengths.tolist() == lengths


def test_chains_are_one_segment(tmp_path: Path) -> None:
    paths = [[1, 2, 3, 4], [1, 2, 3, 5], [8, 9], [8, 9]]
    requests = source_of(write_paths(tmp_path / "t.jsonl", paths)).requests
    shapes = learn_shapes(requests, name="t", prefix_len_multiplier=0.1)
    assert shapes.path_lengths.tolist() == [0, 1, 1]  # at least one block of each is left
    assert shapes.group.tolist() == [0, 0, 1, 1]


def test_turns_continue_branch_or_start(tmp_path: Path) -> None:
    paths = [[1, 2, 3], [7], [1, 2, 4, 5], [1, 2, 4, 6, 8], [1, 9]]
    requests = source_of(write_paths(tmp_path / "t.jsonl", paths, step_ms=10)).requests
    shapes = learn_shapes(requests, name="t", prefix_len_multiplier=1)
    turns = learn_turns(shapes, block_size=512)
    assert turns.kind.tolist() == [START, START, CONTINUATION, CONTINUATION, BRANCH]
    assert turns.origin.tolist() == [0, 1, 0, 2, 3]
    assert turns.think_ms.tolist() == [0, 10, 20, 10, 10]
    assert turns.level.tolist() == [0, 0, 1, 2, 3]


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("share", [1.0, 3.4])
def test_the_shipped_trace_keeps_its_figures(
    shipped: Source, model: str, seed: int, share: float
) -> None:
    count = round(share * len(shipped.requests))
    source, new = analysis_of(shipped), try_model(shipped, model, seed=seed, count=count)
    found = compare(source, new)
    assert new.requests == count
    assert abs(found.infinite_points) < 2
    assert abs(found.input_mean) < 0.02
    assert abs(found.output_mean) < 0.02
    if model == "sessions":
        assert abs(found.lru_points) < 3
    elif share == 1:
        assert found.lru_points < -4  # independent walks: reuse comes too late


def no_sharing(_rng: random.Random) -> Paths:
    return [[3 * at, 3 * at + 1, 3 * at + 2][: 1 + at % 3] for at in range(600)]


def one_root(_rng: random.Random) -> Paths:
    return [[0, 1, 2, *range(10 + 4 * at, 12 + 4 * at + at % 3)] for at in range(600)]


def sessions(rng: random.Random, *, open_at_once: int, turns: int, growth: int) -> Paths:
    """Sessions that go on in turns; the last id is partial, so the next turn replaces it."""
    paths: list[list[int]] = []
    fresh = iter(range(1, 1 << 30))
    live: list[tuple[int, list[int]]] = []
    while len(paths) < 1500:
        while len(live) < open_at_once:
            live.append((rng.randint(1, turns), [0]))
        left, full = live.pop(rng.randrange(len(live)))
        full = full + [next(fresh) for _ in range(rng.randint(1, growth))]
        paths.append([*full, next(fresh)])
        if left > 1:
            live.append((left - 1, full))
    return paths


def deep(rng: random.Random) -> Paths:
    return sessions(rng, open_at_once=12, turns=40, growth=3)


def short(rng: random.Random) -> Paths:
    return sessions(rng, open_at_once=60, turns=3, growth=4)


def many_roots(rng: random.Random) -> Paths:
    """System prompts of very different weight."""
    roots = [[1000 * at + block for block in range(1 + at % 4)] for at in range(1, 41)]
    weights = [1 / at for at in range(1, 41)]
    picked = rng.choices(roots, weights, k=1500)
    return [[*root, 10**6 + 2 * at, 10**6 + 2 * at + 1] for at, root in enumerate(picked)]


@pytest.mark.parametrize("shape", [no_sharing, one_root, deep, short, many_roots])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("share", [1.0, 2.5])
def test_traces_of_other_shapes_keep_their_figures(
    tmp_path: Path, shape: Callable[[random.Random], Paths], model: str, share: float
) -> None:
    paths = shape(random.Random(3))
    source = source_of(write_paths(tmp_path / "t.jsonl", paths, step_ms=50))
    count = round(share * len(paths))
    found = compare(analysis_of(source), try_model(source, model, seed=1, count=count))
    assert abs(found.infinite_points) < 2
    assert abs(found.input_mean) < 0.02
    assert abs(found.output_mean) < 0.02
    if model == "sessions":
        assert abs(found.lru_points) < 3


@pytest.mark.parametrize("model", MODELS)
def test_each_knob_changes_what_it_says_by_as_much(shipped: Source, model: str) -> None:
    plain = changed(shipped, model, Knobs())
    shapes = learn_shapes(shipped.requests, name="t", prefix_len_multiplier=1)
    core = float(np.mean(shapes.path_lengths[shapes.exit])) * 512
    tails = plain.input_tokens.mean - core

    longer = changed(shipped, model, Knobs(prefix_len_multiplier=2))
    assert longer.input_tokens.mean == pytest.approx(2 * core + tails, rel=0.01)
    hits = plain.distances.total
    references = plain.references + int(shapes.path_lengths[shapes.exit].sum())
    assert longer.infinite_hit_ratio == pytest.approx(2 * hits / references, abs=0.01)

    shorter = changed(shipped, model, Knobs(prompt_len_multiplier=0.5))
    assert shorter.input_tokens.mean == pytest.approx(core + tails / 2, rel=0.01)
    assert shorter.infinite_hit_ratio > plain.infinite_hit_ratio + 0.05
    assert shorter.distances.total == hits

    wordy = changed(shipped, model, Knobs(osl_multiplier=3))
    assert wordy.output_tokens.mean == pytest.approx(3 * plain.output_tokens.mean, rel=0.01)

    fast = changed(shipped, model, Knobs(speedup_ratio=4))
    assert fast.span_s == pytest.approx(plain.span_s / 4, rel=0.01)
    assert fast.input_tokens.mean == plain.input_tokens.mean

    copies = changed(shipped, model, Knobs(prefix_root_multiplier=5))
    assert copies.tree.roots == 5 * plain.tree.roots
    assert copies.input_tokens.mean == plain.input_tokens.mean
    assert copies.distances.total < hits
    if model == "markov":  # a block of v requests has that many copies in use, on the mean
        used = plain.visits.counts @ (5 * (1 - (1 - 1 / 5) ** plain.visits.values))
        assert copies.tree.nodes == pytest.approx(used, rel=0.02)


def run(*words: object) -> int:
    return command(["synthesize", *map(str, words)])


def test_the_seed_decides_every_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / f"{name}.jsonl" for name in "abc"]
    for file, seed in zip(files, (4, 4, 5), strict=True):
        assert run("--from", SLICE, "--out", file, "--requests", 2500, "--seed", seed) == 0
    assert "model: sessions" in capsys.readouterr().out
    first, again, other = (file.read_bytes() for file in files)
    assert first == again
    assert first != other
    rows = read_trace(files[0], requests_max=10_000).rows
    assert len(rows) == 2500
    assert all(before.timestamp_ms <= row.timestamp_ms for before, row in pairwise(rows))
    assert sorted(tmp_path.iterdir()) == files


@pytest.mark.parametrize("model", MODELS)
def test_every_format_holds_the_same_requests(tmp_path: Path, model: str) -> None:
    shown: dict[str, object] = {}
    for kind in ("jsonl", "parquet", "csv"):
        file = tmp_path / f"t.{kind}"
        assert run("--from", SLICE, "--out", file, "--model", model, "--requests", 700) == 0
        parts = read_parts(file, tokens_per_id=512)
        shown[kind] = analyze(parts, name="t", tokens_per_id=512).document()
    assert shown["jsonl"] == shown["parquet"]
    csv = shown["csv"]
    assert isinstance(csv, dict)
    assert isinstance(shown["jsonl"], dict)
    assert csv["input_tokens"] == shown["jsonl"]["input_tokens"]
    assert csv["infinite_cache_hit_ratio"] is None


def test_a_source_of_lengths_gives_requests_that_share_nothing(tmp_path: Path) -> None:
    source = tmp_path / "azure.csv"
    rows = "".join(f"2023-11-16 18:17:{s:02}.5,{100 * s + 1},{s}\n" for s in range(60))
    source.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    out = tmp_path / "out.jsonl"
    assert run("--from", source, "--out", out) == 0
    found = analyze(read_parts(out, tokens_per_id=512), name="t", tokens_per_id=512)
    assert (found.requests, found.input_tokens.mean, found.span_s) == (60, 2951, 59)
    assert found.infinite_hit_ratio == 0


def test_the_check_prints_both_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--from", SLICE, "--check") == 0
    text = capsys.readouterr().out
    assert "markov" in text
    assert "LRU, most off, points" in text


@pytest.mark.parametrize("model", MODELS)
def test_a_long_trace_comes_in_small_parts(tmp_path: Path, model: str) -> None:
    source = source_of(write_paths(tmp_path / "t.jsonl", EXAMPLE))
    sizes = [len(part) for part in synthesize(source, model, count=200_001, seed=0, knobs=Knobs())]
    assert sum(sizes) == 200_001
    assert max(sizes) <= BATCH_REQUESTS


@pytest.mark.parametrize("model", MODELS)
def test_long_prompts_come_in_parts_of_fewer_requests(shipped: Source, model: str) -> None:
    knobs = Knobs(prompt_len_multiplier=50)
    parts = list(synthesize(shipped, model, count=2000, seed=0, knobs=knobs))
    assert sum(len(part) for part in parts) == 2000
    assert max(len(part.ids) for part in parts) < 1 << 20


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "holds no request"),
        ('{"timestamp": 1}\n', "line 1: Object missing required field `input_length`"),
        (
            (
                '{"timestamp": 1, "input_length": 513, "output_length": 1, "hash_ids": [4, 5]}\n'
                '{"timestamp": 2, "input_length": 513, "output_length": 1, "hash_ids": [5, 4]}\n'
            ),
            "line 2: hash_ids[0]: id 5 comes first, but before it followed 4",
        ),
    ],
)
def test_a_wrong_source_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, complaint: str
) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(text)
    for model in (*MODELS, "auto"):
        assert run("--from", file, "--out", tmp_path / "o.jsonl", "--model", model) == 2
        told = capsys.readouterr()
        assert complaint in told.err
        assert told.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [file]


def test_an_interrupted_run_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "o.jsonl"
    out.write_text("old")

    def interrupt(*_args: object, **_more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvatlas_loadtest.traces.writers._JsonWriter.write", interrupt)
    assert run("--from", SLICE, "--out", out, "--model", "markov") == 130
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    "words",
    [
        ["--out", "x.jsonl"],
        ["--from", str(SLICE)],
        ["--from", str(SLICE), "--out", str(SLICE)],
        ["--from", str(SLICE), "--out", "/no/such/folder.jsonl"],
        ["--from", str(SLICE), "--out", "x.jsonl", "--seed", "-1"],
        ["--from", str(SLICE), "--out", "x.jsonl", "--requests", "0"],
        ["--from", str(SLICE), "--out", "x.jsonl", "--osl-multiplier", "0"],
        ["--from", str(SLICE), "--out", "x.jsonl", "--osl-multiplier", "1e300"],
        ["--from", str(SLICE), "--out", "x.jsonl", "--prefix-root-multiplier", "1.5"],
        ["--from", str(SLICE), "--out", "x.jsonl", "--model", "best"],
    ],
)
def test_wrong_flags_are_told_in_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_json_lines_are_those_of_a_plain_encoder(tmp_path: Path) -> None:
    out = tmp_path / "o.jsonl"
    assert run("--from", SLICE, "--out", out, "--model", "sessions", "--requests", 5000) == 0
    for line in out.read_text().splitlines():
        assert json.dumps(json.loads(line), separators=(",", ":")) == line
