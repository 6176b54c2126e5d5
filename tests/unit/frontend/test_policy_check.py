"""`kvatlas frontend --check`: the problems of a policy as text and as JSON; nothing is started."""

import json
from pathlib import Path

import pytest

from kvatlas_cli import main

BROKEN = "{name: p, prepare: [tokens], filter: [y], score: [prefill], pick: lowest-cost}"


@pytest.fixture
def broken(tmp_path: Path) -> str:
    file = tmp_path / "broken.yaml"
    file.write_text(BROKEN)
    return str(file)


def test_a_policy_that_can_run_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frontend", "--check", "--policy", "kv-aware"]) == 0
    assert capsys.readouterr().out == "kv-aware: nothing is wrong\n"
    assert main(["frontend", "--policy", "kv-aware", "--json", "--check"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_every_problem_is_listed_as_json(broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frontend", "--check", "--policy", broken, "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert [(each["code"], each["plugin"], each["slot"]) for each in found] == [
        ("unknown_plugin", "y", None),
        ("missing_writer", "prefill", "matches"),
    ]
    assert all(set(each) == {"code", "plugin", "slot", "text"} for each in found)


def test_every_problem_is_a_row_of_a_table(broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frontend", "--check", "--policy", broken]) == 2
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["code", "plugin", "slot", "text"]
    assert first.split()[:3] == ["unknown_plugin", "y", "no"]
    assert second.split()[:3] == ["missing_writer", "prefill", "matches"]


def test_a_policy_that_does_not_exist_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frontend", "--check", "--policy", "no-such", "--json"]) == 2
    (problem,) = json.loads(capsys.readouterr().out)
    assert problem["code"] == "unreadable"


def test_a_whole_command_line_can_be_checked(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--indexer",
        "127.0.0.1:1",
        "--model",
        "m",
        "--block-size",
        "16",
        "--policy",
        "kv-aware",
    ]
    assert main(["frontend", "--check", *words]) == 0
    assert main(["frontend", "--check", "--polcy", "kv-aware"]) == 2
    assert "--polcy" in capsys.readouterr().err
