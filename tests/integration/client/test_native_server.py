"""The client against the indexer's own native server: what a frontend really talks to."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from kvatlas_client import (
    AsyncIndexer,
    CellMismatch,
    CellTerms,
    Indexer,
    NoReplicaAnswered,
    WorkerKey,
    WorkerState,
)
from kvatlas_hashing import chunk_hashes, sequence_hashes
from kvatlas_native import Cell, CellServer
from kvatlas_wire.v1 import events_pb2 as pb
from tests.unit.cell.record_source import CONTRACT, RecordSource, store

PATIENCE_MS = 30_000
NOW_MS = 10_000_000
TOKENS = np.arange(100, dtype=np.uint32)
PREFIXES: list[int] = sequence_hashes(chunk_hashes(TOKENS, 16)).tolist()


class Replica:
    """A cell and its server."""

    def __init__(self) -> None:
        self.cell = Cell(
            cell="blue",
            model="model",
            block_size=16,
            hash_contract=CONTRACT,
            replica_id="replica",
            version="test",
            lease_ms=1_000_000,
            hold_back_batches_max=8,
            hold_back_ms=200,
            memory_bytes_max=1 << 30,
        )
        self.server = CellServer(self.cell, "127.0.0.1", 0, threads=1)
        self.address = "{}:{}".format(*self.server.address)

    def feed(self, *records: bytes) -> None:
        applied = self.cell.apply(
            records,
            transport="memory",
            appended_unix_ms=[NOW_MS] * len(records),
            now_unix_ms=NOW_MS,
        )
        assert applied.first_rejection is None


@pytest.fixture
def replica() -> Iterator[Replica]:
    made = Replica()
    made.feed(
        RecordSource(worker_id=1).events(store(*PREFIXES[:2])),
        RecordSource(worker_id=2, dp_rank=3).events(store(*PREFIXES)),
    )
    made.cell.set_ready(True)
    yield made
    made.server.stop(0.1)


def test_threads_get_who_holds_a_prompt(replica: Replica) -> None:
    with Indexer(
        [replica.address], model="model", block_size=16, deadline_ms=PATIENCE_MS
    ) as client:
        for matches in (
            client.find_matches(tokens=TOKENS),
            client.find_matches(chunk_hashes=chunk_hashes(TOKENS, 16), exact=True),
            client.find_matches(sequence_hashes=PREFIXES),
        ):
            assert matches.worker_ids.tolist() == [2, 1]
            assert matches.dp_ranks.tolist() == [3, 0]
            assert matches.depths.tolist() == [6, 2]
        assert client.find_matches(tokens=TOKENS, limit=1).worker_ids.tolist() == [2]
        assert len(client.find_matches(tokens=TOKENS, cache_salt="tenant")) == 0
        status = client.status(replica.address)
        assert status.ready
        assert status.terms == CellTerms("model", 16, CONTRACT)
        assert status.memberships == 8
        assert [worker.info.key for worker in status.workers] == [(1, 0), (2, 3)]


async def test_an_event_loop_gets_who_holds_a_prompt(replica: Replica) -> None:
    async with AsyncIndexer(
        [replica.address], model="model", block_size=16, deadline_ms=PATIENCE_MS
    ) as client:
        answers = await asyncio.gather(
            *(client.find_matches(tokens=TOKENS[: 16 * blocks]) for blocks in range(7))
        )
        for blocks, matches in enumerate(answers):
            depths = sorted((min(blocks, 2), blocks), reverse=True) if blocks else []
            assert matches.depths.tolist() == depths


def test_a_replica_that_is_not_ready_does_not_answer(replica: Replica) -> None:
    replica.cell.set_ready(False)
    with (
        Indexer([replica.address], deadline_ms=PATIENCE_MS) as client,
        pytest.raises(NoReplicaAnswered) as caught,
    ):
        client.find_matches(chunk_hashes=[1])
    assert [failure.code for failure in caught.value.failures] == [14]


@pytest.mark.parametrize(
    "terms",
    [{"model": "other"}, {"model": "model", "block_size": 32}, {"hash_contract": "other"}],
    ids=["model", "block_size", "hash_contract"],
)
async def test_another_cell_is_loud_for_questions_and_watchers(
    replica: Replica, terms: dict[str, str | int]
) -> None:
    client = AsyncIndexer(
        [replica.address],
        deadline_ms=PATIENCE_MS,
        **terms,  # pyright: ignore[reportArgumentType] - names and types go together above
    )
    async with client:
        with pytest.raises(CellMismatch, match=str(next(reversed(terms.values())))):
            await client.find_matches(chunk_hashes=[1])
        with pytest.raises(CellMismatch, match=str(next(reversed(terms.values())))):
            await anext(client.watch_workers())


async def test_watchers_see_the_workers_and_their_end(replica: Replica) -> None:
    leaving = RecordSource(worker_id=1)
    leaving.last_event_id = 1
    gone = pb.Shutdown(reason=pb.Shutdown.REASON_ENGINE_GONE)
    async with (
        asyncio.timeout(PATIENCE_MS / 1e3),
        AsyncIndexer([replica.address], model="model", block_size=16) as client,
    ):
        changes = client.watch_workers()
        first = await anext(changes)
        assert first.full
        assert {w.key: (w.state, w.blocks) for w in first.workers} == {
            WorkerKey(1, 0): (WorkerState.LIVE, 2),
            WorkerKey(2, 3): (WorkerState.LIVE, 6),
        }
        replica.feed(leaving.events(pb.Event(shutdown=gone)))
        async for change in changes:
            assert not change.full
            if change.removed:
                assert change.removed == (WorkerKey(1, 0),)
                break
        await changes.aclose()


def test_a_replica_that_stops_is_replaced(replica: Replica) -> None:
    other = Replica()
    other.cell.set_ready(True)
    addresses = [replica.address, other.address]
    with Indexer(addresses, deadline_ms=PATIENCE_MS) as client:
        answered = {client.find_matches(chunk_hashes=[1]).replica for _ in range(4)}
        assert answered == set(addresses)
        other.server.stop(0.1)
        answered = {client.find_matches(chunk_hashes=[1]).replica for _ in range(4)}
        assert answered == {replica.address}
