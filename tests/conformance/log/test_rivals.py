"""Two publishers with one worker id, as processes, on every transport: the newer one wins."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Protocol

import pytest

from kvatlas_events import Claim, WorkerKey, open_claims
from kvatlas_testing.valkey import EmbeddedValkey
from kvatlas_testing.valkey_cluster import EmbeddedValkeyCluster
from tests.integration.publisher.conftest import WireEngine
from tests.integration.publisher.test_indexer_epochs import indexer
from tests.integration.publisher.test_process import publisher, ready, words

CELL, MODEL, BLOCK_SIZE = "blue", "model", "16"  # the indexer's


class KafkaTransport(Protocol):
    address: str

    async def start(self) -> None: ...


@pytest.fixture
def engine() -> Generator[WireEngine, None, None]:
    engine = WireEngine()
    yield engine
    engine.close()


@pytest.fixture
def servers(
    kafka_transport: Callable[[], KafkaTransport], redis_cluster: EmbeddedValkeyCluster
) -> Callable[[str], AsyncGenerator[str, None]]:
    async def start(kind: str) -> AsyncGenerator[str, None]:
        match kind:
            case "redis":
                async with EmbeddedValkey() as valkey:
                    yield valkey.url
            case "redis cluster":
                if not redis_cluster.is_running:
                    redis_cluster.start()
                yield redis_cluster.url
            case "kafka":
                kafka = kafka_transport()
                await kafka.start()
                yield f"kafka://{kafka.address}"
            case _:
                with indexer() as (_, address):
                    yield f"grpc://{address}"

    return start


@pytest.fixture(params=["redis", "redis cluster", "kafka", "grpc"])
async def url(
    request: pytest.FixtureRequest, servers: Callable[[str], AsyncGenerator[str, None]]
) -> AsyncGenerator[str, None]:
    async for url in servers(request.param):
        yield url


@pytest.fixture(params=["redis", "kafka"])
async def log_url(
    request: pytest.FixtureRequest, servers: Callable[[str], AsyncGenerator[str, None]]
) -> AsyncGenerator[str, None]:
    async for url in servers(request.param):
        yield url


def told(engine: WireEngine, url: str, cell: str) -> list[str]:
    given = words(engine, "--model", MODEL, "--block-size", BLOCK_SIZE, log=url)
    given[given.index("--cell") + 1] = cell
    return given


def cell_at(url: str) -> str:
    """Return a cell that no other test uses, where there can be several."""
    return CELL if url.startswith("grpc:") else f"rivals-{time.time_ns()}"


async def test_the_older_one_exits_and_names_the_newer_one(engine: WireEngine, url: str) -> None:
    given = told(engine, url, cell_at(url))
    async with publisher(*given) as older:
        await ready(older)
        await engine.subscribed()
        async with publisher(*given) as newer:
            await ready(newer)
            await engine.until(lambda: older.returncode is not None)
            assert older.stderr is not None
            *_, last = (await older.stderr.read()).decode().splitlines()
            assert older.returncode == 1
            assert last.startswith(f"kvatlas publisher: {url}")
            assert "worker 7/0 is in epoch " in last
            if not url.startswith("grpc:"):
                assert f"-{newer.pid} already; ours is " in last
            assert newer.returncode is None


async def test_who_starts_with_a_clock_behind_the_logs_newest_epoch_opens_above_it(
    engine: WireEngine, log_url: str
) -> None:
    cell = cell_at(log_url)
    register = open_claims(log_url, cell=cell)
    assert register is not None
    ahead_us = time.time_ns() // 1_000 + 300_000_000
    before = Claim(WorkerKey(7, 0), ahead_us, 1, "before")
    assert await register.claim(before) is None
    async with publisher(*told(engine, log_url, cell)) as process:
        await ready(process)
        rival: Claim | None = None
        async with asyncio.timeout(30):
            while rival is None:
                engine.answer_replays()
                await asyncio.sleep(0.05)
                rival = await register.claim(before)
        assert rival.epoch == ahead_us + 1
        assert process.returncode is None
    await register.close()
