"""A new epoch is above all that are known of the worker."""

from kvatlas_events import WorkerKey
from kvatlas_publisher.epoch.numbers import EpochNumbers, next_epoch
from kvatlas_publisher.ownership.codec import decode_epochs
from kvatlas_publisher.state.state_dir import CellWorker
from kvatlas_wire.v1 import events_pb2, indexer_pb2
from tests.unit.publisher.workers import worker_context

NOW_US = 1_000


def cell_worker(dp_rank: int = 0, cell: str = "c") -> CellWorker:
    return CellWorker(cell, WorkerKey(7, dp_rank))


def numbers(seen: dict[CellWorker, int], dp_rank: int | None = 0) -> EpochNumbers:
    return EpochNumbers(
        worker_context(dp_rank=dp_rank, now_unix_us=lambda: NOW_US, seen_epochs=seen)
    )


def test_an_epoch_is_near_the_wall_clock_and_above_all_seen() -> None:
    assert next_epoch(1_000, 0) == 1_000
    assert next_epoch(1_000, 5_000) == 5_001


def test_an_epoch_is_above_the_one_that_an_indexer_has_seen_of_the_worker() -> None:
    opened = numbers(
        {cell_worker(): 5_000, cell_worker(1): 6_000, cell_worker(cell="other"): 7_000}
    )
    assert [opened.allocate(), opened.allocate()] == [5_001, 5_002]


def test_one_that_is_behind_the_clock_changes_nothing() -> None:
    assert numbers({cell_worker(): NOW_US - 1}).allocate() == NOW_US


def test_another_rank_continues_above_what_was_seen_of_either() -> None:
    context = worker_context(
        dp_rank=None,
        now_unix_us=lambda: NOW_US,
        seen_epochs={cell_worker(): 5_000, cell_worker(1): 6_000},
    )
    opened = EpochNumbers(context)
    context.worker = WorkerKey(7, 1)
    opened.on_worker_changed()
    assert opened.allocate() == 6_001


def test_an_epoch_that_no_clock_gives_is_ignored() -> None:
    def of(worker_id: int, epoch: int) -> indexer_pb2.WorkerStatus:
        worker = events_pb2.Worker(worker_id=worker_id, dp_rank=2)
        return indexer_pb2.WorkerStatus(info=indexer_pb2.WorkerInfo(worker=worker, epoch=epoch))

    status = indexer_pb2.GetStatusResponse(cell="c", workers=[of(1, 9), of(2, (1 << 64) - 1)])
    assert decode_epochs(status.SerializeToString()) == {CellWorker("c", WorkerKey(1, 2)): 9}
