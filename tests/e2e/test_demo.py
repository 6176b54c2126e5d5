"""The demo as a user runs it, small: a whole cell, real input, real HTTP, a table, nothing left."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

KVATLAS = Path(sys.executable).parent / "kvatlas"
SMALL = ("--engines", "3", "--rate", "30")


def demo(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [KVATLAS, "demo", *words], capture_output=True, text=True, timeout=110, check=False
    )


def results(process: subprocess.CompletedProcess[str], file: Path) -> dict[str, Any]:
    assert process.returncode == 0, process.stdout + process.stderr
    return json.loads(file.read_text())


@contextlib.contextmanager
def running(*words: str) -> Generator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [KVATLAS, "demo", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def children(pid: int) -> dict[int, str]:
    """Direct children and their start times, which tell a process from a later one of its pid."""
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found[int(folder.name)] = fields[19]
    return found


def still_up(processes: dict[int, str]) -> list[int]:
    left: list[int] = []
    for pid, started in processes.items():
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if fields[19] == started and fields[0] != "Z":
                left.append(pid)
    return left


def wait_for(what: Callable[[], bool], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_every_policy_answers_every_request_and_the_indexers_agree(tmp_path: Path) -> None:
    file = tmp_path / "demo.json"
    policies = ("kv-aware", "round-robin")
    process = demo(*SMALL, "--requests", "80", "--policy", *policies, "--json", str(file))
    document = results(process, file)
    assert document["requests"] == 80
    assert document["engines"] == 3
    assert 0 < document["infinite_cache_hit_ratio"] < 1
    assert list(document["policies"]) == list(policies)
    for policy in document["policies"].values():
        assert policy["requests"] == 80
        assert policy["errors"] == 0
        assert policy["fallbacks"] == 0
        assert policy["evictions"] > 0
        # Requests may overtake one another by a block, so the bound is not sharp.
        assert 0 < policy["hit_ratio"] <= document["infinite_cache_hit_ratio"] + 0.005
        assert 0 < policy["ttft_ms"]["p50"] <= policy["ttft_ms"]["p95"] <= policy["ttft_ms"]["p99"]
        assert 0 < policy["routing_ms"]["p50"] <= policy["routing_ms"]["p99"]
    assert "KV hit ratio" in process.stdout
    agreed = re.findall(r"2 indexers give the same answers: ([\d,]+) memberships", process.stdout)
    assert len(agreed) == 2
    assert all(int(count.replace(",", "")) > 1_000 for count in agreed)


def test_killing_an_indexer_costs_no_request_and_no_match_on_a_trace_of_ones_own(
    tmp_path: Path,
) -> None:
    trace, file = tmp_path / "own.jsonl", tmp_path / "demo.json"
    rows = [
        {
            "timestamp": 40 * i,
            "input_length": 1_500,
            "output_length": 4,
            "hash_ids": [5, 6 + i % 6, 100 + i],
        }
        for i in range(90)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("--trace", str(trace), "--policy", "kv-aware", "--kill-indexer", "--json", str(file))
    process = demo(*SMALL, *words)
    document = results(process, file)
    assert document["trace"] == "own.jsonl"
    assert document["requests"] == 90
    policy = document["policies"]["kv-aware"]
    assert policy["errors"] == 0
    assert policy["fallbacks"] == 0
    assert "indexer-1 was killed after 45 answers" in process.stdout


def test_a_fleet_that_is_kept_can_be_called_and_ctrl_c_leaves_no_process() -> None:
    with running(*SMALL, "--requests", "5", "--policy", "kv-aware", "--keep") as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or "/metrics" not in lines[-1]:
            line = process.stdout.readline()
            assert line, "".join(lines)
            lines.append(line)
        processes = children(process.pid)
        assert len(processes) == 1 + 3 + 3 + 2 + 2
        for command in [line.split() for line in lines if line.startswith("  curl")]:
            assert call(command) == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert still_up(processes) == []


def call(command: Sequence[str]) -> int:
    """Do as `curl` would, with the arguments that the demo printed."""
    line = " ".join(command)
    url = next(word for word in command if word.startswith("http://"))
    body = re.search(r"-d '(.*)'", line)
    request = urllib.request.Request(  # noqa: S310 - http on loopback
        url,
        data=body.group(1).encode() if body else None,
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310 - the same
        assert response.read()
        return response.status


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopping_in_the_middle_leaves_no_process(number: signal.Signals) -> None:
    with running(*SMALL, "--requests", "500", "--policy", "kv-aware") as process:
        wait_for(lambda: len(children(process.pid)) >= 1 + 3)
        processes = children(process.pid)
        process.send_signal(number)
        assert process.wait(timeout=30) == 130
        assert still_up(processes) == []


def test_a_demo_that_is_killed_takes_its_processes_along() -> None:
    with running(*SMALL, "--requests", "500", "--policy", "kv-aware") as process:
        wait_for(lambda: len(children(process.pid)) >= 1 + 3)
        processes = children(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=10)
        wait_for(lambda: still_up(processes) == [], seconds=10)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--requests", "0"), "--requests"),
        (("--policy", "fastest"), "unknown policy 'fastest'"),
        (("--trace", "/nonexistent"), "No such file"),
        (("--speed", "2"), "unrecognized arguments"),
    ],
)
def test_what_cannot_be_played_is_one_line_and_status_two(
    words: Sequence[str], complaint: str
) -> None:
    process = demo(*words)
    assert process.returncode == 2
    assert complaint in process.stderr
    assert len(process.stderr.splitlines()) == 1
    assert process.stdout == ""
