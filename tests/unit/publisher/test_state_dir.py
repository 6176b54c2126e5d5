"""The state directory: files that are whole, damaged, another worker's, or cannot be written."""

import shutil
from pathlib import Path

import pytest

from kvatlas_chassis import SettingsError
from kvatlas_events import WorkerKey
from kvatlas_publisher.context import WorkerContext
from kvatlas_publisher.epoch.numbers import EpochNumbers
from kvatlas_publisher.state.state_dir import (
    EPOCH_MAX,
    CellWorker,
    StateCorrupt,
    StateDir,
    decode_epoch,
    encode_epoch,
)
from tests.unit.publisher.workers import worker_context

WORKER = CellWorker("prod/llama 8b", WorkerKey(7, 1))


def context(state: StateDir | None, clock_us: int) -> WorkerContext:
    return worker_context(state, cell=WORKER.cell, now_unix_us=lambda: clock_us)


def numbers(state: StateDir | None, clock_us: int) -> EpochNumbers:
    return EpochNumbers(context(state, clock_us))


@pytest.mark.parametrize("epoch", [0, 1, 1_760_000_000_000_000, EPOCH_MAX])
def test_an_epoch_comes_back_as_it_was_written(epoch: int) -> None:
    assert decode_epoch(WORKER, encode_epoch(WORKER, epoch)) == epoch


def test_every_damage_is_noticed() -> None:
    whole = encode_epoch(WORKER, 1_760_000_000_000_000).rstrip()
    for length in range(len(whole)):
        with pytest.raises(StateCorrupt):
            decode_epoch(WORKER, whole[:length])
    for at in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            with pytest.raises(StateCorrupt):
                decode_epoch(WORKER, bytes(damaged))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 4_000, "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b"{}", "version"),
        (b'{"version": 2}', "version 2"),
        (b'{"version": 1, "sum": 5}', "checksum"),
        (encode_epoch(CellWorker("other", WORKER.worker), 5), "another worker's"),
        (encode_epoch(CellWorker(WORKER.cell, WorkerKey(7, 0)), 5), "another worker's"),
        (encode_epoch(WORKER, -1), "its epoch is impossible"),
        (encode_epoch(WORKER, EPOCH_MAX + 1), "its epoch is impossible"),
    ],
)
def test_a_corrupt_state_names_the_reason(content: bytes, why: str) -> None:
    with pytest.raises(StateCorrupt, match=why):
        decode_epoch(WORKER, content)


def test_a_missing_directory_is_made_and_holds_only_what_was_written(tmp_path: Path) -> None:
    state = StateDir.open(tmp_path / "a" / "b")
    assert list(state.path.iterdir()) == []
    state.write_epoch(WORKER, 5)
    (file,) = state.path.iterdir()
    assert file.name == "kvatlas-prod%2Fllama%208b-7-1.epoch"


def test_no_epoch_is_used_twice_by_a_clock_that_was_set_back(tmp_path: Path) -> None:
    state = StateDir.open(tmp_path)
    first = numbers(state, 1_000)
    assert [first.allocate(), first.allocate()] == [1_000, 1_001]
    again = numbers(state, 10)
    assert again.allocate() == 1_002
    assert again.is_own(1_002)
    assert not again.is_own(1_001)
    assert numbers(state, 5_000).allocate() == 5_000


def test_an_epoch_is_on_disk_when_it_is_allocated(tmp_path: Path) -> None:
    state = StateDir.open(tmp_path)
    epoch = numbers(state, 1_000).allocate()
    assert StateDir(tmp_path).read_epoch(WORKER) == epoch


def test_workers_and_cells_share_a_directory(tmp_path: Path) -> None:
    state = StateDir.open(tmp_path)
    others = [
        CellWorker("c", WorkerKey(7, 0)),
        CellWorker("c", WorkerKey(7, 1)),
        CellWorker("d", WorkerKey(7, 0)),
    ]
    for epoch, other in enumerate(others, 1):
        state.write_epoch(other, epoch)
    assert [state.read_epoch(other) for other in others] == [1, 2, 3]
    assert state.read_epoch(WORKER) is None


def test_another_rank_continues_above_the_epochs_of_both(tmp_path: Path) -> None:
    state = StateDir.open(tmp_path)
    state.write_epoch(CellWorker(WORKER.cell, WorkerKey(7, 3)), 9_000)
    worker = context(state, 1_000)
    moving = EpochNumbers(worker)
    assert moving.allocate() == 1_000
    worker.worker = WorkerKey(7, 3)
    moving.on_worker_changed()
    assert moving.allocate() == 9_001
    assert state.read_epoch(WORKER) == 1_000
    assert state.read_epoch(CellWorker(WORKER.cell, WorkerKey(7, 3))) == 9_001


def test_a_corrupt_file_is_moved_aside_counted_and_logged_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = StateDir.open(tmp_path)
    file = tmp_path / f"{WORKER.file_stem}.epoch"
    for content in (b"torn", b"x" * 10_000):
        file.write_bytes(content)
        worker = context(state, 1_000)
        caplog.clear()
        assert EpochNumbers(worker).allocate() == 1_000
        assert worker.counters.state_corrupt == 1
        (line,) = caplog.messages
        assert str(file) in line
        assert (tmp_path / f"{file.name}.corrupt").read_bytes() == content
        assert state.read_epoch(WORKER) == 1_000


def test_a_foreign_file_is_left_alone(tmp_path: Path) -> None:
    foreign = {"notes.txt": b"mine", "kvatlas-c-7-0.epoch": b"not ours to judge"}
    for name, content in foreign.items():
        (tmp_path / name).write_bytes(content)
    numbers(StateDir.open(tmp_path), 1_000).allocate()
    assert {name: (tmp_path / name).read_bytes() for name in foreign} == foreign


def test_a_directory_that_cannot_be_made_is_a_setting_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(SettingsError, match=f"--state-dir {path} cannot be written"):
            StateDir.open(path)


def test_a_file_that_cannot_be_read_is_a_setting_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / f"{WORKER.file_stem}.epoch").mkdir()
    with pytest.raises(SettingsError, match=r"7-1\.epoch"):
        numbers(StateDir.open(tmp_path), 1_000)


def test_a_disk_that_fails_later_is_counted_logged_and_used_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = StateDir.open(tmp_path / "state")
    worker = context(state, 1_000)
    failing = EpochNumbers(worker)
    assert failing.allocate() == 1_000
    shutil.rmtree(state.path)
    assert [failing.allocate(), failing.allocate()] == [1_001, 1_002]
    assert worker.counters.state_failures == 2
    assert len(caplog.messages) == 1
    state.path.mkdir()
    assert failing.allocate() == 1_003
    assert state.read_epoch(WORKER) == 1_003
    assert worker.counters.state_failures == 2


def test_without_a_directory_nothing_is_kept() -> None:
    assert numbers(None, 1_000).allocate() == 1_000
    assert numbers(None, 10).allocate() == 10
