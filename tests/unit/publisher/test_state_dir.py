"""What a publisher keeps on disk: files that are whole, damaged, another's, or cannot be written."""

import shutil
from pathlib import Path

import pytest

from kvatlas_chassis import SettingsError
from kvatlas_events import Worker
from kvatlas_publisher.epochs import Epochs
from kvatlas_publisher.session_terms import SessionCounters
from kvatlas_publisher.state_dir import (
    EPOCH_MAX,
    Owner,
    StateCorrupt,
    StateDir,
    decode_epoch,
    encode_epoch,
)

OWNER = Owner("prod/llama 8b", Worker(7, 1))


def epochs(
    state: StateDir | None, clock_us: int, counters: SessionCounters | None = None
) -> Epochs:
    return Epochs(OWNER, state, counters or SessionCounters(), now_unix_us=lambda: clock_us)


@pytest.mark.parametrize("epoch", [0, 1, 1_760_000_000_000_000, EPOCH_MAX])
def test_an_epoch_comes_back_as_it_was_written(epoch: int) -> None:
    assert decode_epoch(OWNER, encode_epoch(OWNER, epoch)) == epoch


def test_every_damage_is_noticed() -> None:
    whole = encode_epoch(OWNER, 1_760_000_000_000_000).rstrip()
    for length in range(len(whole)):
        with pytest.raises(StateCorrupt):
            decode_epoch(OWNER, whole[:length])
    for at in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            with pytest.raises(StateCorrupt):
                decode_epoch(OWNER, bytes(damaged))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 4_000, "no JSON"),
        (b"[]", "no table"),
        (b"{}", "version"),
        (b'{"version": 2}', "version 2"),
        (b'{"version": 1, "sum": 5}', "checksum"),
        (encode_epoch(Owner("other", OWNER.worker), 5), "another worker's"),
        (encode_epoch(Owner(OWNER.cell, Worker(7, 0)), 5), "another worker's"),
        (encode_epoch(OWNER, -1), "its epoch"),
        (encode_epoch(OWNER, EPOCH_MAX + 1), "its epoch"),
    ],
)
def test_what_is_no_state_says_why(content: bytes, why: str) -> None:
    with pytest.raises(StateCorrupt, match=why):
        decode_epoch(OWNER, content)


def test_a_missing_directory_is_made_and_holds_only_what_was_written(tmp_path: Path) -> None:
    state = StateDir.open(tmp_path / "a" / "b")
    assert list(state.path.iterdir()) == []
    state.write_epoch(OWNER, 5)
    (file,) = state.path.iterdir()
    assert file.name == "kvatlas-prod%2Fllama%208b-7-1.epoch"


def test_no_epoch_is_opened_twice_by_a_clock_that_was_set_back(tmp_path: Path) -> None:
    state = StateDir.open(tmp_path)
    first = epochs(state, 1_000)
    assert [first.open(), first.open()] == [1_000, 1_001]
    again = epochs(state, 10)
    assert again.open() == 1_002
    assert again.is_ours(1_002)
    assert not again.is_ours(1_001)
    assert epochs(state, 5_000).open() == 5_000


def test_an_epoch_is_on_disk_when_it_is_opened(tmp_path: Path) -> None:
    state = StateDir.open(tmp_path)
    epoch = epochs(state, 1_000).open()
    assert StateDir(tmp_path).read_epoch(OWNER) == epoch


def test_workers_and_cells_share_a_directory(tmp_path: Path) -> None:
    state = StateDir.open(tmp_path)
    others = [Owner("c", Worker(7, 0)), Owner("c", Worker(7, 1)), Owner("d", Worker(7, 0))]
    for epoch, owner in enumerate(others, 1):
        state.write_epoch(owner, epoch)
    assert [state.read_epoch(owner) for owner in others] == [1, 2, 3]
    assert state.read_epoch(OWNER) is None


def test_a_rank_that_is_another_one_goes_on_above_both(tmp_path: Path) -> None:
    state = StateDir.open(tmp_path)
    state.write_epoch(Owner(OWNER.cell, Worker(7, 3)), 9_000)
    moving = epochs(state, 1_000)
    assert moving.open() == 1_000
    moving.move_to(Worker(7, 3))
    assert moving.open() == 9_001
    assert state.read_epoch(OWNER) == 1_000
    assert state.read_epoch(Owner(OWNER.cell, Worker(7, 3))) == 9_001


def test_a_corrupt_file_is_moved_aside_counted_and_told_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = StateDir.open(tmp_path)
    file = tmp_path / f"{OWNER.name}.epoch"
    for content in (b"torn", b"x" * 10_000):
        file.write_bytes(content)
        counters = SessionCounters()
        caplog.clear()
        assert epochs(state, 1_000, counters).open() == 1_000
        assert counters.state_corrupt == 1
        (line,) = caplog.messages
        assert str(file) in line
        assert (tmp_path / f"{file.name}.corrupt").read_bytes() == content
        assert state.read_epoch(OWNER) == 1_000


def test_a_foreign_file_is_left_alone(tmp_path: Path) -> None:
    foreign = {"notes.txt": b"mine", "kvatlas-c-7-0.epoch": b"not ours to judge"}
    for name, content in foreign.items():
        (tmp_path / name).write_bytes(content)
    epochs(StateDir.open(tmp_path), 1_000).open()
    assert {name: (tmp_path / name).read_bytes() for name in foreign} == foreign


def test_a_directory_that_cannot_be_made_is_a_setting_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(SettingsError, match=f"--state-dir {path} cannot be written"):
            StateDir.open(path)


def test_a_file_that_cannot_be_read_is_a_setting_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / f"{OWNER.name}.epoch").mkdir()
    with pytest.raises(SettingsError, match=r"7-1\.epoch"):
        epochs(StateDir.open(tmp_path), 1_000)


def test_a_disk_that_fails_later_is_counted_told_once_and_used_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = StateDir.open(tmp_path / "state")
    counters = SessionCounters()
    failing = epochs(state, 1_000, counters)
    assert failing.open() == 1_000
    shutil.rmtree(state.path)
    assert [failing.open(), failing.open()] == [1_001, 1_002]
    assert counters.state_failures == 2
    assert len(caplog.messages) == 1
    state.path.mkdir()
    assert failing.open() == 1_003
    assert state.read_epoch(OWNER) == 1_003
    assert counters.state_failures == 2


def test_without_a_directory_nothing_is_kept() -> None:
    assert epochs(None, 1_000).open() == 1_000
    assert epochs(None, 10).open() == 10
