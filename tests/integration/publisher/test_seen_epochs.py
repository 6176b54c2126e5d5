"""A publisher that starts asks the indexers it sends to which epochs they have seen."""

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from kvatlas_events import Worker
from kvatlas_native import CellServer
from kvatlas_publisher.seen_epochs import seen_epochs
from kvatlas_publisher.state_dir import Owner
from tests.integration.publisher.test_process import publisher, words
from tests.unit.cell.bench import Bench
from tests.unit.cell.speaker import Speaker, store

Engine = Any  # the fixture's class; tests are no packages
NOBODY = "127.0.0.1:1"


@contextmanager
def indexer(*speakers: Speaker) -> Generator[tuple[Bench, str]]:
    """A cell behind its real server that has heard these speak."""
    bench = Bench()
    bench.now_ms = time.time_ns() // 1_000_000
    bench.feed(*(speaker.events(store(1)) for speaker in speakers))
    server = CellServer(bench.cell, "127.0.0.1", 0, threads=1)
    try:
        yield bench, "{}:{}".format(*server.address)
    finally:
        server.stop(1.0)


async def test_the_highest_that_any_indexer_follows_counts() -> None:
    with (
        indexer(Speaker(1, epoch=50), Speaker(2, epoch=60)) as (_, one),
        indexer(Speaker(1, epoch=51)) as (_, other),
    ):
        seen = await seen_epochs([one, other, one])
    assert seen == {Owner("blue", Worker(1, 0)): 51, Owner("blue", Worker(2, 0)): 60}


async def test_who_is_not_there_or_says_nothing_is_gone_on_without(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done = asyncio.Event()

    async def mute(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    async with server:
        silent = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with indexer(Speaker(1, epoch=50)) as (_, answering):
            seen = await seen_epochs([NOBODY, silent, answering])
        done.set()
    assert seen == {Owner("blue", Worker(1, 0)): 50}
    assert (
        f"indexer {silent} does not say which epochs it has seen: no answer within" in caplog.text
    )
    assert f"indexer {NOBODY} does not say which epochs it has seen: UNAVAILABLE" in caplog.text


async def test_a_publisher_whose_clock_is_behind_an_indexer_is_heard_there(
    wire_engine: Engine,
) -> None:
    ahead_us = time.time_ns() // 1_000 + 300_000_000
    with indexer(Speaker(7, epoch=ahead_us)) as (bench, address):
        given = words(
            wire_engine, "--model", "model", "--block-size", "16", log=f"grpc://{address}"
        )
        given[given.index("--cell") + 1] = "blue"
        async with publisher(*given) as process:
            assert process.stdout is not None
            await process.stdout.readline()
            await wire_engine.until(lambda: bench.worker(7).info.epoch > ahead_us)
    assert bench.worker(7).info.epoch == ahead_us + 1
