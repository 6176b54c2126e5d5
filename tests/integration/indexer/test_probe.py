"""A log that answers every read and refuses writes: leases stand still, and no worker is lost."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import redis.asyncio as redis

from kvatlas_events import LogUnavailable, LogWriter, open_writers
from kvatlas_testing.valkey import EmbeddedValkey
from tests.e2e.test_replica_life import depths, metric, reaches
from tests.integration.indexer.process import IndexerProcess, fetch, indexer
from tests.unit.cell.record_source import RecordSource, store

LEASE_MS = 1_500
ALIVE = 'log_alive{transport="redis"}'
AGE_MS = 'log_probe_age_ms{transport="redis"}'
REFUSED = 'log_probes_refused_total{transport="redis"}'


@asynccontextmanager
async def speaking(writer: LogWriter, source: RecordSource) -> AsyncGenerator[None]:
    """Append heartbeats for ever; repeat refused ones, like a publisher."""

    async def speak() -> None:
        while True:
            with contextlib.suppress(LogUnavailable):  # the next one follows
                await writer.append([source.heartbeat([1])])
            await asyncio.sleep(0.1)

    task = asyncio.create_task(speak())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def set_memory(client: Any, bytes_max: int) -> None:  # noqa: ANN401 - it has no types
    await client.execute_command("CONFIG", "SET", "maxmemory", bytes_max)


async def falls(process: IndexerProcess, name: str) -> None:
    for _ in range(600):
        if await metric(process, name) == 0:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(name)


async def test_a_log_without_free_memory_makes_no_worker_stale() -> None:
    source = RecordSource()
    async with EmbeddedValkey() as valkey, redis.from_url(valkey.url) as client:
        (writer,) = open_writers(valkey.url, cell="blue")
        await writer.append([source.events(store(1))])
        async with (
            indexer("--log", valkey.url, "--lease-ms", str(LEASE_MS)) as process,
            speaking(writer, source),
        ):
            await process.ready()
            assert await depths(process, 1) == {1: 1}
            # The server evicts nothing by default: reads are answered, appends are refused.
            await set_memory(client, 1)
            await falls(process, ALIVE)
            await reaches(process, AGE_MS, 2 * LEASE_MS)
            assert await metric(process, REFUSED) > 0
            assert await metric(process, ALIVE) == 0
            assert await depths(process, 1) == {1: 1}
            await set_memory(client, 0)
            await reaches(process, ALIVE, 1)
            assert await depths(process, 1) == {1: 1}
            assert await metric(process, "leases_ended_total") == 0
        await writer.close()


async def test_a_worker_that_falls_silent_while_the_log_works_becomes_stale() -> None:
    source = RecordSource()
    async with EmbeddedValkey() as valkey:
        (writer,) = open_writers(valkey.url, cell="blue")
        async with indexer("--log", valkey.url, "--lease-ms", "500") as process:
            await process.ready()
            await writer.append([source.events(store(1)), source.heartbeat([1])])
            await reaches(process, "leases_ended_total", 1)
            assert await depths(process, 1) == {}
        await writer.close()


async def test_probes_can_be_off_for_an_account_that_may_only_read() -> None:
    async with (
        EmbeddedValkey() as valkey,
        indexer("--log", valkey.url, "--probe-ms", "0") as process,
    ):
        await process.ready()
        assert await metric(process, ALIVE) == 1
        _, page = await fetch(process.admin, "/metrics")
        assert "log_probe_age_ms{" not in page
