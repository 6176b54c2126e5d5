"""`Publisher.Replay` and `.Snapshot` over a real connection: what an indexer that lost records gets."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from kvatlas_chassis import HostPort
from kvatlas_events import (
    Batch,
    ShutdownReason,
    SnapshotPart,
    WorkerKey,
)
from kvatlas_publisher.epoch.epoch import Epoch
from kvatlas_publisher.rpc import RpcServer
from kvatlas_wire.v1 import events_pb2, publisher_pb2, publisher_pb2_grpc
from tests.reference import wire_events as wire
from tests.reference.batch_decoder import decode_batch
from tests.unit.publisher.workers import empty_mirror, header

EPOCH = 9


class EpochSource:
    """A worker whose epoch a test fills."""

    def __init__(self, worker_id: int, *, replay_bytes_max: int = 1 << 20) -> None:
        self.worker = WorkerKey(worker_id, 0)
        self.epoch: Epoch | None = Epoch(
            header(self.worker, EPOCH), empty_mirror(), replay_bytes_max
        )
        self.records: list[bytes] = []
        self._next = 1

    def store(self, blocks: int = 1) -> None:
        """Store a chain of its own, as one event that is not sealed."""
        assert self.epoch is not None
        hashes = range(self._next, self._next + blocks)
        self._next += blocks
        self.epoch.apply_payloads([wire.payload(wire.stored(hashes, hashes))])

    def sealed_epoch(self) -> Epoch | None:
        if self.epoch is not None:
            self.records += self.epoch.seal()
        return self.epoch


@asynccontextmanager
async def serving(
    *sources: EpochSource, known: bool = True
) -> AsyncGenerator["publisher_pb2_grpc.PublisherAsyncStub"]:
    server = await RpcServer.start(HostPort("127.0.0.1", 0))
    if known:
        server.serve_workers(sources)
    try:
        async with grpc.aio.insecure_channel(str(server.address)) as channel:
            stub: publisher_pb2_grpc.PublisherAsyncStub = publisher_pb2_grpc.PublisherStub(channel)
            yield stub
    finally:
        await server.close(0)


async def snapshot(
    stub: "publisher_pb2_grpc.PublisherAsyncStub", worker_id: int
) -> list[list[bytes]]:
    request = publisher_pb2.SnapshotRequest(worker=events_pb2.Worker(worker_id=worker_id))
    return [list(message.records) async for message in stub.Snapshot(request)]


async def replay(
    stub: "publisher_pb2_grpc.PublisherAsyncStub",
    from_event_id: int,
    *,
    worker_id: int = 1,
    epoch: int = EPOCH,
) -> list[bytes]:
    worker = events_pb2.Worker(worker_id=worker_id)
    request = publisher_pb2.ReplayRequest(worker=worker, epoch=epoch, from_event_id=from_event_id)
    return [record async for message in stub.Replay(request) for record in message.records]


def held(records: Sequence[bytes]) -> tuple[int, set[int]]:
    """The event and the blocks of a snapshot."""
    parts = [part for part in map(_part, map(decode_batch, records)) if part is not None]
    assert len(parts) == len(records)
    (as_of,) = {part.as_of_event_id for part in parts}
    return as_of, {int(hash_) for part in parts for hash_ in part.sequence_hashes}


def _part(batch: Batch) -> SnapshotPart | None:
    return batch.snapshot


async def test_a_snapshot_holds_what_is_not_sealed_yet() -> None:
    source = EpochSource(1)
    async with serving(source, EpochSource(2)) as stub:
        source.store(3)
        (first,) = await snapshot(stub, 1)
        source.store(2)
        (second,) = await snapshot(stub, 1)
    as_of, blocks = held(first)
    assert (as_of, len(blocks)) == (1, 3)
    as_of, more_blocks = held(second)
    assert (as_of, len(more_blocks)) == (2, 5)
    assert blocks < more_blocks
    assert len(source.records) == 2


async def test_a_large_snapshot_comes_in_messages_that_a_client_takes() -> None:
    source = EpochSource(1)
    for _ in range(10):
        source.store(60_000)
    async with serving(source) as stub:
        messages = await snapshot(stub, 1)
    assert len(messages) > 1
    assert all(sum(map(len, message)) <= 2 << 20 for message in messages)
    assert len(held([record for message in messages for record in message])[1]) == 600_000


async def test_a_replay_is_the_very_records_from_an_event_on() -> None:
    source = EpochSource(1)
    async with serving(source) as stub:
        for _ in range(4):
            source.store()
            source.sealed_epoch()
        source.store()  # sealed by the call
        assert await replay(stub, 3) == source.records[2:]
        assert len(source.records) == 5
        assert await replay(stub, 1) == source.records
        assert await replay(stub, 6) == []


@pytest.mark.parametrize(
    ("from_event_id", "epoch", "code", "says"),
    [
        (1, EPOCH, grpc.StatusCode.OUT_OF_RANGE, "events from 2 to 2 are kept"),
        (4, EPOCH, grpc.StatusCode.OUT_OF_RANGE, "not those from 4"),
        (0, EPOCH, grpc.StatusCode.INVALID_ARGUMENT, "count from 1"),
        (2, EPOCH - 1, grpc.StatusCode.FAILED_PRECONDITION, f"epoch {EPOCH}"),
    ],
)
async def test_what_cannot_be_replayed_is_refused_with_what_can(
    from_event_id: int, epoch: int, code: grpc.StatusCode, says: str
) -> None:
    source = EpochSource(1, replay_bytes_max=500)
    for _ in range(2):
        source.store()
        source.sealed_epoch()
    async with serving(source) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await replay(stub, from_event_id, epoch=epoch)
    assert caught.value.code() is code
    assert says in str(caught.value.details())


async def test_a_worker_that_is_not_served_is_not_found_and_the_served_are_named() -> None:
    async with serving(EpochSource(1), EpochSource(2)) as stub:
        for call in (snapshot(stub, 3), replay(stub, 1, worker_id=3)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
            assert "served: 1/0, 2/0" in str(caught.value.details())


async def test_without_an_epoch_or_before_the_workers_are_known_it_is_unavailable() -> None:
    source = EpochSource(1)
    assert source.epoch is not None
    source.epoch.shut_down(ShutdownReason.ENGINE_GONE)
    source.epoch = None
    for known in (True, False):
        async with serving(source, known=known) as stub:
            for call in (snapshot(stub, 1), replay(stub, 1)):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_it_lists_the_workers_that_have_an_epoch() -> None:
    gone = EpochSource(2)
    gone.epoch = None
    async with serving(EpochSource(1), gone, EpochSource(3)) as stub:
        answer = await stub.ListWorkers(publisher_pb2.ListWorkersRequest())
    assert [(worker.worker_id, worker.dp_rank) for worker in answer.workers] == [(1, 0), (3, 0)]


async def test_a_publisher_that_starts_answers_unavailable_to_a_list() -> None:
    async with serving(known=False) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ListWorkers(publisher_pb2.ListWorkersRequest())
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
