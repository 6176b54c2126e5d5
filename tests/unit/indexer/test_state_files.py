"""State files: complete or not there, and never an obstacle to a start."""

import resource
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvatlas_indexer.state.files import FILES_KEPT, StateFile, StateFiles
from kvatlas_indexer.state.start import Source, Start
from kvatlas_native import Cell
from kvatlas_wire.v1 import events_pb2 as pb
from tests.unit.cell.bench import RECOVER_MS, Bench
from tests.unit.cell.record_source import CONTRACT, RecordSource, store


def told() -> Bench:
    bench = Bench()
    source = RecordSource()
    bench.cell.set_log_status("redis", alive=True, records=0, lag_ms=0)
    bench.cell.set_log_position("redis", identity="log", entry="7-1")
    records = [source.events(store(1, 2)), source.events(store(3), store(2, tier=pb.TIER_HOST))]
    facts = pb.Heartbeat(engine_url="http://engine", role="decode")
    bench.feed(*records, source.heartbeat(facts=facts))
    return bench


def fresh() -> Bench:
    bench = Bench()
    bench.cell.set_log_status("redis", alive=True, records=0, lag_ms=0)
    return bench


def test_a_written_state_is_restored(tmp_path: Path) -> None:
    bench, again = told(), fresh()
    assert StateFiles(tmp_path / "deep" / "er").write(bench.cell, 1_700_000_000_000)
    restored = StateFiles(tmp_path / "deep" / "er").restore(again.cell, lambda: again.now_ms)
    assert restored is not None
    assert (restored.workers, restored.memberships) == (1, 4)
    assert restored.positions == {"redis": ("log", "7-1")}
    assert again.find(1, 2, 3) == bench.find(1, 2, 3) == [(1, 0, 3)]
    info, was = again.worker().info, bench.worker().info
    assert (info.engine_url, info.role) == ("http://engine", "decode")
    assert (info.epoch, info.last_event_id) == (was.epoch, was.last_event_id)
    assert again.worker().digests == bench.worker().digests


def test_a_directory_that_cannot_be_written_is_reported_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    files = StateFiles(tmp_path / "file" / "state")
    assert not files.check_writable()
    assert files.failed == 1
    assert caplog.messages == [f"state cannot be saved in {files.directory}: Not a directory"]
    files = StateFiles(tmp_path / "state")
    assert files.check_writable()
    assert (files.failed, list(files.directory.iterdir())) == (0, [])


def test_the_newest_two_are_kept_and_the_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    files, bench = StateFiles(tmp_path), told()
    (tmp_path / ".state-1.partial").write_bytes(b"half")
    (tmp_path / "other").write_bytes(b"somebody else's")
    for number in range(5):
        assert files.write(bench.cell, 1_700_000_000_000 + number)
    kept = files.newest_first()
    assert [file.unix_ms % 10 for file in kept] == [4, 3]
    assert len(kept) == FILES_KEPT
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"other", *(file.path.name for file in kept)}
    assert (files.written, files.failed) == (5, 0)


def test_a_state_that_is_written_after_the_clock_was_set_back_is_the_newest(
    tmp_path: Path,
) -> None:
    files, bench, source = StateFiles(tmp_path), fresh(), RecordSource()
    hour_ms = 3_600_000
    for block, unix_ms in enumerate((hour_ms, hour_ms + 1, 0, 1), 1):
        bench.feed(source.events(store(block)))
        assert files.write(bench.cell, 1_700_000_000_000 + unix_ms)
    assert len(files.newest_first()) == FILES_KEPT
    again = fresh()
    assert files.restore(again.cell, lambda: again.now_ms) is not None
    assert again.find(1, 2, 3, 4) == [(1, 0, 4)]


def test_a_damaged_file_is_skipped_for_the_one_before_it(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    for number in range(2):
        files.write(told().cell, 1_700_000_000_000 + number)
    newest = files.newest_first()[0].path
    newest.write_bytes(newest.read_bytes()[:-100])
    again = fresh()
    assert files.restore(again.cell, lambda: again.now_ms) is not None
    assert files.unusable == {"corrupt": 1}
    assert again.find(1, 2, 3) == [(1, 0, 3)]


@pytest.mark.parametrize(
    ("terms", "why"),
    [({"model": "another"}, "other_cell"), ({"block_size": 32}, "other_cell"), ({}, None)],
)
def test_a_file_of_another_cell_is_skipped(
    tmp_path: Path, terms: dict[str, object], why: str | None
) -> None:
    files = StateFiles(tmp_path)
    files.write(told().cell, 1_700_000_000_000)
    of = {"cell": "blue", "model": "model", "block_size": 16, "hash_contract": CONTRACT} | terms
    limits = {"lease_ms": 1, "hold_back_batches_max": 1, "hold_back_ms": 1}
    cell = Cell(replica_id="", version="", memory_bytes_max=1 << 30, **of, **limits)  # pyright: ignore[reportArgumentType] - the parameters mix types
    assert (files.restore(cell, lambda: 1) is None) is (why is not None)
    assert files.unusable == ({why: 1} if why else {})


def test_a_foreign_file_with_a_state_files_name_is_skipped(tmp_path: Path) -> None:
    # The name has the right checksum, so that the bytes are decoded.
    (tmp_path / "state-1700000000000-2d06800538d394c2.arrow").write_bytes(b"")
    files = StateFiles(tmp_path)
    assert files.restore(fresh().cell, lambda: 1) is None
    assert sum(files.unusable.values()) == 1


@contextmanager
def files_no_larger_than(size: int) -> Generator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_that_cannot_be_completed_leaves_nothing_behind(tmp_path: Path) -> None:
    files, bench = StateFiles(tmp_path), told()
    files.write(bench.cell, 1_700_000_000_000)
    (before,) = files.newest_first()
    with files_no_larger_than(500):
        assert not files.write(bench.cell, 1_700_000_000_001)
    assert [path.name for path in tmp_path.iterdir()] == [before.path.name]
    assert (files.written, files.failed) == (1, 1)
    assert files.write(bench.cell, 1_700_000_000_002)


class Slow(StateFiles):
    """Takes longer to read than `recover_ms`."""

    def __init__(self, directory: Path, bench: Bench) -> None:
        super().__init__(directory)
        self.bench = bench

    def newest_first(self) -> Sequence[StateFile]:
        self.bench.now_ms += 2 * RECOVER_MS
        return super().newest_first()


async def test_the_time_of_a_start_does_not_count_towards_recover_ms(
    tmp_path: Path,
) -> None:
    bench, again, source = fresh(), fresh(), RecordSource()
    bench.feed(source.events(store(1)), source.heartbeat(last=3))
    assert StateFiles(tmp_path).write(bench.cell, 1_700_000_000_000)
    slow = Slow(tmp_path, again)
    start = Start(again.cell, slow, (), patience_s=1.0, unix_ms=lambda: again.now_ms)
    await start.run()
    assert start.source is Source.FILE
    again.pass_ms(100, log_alive=False)
    again.feed(source.events(store(2), store(3), first=2))
    assert again.count("recoveries_given_up") == 0
    assert again.find(1, 2, 3) == [(1, 0, 3)]


def test_a_directory_that_is_a_file_is_counted_and_harmless(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    files = StateFiles(tmp_path / "file")
    assert files.restore(fresh().cell, lambda: 1) is None
    assert not files.write(told().cell, 1_700_000_000_000)
    assert (files.failed, files.unusable) == (1, {"unreadable": 1})
