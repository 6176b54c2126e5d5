"""Every field of the messages reaches the plain values, and unknown ones do no harm."""

import pytest
from google.protobuf.message import DecodeError

from kvatlas_client import (
    CellTerms,
    Load,
    LogStatus,
    Tier,
    TierDigest,
    WorkerInfo,
    WorkerKey,
    WorkersChange,
    WorkerState,
    codec,
)
from kvatlas_wire.v1 import events_pb2, indexer_pb2

MESSAGE = indexer_pb2.WorkerInfo(
    worker=events_pb2.Worker(worker_id=2**64 - 1, dp_rank=3),
    state=indexer_pb2.WORKER_STATE_RECOVERING,
    epoch=5,
    engine_url="http://engine",
    publisher_rpc="publisher:1",
    role="prefill",
    labels={"zone": "a"},
    load=events_pb2.Load(requests_running=1, requests_waiting=2, kv_usage=0.5),
    capacity_blocks=6,
    blocks=7,
    last_event_id=8,
    heartbeat_age_ms=9,
)
INFO = WorkerInfo(
    worker_id=2**64 - 1,
    dp_rank=3,
    state=WorkerState.RECOVERING,
    epoch=5,
    engine_url="http://engine",
    publisher_rpc="publisher:1",
    role="prefill",
    labels={"zone": "a"},
    load=Load(1, 2, 0.5),
    capacity_blocks=6,
    blocks=7,
    last_event_id=8,
    heartbeat_age_ms=9,
)


def test_a_change_of_workers() -> None:
    data = indexer_pb2.WatchWorkersResponse(
        full=True,
        workers=[MESSAGE],
        removed=[events_pb2.Worker(worker_id=1, dp_rank=2)],
        cell="cell",
        model="m",
        block_size=16,
        hash_contract="c",
    ).SerializeToString()
    change, terms = codec.decode_change(data, "here:1")
    assert change == WorkersChange(True, (INFO,), (WorkerKey(1, 2),), "here:1")
    assert change.workers[0].key == WorkerKey(2**64 - 1, 3)
    assert terms == CellTerms("m", 16, "c")


def test_an_unread_load_is_none() -> None:
    data = indexer_pb2.WatchWorkersResponse(workers=[indexer_pb2.WorkerInfo()]).SerializeToString()
    change, _ = codec.decode_change(data, "here:1")
    assert change.workers[0].load is None


@pytest.mark.parametrize(
    ("number", "state"),
    [
        (indexer_pb2.WORKER_STATE_LIVE, WorkerState.LIVE),
        (indexer_pb2.WORKER_STATE_STALE, WorkerState.STALE),
        (indexer_pb2.WORKER_STATE_OVER_BUDGET, WorkerState.OVER_BUDGET),
        (indexer_pb2.WORKER_STATE_UNSPECIFIED, WorkerState.STALE),
        (77, WorkerState.STALE),
    ],
)
def test_a_state_of_a_later_version_is_not_live(
    number: indexer_pb2.WorkerState.ValueType, state: WorkerState
) -> None:
    message = indexer_pb2.WorkerInfo(state=number)
    data = indexer_pb2.WatchWorkersResponse(workers=[message]).SerializeToString()
    change, _ = codec.decode_change(data, "here:1")
    assert change.workers[0].state is state


def test_a_status() -> None:
    message = indexer_pb2.GetStatusResponse(
        replica_id="r",
        version="1",
        cell="cell",
        model="m",
        block_size=16,
        hash_contract="c",
        ready=True,
        workers=[
            indexer_pb2.WorkerStatus(
                info=MESSAGE,
                instance_id=4,
                digests=[
                    events_pb2.TierDigest(tier=events_pb2.TIER_HOST, blocks=1, digest=2**64 - 1),
                    events_pb2.TierDigest(tier=events_pb2.TIER_UNSPECIFIED, blocks=1, digest=1),
                ],
                events_held_back=2,
                incomplete=True,
            )
        ],
        memberships=10,
        index_bytes=11,
        counters={"records": 12},
        logs=[indexer_pb2.LogStatus(transport="redis", alive=True, records=13, lag_ms=14)],
    )
    status = codec.decode_status(message.SerializeToString())
    assert (status.replica_id, status.version, status.cell) == ("r", "1", "cell")
    assert (status.terms, status.ready) == (CellTerms("m", 16, "c"), True)
    assert (status.memberships, status.index_bytes) == (10, 11)
    assert status.counters == {"records": 12}
    assert status.logs == (LogStatus("redis", True, 13, 14),)
    (worker,) = status.workers
    assert worker.info == INFO
    assert (worker.instance_id, worker.events_held_back, worker.incomplete) == (4, 2, True)
    assert worker.digests == (TierDigest(Tier.HOST, 1, 2**64 - 1),)


def test_an_answer_that_is_no_message_is_undecodable() -> None:
    with pytest.raises(DecodeError):
        codec.decode_status(b"\xff\xff\xff")
