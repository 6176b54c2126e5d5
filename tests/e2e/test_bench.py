"""Every benchmark runs, tiny: it must work whenever somebody wants its figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvatlas_chassis import FatalError
from kvatlas_loadtest.bench.loadgen import find_program

REPOSITORY = Path(__file__).parents[2]
KVATLAS = Path(sys.executable).parent / "kvatlas"


@pytest.fixture(name="_load_generator", scope="module")
def _build_load_generator() -> None:
    """Built by `make bench`; here, unoptimized, where that has not run."""
    try:
        find_program(quick=True)
    except FatalError:
        words = ["cargo", "build", "--quiet", "--locked", "-p", "kvatlas-loadgen"]
        subprocess.run(words, cwd=REPOSITORY, check=True)


@pytest.mark.timeout(600)  # the load generator may have to be built
@pytest.mark.usefixtures("_load_generator")
@pytest.mark.parametrize(
    "name",
    [
        "hashing",
        "index",
        "find-matches",
        "frontend",
        "replica-start",
        "log-to-visible",
        "freshness",
        "engine-events",
        "ledger",
    ],
)
def test_a_benchmark_runs_and_writes_rows(name: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    process = subprocess.run(
        [KVATLAS, "bench", name, "--quick", "--json", str(file)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    rows = json.loads(file.read_text())
    assert rows
    for row in rows:
        assert set(row) == {"bench", "figure", "value", "unit", "target", "met", "settings"}
        assert row["bench"] == name
        assert row["value"] >= 0
        assert row["met"] is None or row["target"] is not None
    assert any(row["target"] is not None for row in rows)
    assert name in process.stdout


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_load_generator")
def test_the_index_writes_its_table_and_picture_for_a_stream_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["--quick", "--no-micro", "--out", str(out)]
    bench = [KVATLAS, "bench", "index"]
    designs = ["--designs", "radix tree", "flat index"]
    process = subprocess.run(
        [*bench, "--only", "hub", *designs, *words],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    (stream,) = (out / "streams").glob("hub*c256-s1-????????.kvops")
    process = subprocess.run(
        [*bench, "--stream", str(stream), *designs, *words],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert (out / "index.png").read_bytes().startswith(b"\x89PNG")
    (document,) = json.loads((out / "index.json").read_text())
    assert document["title"] == stream.name
    assert [design["label"] for design in document["designs"]] == ["radix tree", "flat index"]
    assert document["block_ops"] > 0
    page = (out / "index.md").read_text()
    for design in document["designs"]:
        assert f"| {design['label']} |" in page
        assert design["bytes_per_membership"] > 0
    process = subprocess.run(
        [*bench, "--quick", "--designs", "no such design"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 2
    assert "'concurrent radix tree'" in process.stderr
