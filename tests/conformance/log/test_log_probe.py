"""Probes of a log, on real servers: marks come back to all readers, and disturb no record."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pytest
import redis.asyncio as redis

from kvatlas_events import (
    LogProber,
    LogReader,
    LogUnavailable,
    LogWriter,
    open_prober,
    open_reader,
    open_writers,
)
from kvatlas_testing.valkey import EmbeddedValkey


class KafkaTransport(Protocol):
    address: str
    cell: str


@dataclass
class Log:
    writer: LogWriter
    reader: LogReader
    prober: LogProber


@asynccontextmanager
async def opened(url: str, cell: str) -> AsyncGenerator[Log, None]:
    (writer,) = open_writers(url, cell=cell)
    reader, prober = open_reader(url, cell=cell), open_prober(url, cell=cell)
    assert reader is not None
    assert prober is not None
    try:
        yield Log(writer, reader, prober)
    finally:
        for each in (writer, reader, prober):
            await each.close()


@pytest.fixture(params=["redis", "kafka"])
async def log(
    request: pytest.FixtureRequest, kafka_transport: Callable[[], KafkaTransport]
) -> AsyncGenerator[Log, None]:
    if request.param == "redis":
        async with EmbeddedValkey() as valkey, opened(valkey.url, "test") as log:
            yield log
        return
    transport = kafka_transport()
    async with opened(f"kafka://{transport.address}", transport.cell) as log:
        yield log


def test_between_a_publisher_and_an_indexer_is_no_log_to_probe() -> None:
    assert open_prober("grpc:", cell="test") is None


async def test_marks_come_back_once_from_each_part_and_are_neither_records_nor_foreign(
    log: Log,
) -> None:
    await log.writer.append([b"before"])
    parts = await log.prober.append_probe(b"me/1")
    await log.writer.append([b"after"])
    again = await log.prober.append_probe(b"me/2")
    assert parts == again
    assert parts
    records, probes = list[bytes](), list[tuple[int, bytes]]()
    async with asyncio.timeout(20):
        while len(records) < 2 or len(probes) < 2 * len(parts):
            slice_ = await log.reader.read(1)
            records += slice_.records
            probes += slice_.probes
            assert (slice_.foreign, slice_.trimmed) == (0, False)
            assert len(slice_.appended_unix_ms) == len(slice_.records)
    assert sorted(records) == [b"after", b"before"]
    assert sorted(probes) == sorted((part, mark) for part in parts for mark in (b"me/1", b"me/2"))
    slice_ = await log.reader.read(0)
    assert (slice_.records, slice_.probes, slice_.at_head) == ([], [], True)


async def test_a_server_that_takes_no_writes_is_shown_while_reads_answer() -> None:
    async with EmbeddedValkey() as valkey, opened(valkey.url, "test") as log:
        await log.prober.append_probe(b"me/1")
        assert (await log.reader.read(0)).probes == [(0, b"me/1")]
        client: Any
        async with redis.from_url(valkey.url) as client:
            await client.execute_command("CONFIG", "SET", "min-replicas-to-write", 1)
            with pytest.raises(LogUnavailable, match="NOREPLICAS"):
                await log.prober.append_probe(b"me/2")
            assert (await log.reader.read(0)).at_head
            await client.execute_command("CONFIG", "SET", "min-replicas-to-write", 0)
        await log.prober.append_probe(b"me/3")
        assert (await log.reader.read(0)).probes == [(0, b"me/3")]
