"""A starting publisher asks its indexers which epochs they have seen."""

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from kvatlas_events import WorkerKey
from kvatlas_native import CellServer
from kvatlas_publisher.ownership.indexer_epochs import epochs_at_indexers
from kvatlas_publisher.state.state_dir import CellWorker
from tests.integration.publisher.test_process import publisher, words
from tests.unit.cell.bench import Bench
from tests.unit.cell.record_source import RecordSource, store

Engine = Any  # the fixture's class; tests are no packages
NOBODY = "127.0.0.1:1"


@contextmanager
def indexer(*sources: RecordSource) -> Generator[tuple[Bench, str]]:
    """A cell behind its real server that has heard these speak."""
    bench = Bench()
    bench.now_ms = time.time_ns() // 1_000_000
    bench.feed(*(source.events(store(1)) for source in sources))
    server = CellServer(bench.cell, "127.0.0.1", 0, threads=1)
    try:
        yield bench, "{}:{}".format(*server.address)
    finally:
        server.stop(1.0)


async def test_the_highest_epoch_at_any_indexer_is_returned() -> None:
    with (
        indexer(RecordSource(1, epoch=50), RecordSource(2, epoch=60)) as (_, one),
        indexer(RecordSource(1, epoch=51)) as (_, other),
    ):
        seen = await epochs_at_indexers([one, other, one])
    assert seen == {
        CellWorker("blue", WorkerKey(1, 0)): 51,
        CellWorker("blue", WorkerKey(2, 0)): 60,
    }


async def test_indexers_that_do_not_answer_are_logged_and_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done = asyncio.Event()

    async def mute(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    async with server:
        silent = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with indexer(RecordSource(1, epoch=50)) as (_, answering):
            seen = await epochs_at_indexers([NOBODY, silent, answering])
        done.set()
    assert seen == {CellWorker("blue", WorkerKey(1, 0)): 50}
    assert f"cannot get the epochs that indexer {silent} has seen: no answer within" in caplog.text
    assert f"cannot get the epochs that indexer {NOBODY} has seen: UNAVAILABLE" in caplog.text


async def test_an_indexer_follows_a_publisher_whose_clock_is_behind(
    wire_engine: Engine,
) -> None:
    ahead_us = time.time_ns() // 1_000 + 300_000_000
    with indexer(RecordSource(7, epoch=ahead_us)) as (bench, address):
        given = words(
            wire_engine, "--model", "model", "--block-size", "16", log=f"grpc://{address}"
        )
        given[given.index("--cell") + 1] = "blue"
        async with publisher(*given) as process:
            assert process.stdout is not None
            await process.stdout.readline()
            await wire_engine.until(lambda: bench.worker(7).info.epoch > ahead_us)
    assert bench.worker(7).info.epoch == ahead_us + 1
