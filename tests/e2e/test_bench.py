"""Every benchmark runs, tiny: it must work whenever somebody wants its figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

KVATLAS = Path(sys.executable).parent / "kvatlas"


@pytest.mark.parametrize("name", ["hashing", "find-matches", "frontend"])
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
