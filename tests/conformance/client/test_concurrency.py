"""Many questions at once, from threads and on event loops; questions that nobody waits for."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
import uvloop

from kvatlas_client import AsyncIndexer, Indexer, NoReplicaAnswered
from kvatlas_wire.v1 import indexer_pb2
from tests.conformance.client.scripted import ScriptedReplica

PATIENCE_MS = 30_000
QUESTIONS = 200


def echo(
    request: indexer_pb2.FindMatchesRequest, _: grpc.ServicerContext
) -> indexer_pb2.FindMatchesResponse:
    hashes = list(request.sequence_hashes)
    return indexer_pb2.FindMatchesResponse(
        worker_ids=hashes, dp_ranks=[0] * len(hashes), depths=[1] * len(hashes)
    )


@pytest.fixture
async def client(replica: ScriptedReplica) -> AsyncIterator[AsyncIndexer]:
    replica.find = echo
    async with AsyncIndexer([replica.address], deadline_ms=PATIENCE_MS) as made:
        yield made


def test_threads_share_a_client(replica: ScriptedReplica) -> None:
    replica.find = echo
    with (
        Indexer([replica.address], deadline_ms=PATIENCE_MS) as client,
        ThreadPoolExecutor(8) as pool,
    ):

        def ask(number: int) -> list[int]:
            return client.find_matches(sequence_hashes=[number]).worker_ids.tolist()

        answers = pool.map(ask, range(QUESTIONS))
        assert list(answers) == [[number] for number in range(QUESTIONS)]


async def ask_at_once(address: str) -> list[list[int]]:
    async with AsyncIndexer([address], deadline_ms=PATIENCE_MS) as client:
        answers = await asyncio.gather(
            *(client.find_matches(sequence_hashes=[number]) for number in range(QUESTIONS))
        )
    return [matches.worker_ids.tolist() for matches in answers]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_questions_share_an_event_loop(
    replica: ScriptedReplica,
    run: Callable[[Coroutine[Any, Any, list[list[int]]]], list[list[int]]],
) -> None:
    replica.find = echo
    answers = run(ask_at_once(replica.address))
    assert answers == [[number] for number in range(QUESTIONS)]


async def test_a_cancelled_question_harms_no_other(
    replica: ScriptedReplica, client: AsyncIndexer
) -> None:
    assert (await client.find_matches(sequence_hashes=[1])).worker_ids.tolist() == [1]
    replica.find = replica.hang
    hanging = asyncio.ensure_future(client.find_matches(sequence_hashes=[2]))
    async with asyncio.timeout(PATIENCE_MS / 1e3):
        await asyncio.to_thread(replica.hanging.wait)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
    replica.find = echo
    assert (await client.find_matches(sequence_hashes=[3])).worker_ids.tolist() == [3]
    assert client.replicas()[0].failures == 0


async def test_closing_ends_questions_under_way(
    replica: ScriptedReplica, client: AsyncIndexer
) -> None:
    replica.find = replica.hang
    hanging = asyncio.ensure_future(client.find_matches(sequence_hashes=[2]))
    async with asyncio.timeout(PATIENCE_MS / 1e3):
        await asyncio.to_thread(replica.hanging.wait)
        await client.close()
        with pytest.raises(NoReplicaAnswered, match="closed"):
            await hanging
