"""`kvatlas verify` on real processes: an engine, its publisher, a log, and replicas that may lie."""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import grpc.aio
import pytest

from kvatlas_events import LogReader, open_reader, open_writers
from kvatlas_testing.mock_engine import EngineProcess, running_engine
from kvatlas_testing.valkey import EmbeddedValkey
from kvatlas_wire import open_record, seal_record
from kvatlas_wire.v1 import events_pb2 as pb
from kvatlas_wire.v1 import indexer_pb2 as rpc
from kvatlas_wire.v1 import indexer_pb2_grpc as stubs
from tests.integration.indexer.process import KVATLAS, IndexerProcess, indexer

PROMPTS, PROMPT_TOKENS, BLOCK_SIZE = 8, 160, 16
_POLLS = 600


@dataclass
class Stage:
    """The processes: one engine, its publisher, and their log."""

    engine: EngineProcess
    publisher: str
    log: EmbeddedValkey


@asynccontextmanager
async def stage() -> AsyncGenerator[Stage]:
    words = ("--model", "model", "--block-size", str(BLOCK_SIZE), "--speedup", "inf")
    async with EmbeddedValkey() as valkey, running_engine(*words, "--blocks", "512") as engine:
        process = await asyncio.create_subprocess_exec(
            *(KVATLAS, "publisher", "--engine", "vllm", "--worker-id", "7", "--model", "model"),
            *("--events", engine.events, "--replay", engine.replay, "--engine-url", engine.url),
            *("--block-size", str(BLOCK_SIZE), "--log", valkey.url, "--cell", "blue"),
            *("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--heartbeat-s", "0.1"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            assert process.stdout is not None
            facts: dict[str, Any] = json.loads(await process.stdout.readline())
            yield Stage(engine, str(facts["listen"]), valkey)
        finally:
            process.kill()
            await process.communicate()


async def work(engine: EngineProcess) -> None:
    """Fill the engine's cache with prompts that share half of their blocks."""
    async with aiohttp.ClientSession() as session:
        for number in range(PROMPTS):
            shared = [1] * (PROMPT_TOKENS // 2)
            own = [100 + number] * (PROMPT_TOKENS // 2)
            body = {"model": "model", "prompt": shared + own, "max_tokens": 1}
            async with session.post(f"{engine.url}/v1/completions", json=body) as response:
                assert response.status == 200, await response.text()


async def holds(process: IndexerProcess, least: int) -> None:
    """Wait until the replica is ready and holds so much."""
    await process.ready()
    async with grpc.aio.insecure_channel(process.listen) as channel:
        stub: stubs.IndexerAsyncStub = stubs.IndexerStub(channel)
        for _ in range(_POLLS):
            if (await stub.GetStatus(rpc.GetStatusRequest())).memberships >= least:
                return
            await asyncio.sleep(0.05)
    raise AssertionError


async def verify(*words: str) -> tuple[int, list[str]]:
    process = await asyncio.create_subprocess_exec(
        *(KVATLAS, "verify", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    assert err == b""
    return process.returncode, out.decode().splitlines()


def sides(replicas: Sequence[IndexerProcess], publisher: str | None = None) -> list[str]:
    words = [word for each in replicas for word in ("--indexer", each.listen)]
    return words + (["--publisher", publisher] if publisher else [])


def doctored(record: bytes, bits: Iterator[int]) -> bytes:
    """The same record with another hash for every chain's last block, and nothing to find out by.

    Each differs in another bit: changes alike would cancel out in a digest.
    """
    batch = pb.Batch.FromString(open_record(record))
    for event in batch.events:
        if event.store.sequence_hashes:
            event.store.sequence_hashes[-1] ^= 1 << next(bits)
    if batch.snapshot.sequence_hashes:
        assert batch.snapshot.parts == 1
        batch.snapshot.sequence_hashes[-1] ^= 0xFF
        batch.snapshot.digests[0].digest ^= 0xFF
    if batch.HasField("heartbeat"):
        batch.heartbeat.publisher_rpc = ""
        del batch.heartbeat.digests[:]
    return seal_record(batch.SerializeToString())


async def everything(log: LogReader) -> list[bytes]:
    records: list[bytes] = []
    while True:
        part = await log.read(0.1)
        records += part.records
        if part.caught_up:
            await log.close()
            return records


BLOCKS = PROMPT_TOKENS // BLOCK_SIZE // 2 * (PROMPTS + 1)


async def test_replicas_and_a_publisher_that_agree_are_whole() -> None:
    async with stage() as on:
        await work(on.engine)
        words = ("--log", on.log.url)
        async with indexer(*words) as one, indexer(*words) as other:
            for each in (one, other):
                await holds(each, BLOCKS)
            status, lines = await verify(*sides([one, other], on.publisher))
    assert (status, len(lines)) == (0, 1), lines
    assert lines[0].startswith("whole: 2 replicas agree on 1 workers, ")
    assert lines[0].endswith("1 of the workers agree with their publishers")


@pytest.mark.parametrize("against", ["replica", "publisher"])
async def test_a_replica_fed_a_doctored_log_differs(against: str) -> None:
    async with stage() as on, EmbeddedValkey() as other_log:
        await work(on.engine)
        async with indexer("--log", on.log.url) as good:
            await holds(good, BLOCKS)
            reader = open_reader(on.log.url, cell="blue")
            assert reader is not None
            (writer,) = open_writers(other_log.url, cell="blue")
            bits = itertools.count()
            records = [doctored(record, bits) for record in await everything(reader)]
            await writer.append(records)
            await writer.close()
            async with indexer("--log", other_log.url) as bad:
                await holds(bad, BLOCKS)
                if against == "replica":
                    status, lines = await verify(*sides([good, bad]))
                else:
                    status, lines = await verify(*sides([bad], on.publisher))
    assert status == 1, lines
    assert lines[-1] == "differ: 1 of 1 workers"
    assert lines[0].startswith("worker 7/0 device, event ")
    assert " only at " in lines[0]


async def test_a_worker_that_no_replica_knows_is_missed_by_its_publisher() -> None:
    async with stage() as on, EmbeddedValkey() as other_log:
        await work(on.engine)
        words = ("--log", other_log.url)
        async with indexer(*words) as one, indexer(*words) as other:
            for each in (one, other):
                await each.ready()
            status, lines = await verify(*sides([one, other], on.publisher))
    assert status == 1, lines
    assert lines[-1] == "differ: 1 of 1 workers"
    assert f"worker 7/0: {one.listen} does not know it, {other.listen} does not know it" in lines[0]
    assert f"{on.publisher} is at event " in lines[0]


async def test_a_publisher_that_is_not_named_is_found_where_one_replica_lacks_its_worker() -> None:
    async with EmbeddedValkey() as other_log, AsyncExitStack() as while_it_speaks:
        on = await while_it_speaks.enter_async_context(stage())
        await work(on.engine)
        async with (
            indexer("--log", on.log.url) as good,
            indexer("--log", other_log.url) as lacking,
        ):
            await holds(good, BLOCKS)
            await lacking.ready()
            asked = await verify(*sides([good, lacking]))
            await while_it_speaks.aclose()
            alone = await verify(*sides([good, lacking]))
    for status, lines in (asked, alone):
        assert (status, lines[-1]) == (1, "differ: 1 of 1 workers"), lines
        assert lines[0].startswith("worker 7/0: ")
        assert f"{lacking.listen} does not know it" in lines[0]
    assert f"{on.publisher} is at event " in asked[1][0]
    assert f"its publisher cannot be asked: {on.publisher}: UNAVAILABLE" in alone[1][0]


async def test_a_publisher_that_is_not_named_is_no_side_where_nobody_lacks_its_worker() -> None:
    async with stage() as on, indexer("--log", on.log.url) as one:
        await work(on.engine)
        async with indexer("--log", on.log.url) as other:
            for each in (one, other):
                await holds(each, BLOCKS)
            status, lines = await verify(*sides([one, other]))
    assert (status, len(lines)) == (0, 1), lines
    assert lines[0].startswith("whole: 2 replicas agree on 1 workers, ")
    assert lines[0].endswith("; 0 of the workers agree with their publishers")


async def test_who_is_gone_is_named_and_nothing_is_told() -> None:
    async with stage() as on, indexer("--log", on.log.url) as one:
        await one.ready()
        async with indexer("--log", on.log.url) as other:
            await other.ready()
        status, lines = await verify(*sides([one, other]))
    assert (status, len(lines)) == (2, 1), lines
    assert lines[0].startswith(f"could not tell: {other.listen}: UNAVAILABLE")
