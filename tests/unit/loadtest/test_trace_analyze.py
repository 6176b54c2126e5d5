"""`kvatlas trace analyze`: its figures, its files, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest

from kvatlas_loadtest.trace import TraceError
from kvatlas_loadtest.traces.analysis import Analysis, analyze
from kvatlas_loadtest.traces.main import command
from kvatlas_loadtest.traces.readers import read_parts
from kvatlas_loadtest.traces.stack_distances import smaller_before
from tests.unit.loadtest.traces import lru_hits, write_parquet, write_paths

SLICE = Path(__file__).parents[3] / "loadtest/src/kvatlas_loadtest/data/conversation_slice.jsonl"


def analysis_of(file: Path) -> Analysis:
    return analyze(read_parts(file, tokens_per_id=512), name=file.name, tokens_per_id=512)


def test_a_small_trace_has_the_figures_counted_by_hand(tmp_path: Path) -> None:
    paths = [[1, 2, 3], [1, 2, 4, 5], [9], [1, 2, 3]]
    found = analysis_of(write_paths(tmp_path / "t.jsonl", paths, step_ms=1000))
    assert (found.requests, found.references, found.span_s) == (4, 11, 3.0)
    assert found.input_tokens.mean == (1124 + 1636 + 100 + 1124) / 4
    assert found.infinite_hit_ratio == 5 / 11
    # At the last request, from the latest use: 9, then 1 2 4 5, then 3.
    assert found.distances.values.tolist() == [0, 1, 2, 5]
    assert found.distances.counts.tolist() == [1, 2, 1, 1]
    tree = found.tree
    assert (tree.nodes, tree.roots, tree.leaves, tree.depth_max) == (6, 2, 3, 4)
    assert (tree.branches, tree.branching_mean, tree.branching_max, tree.shared) == (1, 2.0, 2, 3)
    assert found.reuse_s[0.5] == pytest.approx(2.0, rel=0.01)
    assert found.reuse_s[0.99] == pytest.approx(3.0, rel=0.01)


def test_the_shipped_trace_agrees_with_a_plain_lru_cache_at_every_capacity() -> None:
    found = analysis_of(SLICE)
    paths = [json.loads(line)["hash_ids"] for line in SLICE.read_text().splitlines()]
    capacities = found.capacities
    assert capacities[0] == 1
    assert capacities[-1] == found.tree.nodes
    for capacity, ratio in zip(capacities, found.lru_hit_ratio(capacities), strict=True):
        assert round(float(ratio) * found.references) == lru_hits(paths, int(capacity))
    assert found.lru_hit_ratio(capacities)[-1] == found.infinite_hit_ratio


def test_a_trace_in_many_parts_has_the_figures_of_one_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = analysis_of(SLICE).document()
    monkeypatch.setattr("kvatlas_loadtest.traces.readers._PART_REQUESTS", 37)
    monkeypatch.setattr("kvatlas_loadtest.traces.analysis._FOLD_REFERENCES", 1)
    assert analysis_of(SLICE).document() == whole


def test_earlier_smaller_values_are_counted() -> None:
    values = np.random.default_rng(1).permutation(1000)
    expected = [int(np.count_nonzero(values[:at] < value)) for at, value in enumerate(values)]
    assert smaller_before(values).tolist() == expected
    assert smaller_before(values[:0]).tolist() == []


def test_the_command_writes_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / f"out.{kind}" for kind in ("json", "html", "png")]
    flags = [word for file in files for word in (f"--{file.suffix[1:]}", str(file))]
    assert command(["analyze", str(SLICE), *flags]) == 0
    assert "hit ratio, infinite cache" in capsys.readouterr().out
    document = json.loads(files[0].read_text())
    assert document["requests"] == 2000
    assert document["lru"][-1] == {
        "blocks": document["tree"]["nodes"],
        "hit_ratio": document["infinite_cache_hit_ratio"],
    }
    assert files[1].read_text().count("data:image/png;base64,") == 1
    assert files[2].read_bytes().startswith(b"\x89PNG")
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_parquet_has_the_figures_of_the_same_json(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in SLICE.read_text().splitlines()]
    file = write_parquet(tmp_path / "t.parquet", rows)
    assert analysis_of(file).document() == analysis_of(SLICE).document() | {"trace": "t.parquet"}


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:18:03,110,27
"""


def test_a_csv_has_lengths_and_no_prefixes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "azure.csv"
    file.write_text(AZURE)
    flags = ["--json", str(tmp_path / "a.json"), "--png", str(tmp_path / "a.png")]
    assert command(["analyze", str(file), *flags]) == 0
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["input_tokens_mean"] == (4808 + 3180 + 110) / 3
    assert document["output_tokens_mean"] == 15
    assert document["span_s"] == pytest.approx(59.02004)
    assert (document["infinite_cache_hit_ratio"], document["lru"]) == (None, [])
    assert "unknown" in capsys.readouterr().out


GOOD = {"timestamp": 5, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (json.dumps({"timestamp": 5}), "Object missing required field `input_length`"),
        (json.dumps(GOOD | {"timestamp": "5"}), "timestamp: Expected `float`, got `str`"),
        (json.dumps(GOOD | {"timestamp": 4}), "timestamp: 4 is before the previous request's 5"),
        (json.dumps(GOOD | {"input_length": 0}), "input_length: Expected `int` >= 1"),
        (json.dumps(GOOD | {"output_length": 1.5}), "output_length: Expected `int`, got `float`"),
        (json.dumps(GOOD | {"hash_ids": [0, "1"]}), "hash_ids[1]: Expected `int`, got `str`"),
        (json.dumps(GOOD | {"hash_ids": [0]}), "hash_ids: input_length 700 takes 2 ids of 512"),
        (json.dumps(GOOD | {"hash_ids": [2, 1]}), "hash_ids[1]: id 1 follows 2, but before it"),
        (json.dumps(GOOD | {"hash_ids": [1, 7]}), "hash_ids[0]: id 1 comes first, but before it"),
        (json.dumps(GOOD | {"hash_ids": [3, 3]}), "hash_ids[1]: id 3 follows 3, but before it"),
        ("[]", "Expected `object`, got `array`"),
        ("{", "the last line is truncated"),
        ('{"timestamp": 5, "inp', "the last line is truncated"),
    ],
)
def test_a_wrong_line_is_named_with_its_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, complaint: str
) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(json.dumps(GOOD) + "\n\n" + line)
    assert command(["analyze", str(file), "--json", str(tmp_path / "out.json")]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("kvatlas trace analyze: t.jsonl, line 3: ")
    assert complaint in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "holds no request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no request"),
        ("TIMESTAMP,ContextTokens\n", "line 1: GeneratedTokens: no such column"),
        (AZURE.replace("3180", "0"), "line 3: ContextTokens: expected a whole number from 1"),
        (AZURE.replace("3180,8", "3180"), "line 3: 2 fields, the header has 3"),
        (AZURE.replace("2023-11-16 18:17:04", "soon"), "line 3: TIMESTAMP: not a date"),
        (AZURE.replace("18:18:03", "18:17:03"), "line 4: timestamp: "),
    ],
)
def test_a_wrong_csv_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(text)
    with pytest.raises(TraceError) as error:
        analysis_of(file)
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"timestamp": 5, "input_length": 700}, "output_length: no such column"),
        (GOOD | {"input_length": "700"}, "line 1: input_length: expected int64, not string"),
        (GOOD | {"input_length": 0}, "line 1: input_length: expected a whole number from 1"),
        (GOOD | {"hash_ids": [0, -1]}, "line 1: hash_ids[1]: expected a whole number from 0"),
        (GOOD | {"hash_ids": [0, None]}, "hash_ids: a value is missing"),
        (GOOD | {"hash_ids": 3}, "line 1: hash_ids: expected a list"),
        (GOOD | {"timestamp": None}, "timestamp: a value is missing"),
        (GOOD | {"timestamp": -1.0}, "line 1: timestamp: expected a finite number from 0"),
    ],
)
def test_a_wrong_parquet_file_is_refused(
    tmp_path: Path, row: dict[str, object], complaint: str
) -> None:
    file = write_parquet(tmp_path / "t.parquet", [row])
    with pytest.raises(TraceError) as error:
        analysis_of(file)
    assert complaint in str(error.value)


def test_files_that_cannot_be_read_or_written_are_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.parquet").write_bytes(b"no parquet")
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00")
    for words in (
        ["t.parquet"],
        ["t.csv"],
        ["missing.jsonl"],
        ["t.csv", "--json", "t.csv"],
        ["t.csv", "--json", "no/folder.json"],
        ["t.csv", "--tokens-per-id", "0"],
    ):
        paths = [word if word.startswith("--") else str(tmp_path / word) for word in words]
        assert command(["analyze", *paths]) == 2, words
        assert capsys.readouterr().err.count("\n") == 1, words
    assert command(["nonsense"]) == 2
    assert command([]) == 0
