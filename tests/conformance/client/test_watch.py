"""The stream of workers goes on, from one replica after another, whatever happens to them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import grpc
import pytest

from kvatlas_client import AsyncIndexer, CellMismatch, WorkerKey, WorkersChange, watch
from kvatlas_wire.v1 import events_pb2, indexer_pb2
from tests.conformance.client.scripted import ScriptedReplica, nobody

PATIENCE_S = 30


def workers(*ids: int, full: bool = True, block_size: int = 16) -> indexer_pb2.WatchWorkersResponse:
    return indexer_pb2.WatchWorkersResponse(
        full=full,
        workers=[
            indexer_pb2.WorkerInfo(
                worker=events_pb2.Worker(worker_id=number), state=indexer_pb2.WORKER_STATE_LIVE
            )
            for number in ids
        ],
        model="m",
        block_size=block_size,
        hash_contract="c",
    )


def removed(number: int) -> indexer_pb2.WatchWorkersResponse:
    return indexer_pb2.WatchWorkersResponse(removed=[events_pb2.Worker(worker_id=number)])


def ids(change: WorkersChange) -> list[int]:
    return [worker.worker_id for worker in change.workers]


async def following(changes: AsyncGenerator[WorkersChange]) -> WorkersChange:
    async with asyncio.timeout(PATIENCE_S):
        return await anext(changes)


@pytest.fixture
async def client(replica: ScriptedReplica, other: ScriptedReplica) -> AsyncIterator[AsyncIndexer]:
    async with AsyncIndexer(
        [replica.address, other.address],
        model="m",
        block_size=16,
        hash_contract="c",
    ) as made:
        yield made


async def test_all_workers_come_first_and_then_every_change(
    replica: ScriptedReplica, other: ScriptedReplica, client: AsyncIndexer
) -> None:
    assert client.watching is None
    changes = client.watch_workers()
    for each in (replica, other):
        each.say(workers(1, 2))
        each.say(workers(3, full=False))
        each.say(removed(1))
    first = await following(changes)
    assert (first.full, ids(first), first.removed) == (True, [1, 2], ())
    assert client.watching == first.replica
    second = await following(changes)
    assert (second.full, ids(second)) == (False, [3])
    assert (await following(changes)).removed == (WorkerKey(1, 0),)
    await changes.aclose()
    assert client.watching is None


async def test_another_replica_takes_over_from_one_that_dies_or_ends_its_stream(
    replica: ScriptedReplica, other: ScriptedReplica, client: AsyncIndexer
) -> None:
    changes = client.watch_workers()
    replica.say(workers(1))
    other.say(workers(2))
    first = await following(changes)
    watched, spare = (replica, other) if first.replica == replica.address else (other, replica)
    await asyncio.to_thread(watched.die)
    second = await following(changes)
    assert (second.replica, second.full) == (spare.address, True)
    spare.end_streams()
    watched.start()
    watched.say(workers(4))
    spare.say(workers(5))
    third = await following(changes)
    assert third.full
    assert ids(third) in ([4], [5])
    await changes.aclose()


async def test_a_replica_that_says_nothing_is_left(
    replica: ScriptedReplica,
    other: ScriptedReplica,
    client: AsyncIndexer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "FIRST_MESSAGE_S_MAX", 0.1)
    replica.silent = True
    changes = client.watch_workers()
    other.say(workers(2))
    other.say(workers(2))
    assert (await following(changes)).replica == other.address
    await changes.aclose()


async def test_a_time_without_any_replica_is_waited_out(replica: ScriptedReplica) -> None:
    await asyncio.to_thread(replica.die)
    async with AsyncIndexer([nobody(), replica.address], hash_contract="c") as client:
        changes = client.watch_workers()
        first = asyncio.ensure_future(anext(changes))
        done, _ = await asyncio.wait([first], timeout=0.3)
        assert not done
        replica.start()
        replica.say(workers(1))
        async with asyncio.timeout(PATIENCE_S):
            assert ids(await first) == [1]
        await changes.aclose()


async def test_a_cell_of_another_block_size_is_loud(
    replica: ScriptedReplica, other: ScriptedReplica, client: AsyncIndexer
) -> None:
    for each in (replica, other):
        each.say(workers(1, block_size=32))
    changes = client.watch_workers()
    with pytest.raises(CellMismatch, match=r"block size 32.*asked for model 'm', block size 16"):
        await following(changes)


async def test_a_replica_that_refuses_the_terms_is_loud(
    replica: ScriptedReplica, other: ScriptedReplica, client: AsyncIndexer
) -> None:
    for each in (replica, other):
        each.watch_refusal = (grpc.StatusCode.FAILED_PRECONDITION, "this cell's model is 'n'")
    changes = client.watch_workers()
    with pytest.raises(CellMismatch, match="this cell's model is 'n'"):
        await following(changes)


async def test_closing_the_client_ends_the_stream(
    replica: ScriptedReplica, other: ScriptedReplica, client: AsyncIndexer
) -> None:
    changes = client.watch_workers()
    for each in (replica, other):
        each.say(workers(1))
    await following(changes)
    rest = asyncio.ensure_future(anext(changes, None))
    await asyncio.sleep(0)
    await client.close()
    async with asyncio.timeout(PATIENCE_S):
        assert await rest is None


async def test_a_cancelled_watcher_is_cancelled(
    replica: ScriptedReplica, other: ScriptedReplica, client: AsyncIndexer
) -> None:
    changes = client.watch_workers()
    for each in (replica, other):
        each.say(workers(1))
    await following(changes)
    waiting = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
