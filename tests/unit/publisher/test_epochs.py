"""Epochs are above all that anybody has seen of the worker."""

from kvatlas_events import Worker
from kvatlas_publisher.codec import decode_epochs
from kvatlas_publisher.epochs import Epochs
from kvatlas_publisher.session_terms import SessionCounters
from kvatlas_publisher.state_dir import Owner
from kvatlas_wire.v1 import events_pb2, indexer_pb2

NOW_US = 1_000


def owner(dp_rank: int = 0, cell: str = "c") -> Owner:
    return Owner(cell, Worker(7, dp_rank))


def opened(seen: dict[Owner, int]) -> Epochs:
    return Epochs(owner(), None, SessionCounters(), now_unix_us=lambda: NOW_US, seen=seen)


def test_an_epoch_is_above_the_one_that_an_indexer_has_seen_of_the_worker() -> None:
    epochs = opened({owner(): 5_000, owner(1): 6_000, owner(cell="other"): 7_000})
    assert [epochs.open(), epochs.open()] == [5_001, 5_002]


def test_one_that_is_behind_the_clock_changes_nothing() -> None:
    assert opened({owner(): NOW_US - 1}).open() == NOW_US


def test_another_rank_goes_on_above_what_was_seen_of_either() -> None:
    epochs = opened({owner(): 5_000, owner(1): 6_000})
    epochs.move_to(Worker(7, 1))
    assert epochs.open() == 6_001


def test_an_epoch_that_no_clock_gave_is_not_believed() -> None:
    def of(worker_id: int, epoch: int) -> indexer_pb2.WorkerStatus:
        worker = events_pb2.Worker(worker_id=worker_id, dp_rank=2)
        return indexer_pb2.WorkerStatus(info=indexer_pb2.WorkerInfo(worker=worker, epoch=epoch))

    status = indexer_pb2.GetStatusResponse(cell="c", workers=[of(1, 9), of(2, (1 << 64) - 1)])
    assert decode_epochs(status.SerializeToString()) == {Owner("c", Worker(1, 2)): 9}
