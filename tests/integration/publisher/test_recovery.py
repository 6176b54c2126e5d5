"""A replica that lacks records heals by itself: real publisher, log and indexer processes."""

import asyncio
import re
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import redis.asyncio as redis

from kvatlas_hashing import reference
from kvatlas_testing.valkey import EmbeddedValkey
from kvatlas_wire.v1 import indexer_pb2, indexer_pb2_grpc
from tests.integration.indexer.process import IndexerProcess, fetch, indexer
from tests.reference.batch_decoder import decode_batch

KVATLAS = Path(sys.executable).with_name("kvatlas")
BLOCK_SIZE = 16  # the indexer fixture's
BLOCKS = 6
STREAM = "kvatlas:{blue}:log:0"
NO_RING = ("--replay-bytes-max", "0")
_POLLS = 600
Engine = Any  # the fixture's class; tests are no packages


def prompt(number: int) -> list[int]:
    return [number] * BLOCK_SIZE


def chain() -> Iterator[dict[str, Any]]:
    """Events that store a chain, one block each."""
    for number in range(1, BLOCKS + 1):
        yield {
            "type": "BlockStored",
            "block_hashes": [number],
            "parent_block_hash": number - 1 or None,
            "token_ids": prompt(number),
            "block_size": BLOCK_SIZE,
            "lora_id": None,
            "medium": "GPU",
        }


def sequence_hashes() -> list[int]:
    tokens = [token for number in range(1, BLOCKS + 1) for token in prompt(number)]
    return reference.sequence_hashes(reference.chunk_hashes(tokens, BLOCK_SIZE))


@asynccontextmanager
async def publishing(
    engine: Engine, log: redis.Redis, url: str, *more: str
) -> AsyncGenerator[list[bytes]]:
    """Run a publisher that has published the chain, one record per block; yield their entries."""
    process = await asyncio.create_subprocess_exec(
        *(KVATLAS, "publisher", "--engine", "vllm", "--events", engine.events),
        *("--replay", engine.replay, "--worker-id", "7", "--model", "model", "--cell", "blue"),
        *("--block-size", str(BLOCK_SIZE), "--log", url, "--grace-s", "1"),
        *("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--heartbeat-s", "0.1", *more),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        await engine.subscribed()
        ids: list[bytes] = []
        for number, event in enumerate(chain(), start=1):
            engine.send(event)
            ids = await _published(log, number, engine)
        yield ids
    finally:
        process.kill()
        await process.communicate()


async def _published(log: redis.Redis, events: int, engine: Engine) -> list[bytes]:
    """Wait until the log has this many records of events; return the ids of their entries."""
    for _ in range(_POLLS):
        engine.answer_replays()
        entries: Any = await log.xrange(STREAM)
        ids = [
            entry_id
            for entry_id, fields in entries
            if any(decode_batch(record).events for record in fields.values())
        ]
        if len(ids) == events:
            return ids
        await asyncio.sleep(0.02)
    raise AssertionError


async def attempts(process: IndexerProcess) -> dict[str, float]:
    _, page = await fetch(process.admin, "/metrics")
    found = re.findall(r'recovery_attempts_total\{outcome="(\w+)"\} (\S+)', page)
    return {outcome: float(count) for outcome, count in found if float(count)}


async def depth(process: IndexerProcess) -> int:
    async with grpc.aio.insecure_channel(process.listen) as channel:
        stub: indexer_pb2_grpc.IndexerAsyncStub = indexer_pb2_grpc.IndexerStub(channel)
        query = indexer_pb2.FindMatchesRequest(sequence_hashes=sequence_hashes())
        return max((await stub.FindMatches(query)).depths, default=0)


async def healed(process: IndexerProcess) -> dict[str, float]:
    """Wait until the replica knows the whole chain; the attempts that it took."""
    for _ in range(_POLLS):
        if await depth(process) == BLOCKS:
            return await attempts(process)
        await asyncio.sleep(0.05)
    raise AssertionError(await attempts(process))


@pytest.mark.parametrize(
    ("more", "outcome"), [((), "replayed"), (NO_RING, "snapshot")], ids=["ring", "no ring"]
)
async def test_a_replica_that_starts_on_a_trimmed_log_is_whole_before_it_is_ready(
    wire_engine: Engine, more: tuple[str, ...], outcome: str
) -> None:
    async with (
        EmbeddedValkey() as valkey,
        redis.from_url(valkey.url) as log,
        publishing(wire_engine, log, valkey.url, *more) as entries,
    ):
        await log.xtrim(STREAM, minid=entries[-2], approximate=False)
        async with indexer("--log", valkey.url) as process:
            await process.ready()
            assert await depth(process) == BLOCKS
            assert await attempts(process) == {outcome: 1}


async def test_one_lost_record_is_healed_by_a_replay(wire_engine: Engine) -> None:
    async with (
        EmbeddedValkey() as valkey,
        redis.from_url(valkey.url) as log,
        publishing(wire_engine, log, valkey.url) as entries,
    ):
        await log.xdel(STREAM, entries[2])
        async with indexer("--log", valkey.url) as process:
            await process.ready()
            assert await healed(process) == {"replayed": 1}


async def test_a_loss_beyond_the_publishers_ring_is_healed_by_a_snapshot(
    wire_engine: Engine,
) -> None:
    async with (
        EmbeddedValkey() as valkey,
        redis.from_url(valkey.url) as log,
        publishing(wire_engine, log, valkey.url, *NO_RING) as entries,
    ):
        await log.xdel(STREAM, *entries[1:4])
        async with indexer("--log", valkey.url) as process:
            await process.ready()
            assert await healed(process) == {"snapshot": 1}


async def test_an_address_that_does_not_answer_costs_few_attempts_and_the_replica_works_on(
    wire_engine: Engine,
) -> None:
    nowhere = ("--advertise", "127.0.0.1:1")
    async with (
        EmbeddedValkey() as valkey,
        redis.from_url(valkey.url) as log,
        publishing(wire_engine, log, valkey.url, *nowhere) as entries,
    ):
        await log.xtrim(STREAM, minid=entries[-2], approximate=False)
        async with indexer("--log", valkey.url, "--recover-ms", "2000") as process:
            await process.ready()
            counts = await attempts(process)
            assert set(counts) == {"unreachable"}
            assert counts["unreachable"] <= 5
            assert await depth(process) == 0
            assert (await process.stop())[0] == 0
