"""The promises of every transport of the event log, checked on real servers.

Redis runs on the embedded Valkey: alone, in shards, as a cluster of three nodes and behind TLS with
an account of few rights; and also on the server that KVATLAS_TEST_REDIS names, which is not
restarted. Kafka runs on one server for all of its tests, each in a cell of its own. The
receiver of the direct transport is a gRPC server that keeps what it is sent in a memory log, one
per start.
"""

import asyncio
import contextlib
import itertools
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Protocol

import pytest
from grpc import aio

from kvatlas_events import LogPosition, LogReader, LogUnavailable, LogWriter, RecordsRejected
from kvatlas_events.redis.reader import RedisReader
from kvatlas_events.urls import open_reader, open_writers
from kvatlas_testing.memory_log import MemoryLog
from kvatlas_testing.valkey_cluster import EmbeddedValkeyCluster
from kvatlas_wire.v1 import indexer_pb2 as pb
from kvatlas_wire.v1 import indexer_pb2_grpc
from tests.conformance.log import redis_transports
from tests.conformance.log.outages import read_records

REDIS_BY_URL = os.environ.get("KVATLAS_TEST_REDIS")
WAIT_S = 10.0  # for what will come; a test that waits so long has failed


class Transport(Protocol):
    """One log, with its server in the test's hands."""

    position: str
    """The form of a position's entry."""
    ours_to_stop: bool
    repeats_what_was_given_up: bool
    """Whether an append that failed may be stored all the same, ahead of its retry."""

    async def start(self) -> None:
        """Start the server, without what it held before."""
        ...

    async def stop(self) -> None: ...

    def writer(self) -> LogWriter: ...

    def reader(self, position: LogPosition | None = None) -> LogReader: ...


class KafkaTransport(Transport, Protocol):
    async def close(self) -> None: ...


class Memory:
    position = "5"
    ours_to_stop = True
    repeats_what_was_given_up = False

    def __init__(self) -> None:
        self.log = MemoryLog(records_max=512)
        self.log.outage = "not started"

    async def start(self) -> None:
        self.log.outage = None

    async def stop(self) -> None:
        self.log.outage = "stopped"

    def writer(self) -> LogWriter:
        return self.log.writer()

    def reader(self, position: LogPosition | None = None) -> LogReader:
        return self.log.reader(position)


class Ingest(indexer_pb2_grpc.IndexerServicer):
    def __init__(self, log: MemoryLog) -> None:
        self.log = log

    async def Ingest(  # noqa: N802 - the RPC's name  # pyright: ignore[reportIncompatibleMethodOverride] - its asyncio form
        self, request_iterator: AsyncIterator[pb.IngestRequest], context: object
    ) -> AsyncGenerator[pb.IngestResponse, None]:
        del context
        async for request in request_iterator:
            self.log.append(request.records)
            yield pb.IngestResponse(accepted=len(request.records))


class Grpc:
    position = "5"
    ours_to_stop = True
    repeats_what_was_given_up = False

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.port = 0
        self.server: aio.Server | None = None
        self.open: list[LogWriter] = []

    async def start(self) -> None:
        self.server = aio.server(options=[("grpc.so_reuseport", 0)])
        servicer = Ingest(self.log)  # pyright: ignore[reportAbstractUsage] - the rest is unimplemented
        indexer_pb2_grpc.add_IndexerServicer_to_server(servicer, self.server)
        self.port = self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self.server.start()

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop(grace=None)
            self.server = None

    def writer(self) -> LogWriter:
        (writer,) = open_writers(f"grpc://127.0.0.1:{self.port}", cell="test")
        self.open.append(writer)
        return writer

    def reader(self, position: LogPosition | None = None) -> LogReader:
        return self.log.reader(position)

    async def close(self) -> None:
        for each in self.open:
            await each.close()
        await self.stop()


REDIS = ["redis", "redis in shards", "redis cluster", "redis by TLS"]


@pytest.fixture(
    params=["memory", *REDIS, "kafka", "grpc", *(["redis by URL"] if REDIS_BY_URL else [])],
)
async def stopped(
    request: pytest.FixtureRequest,
    kafka_transport: Callable[[], "KafkaTransport"],
    redis_cluster: EmbeddedValkeyCluster,
    tmp_path: Path,
) -> AsyncGenerator[Transport, None]:
    """A transport whose server has an address and need not run yet."""
    match request.param:
        case "memory":
            yield Memory()
        case "grpc":
            transport = Grpc()
            await transport.start()  # for a port
            await transport.stop()
            yield transport
            await transport.close()
        case "kafka":
            on_kafka = kafka_transport()
            yield on_kafka
            await on_kafka.close()
        case kind:
            redis = {
                "redis": redis_transports.alone,
                "redis in shards": lambda: redis_transports.alone(shards=4),
                "redis cluster": lambda: redis_transports.in_cluster(redis_cluster),
                "redis by TLS": lambda: redis_transports.with_tls(tmp_path),
                "redis by URL": lambda: redis_transports.by_url(REDIS_BY_URL or ""),
            }[kind]
            async with redis() as on_redis:
                yield on_redis


@pytest.fixture
async def transport(stopped: Transport) -> Transport:
    await stopped.start()
    return stopped


@pytest.fixture
async def restartable(stopped: Transport) -> Transport:
    """A transport whose server does not run yet."""
    if not stopped.ours_to_stop:
        pytest.skip("the server that these tests were given is not ours to stop")
    await stopped.stop()
    return stopped


def records(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix} {number}".encode() for number in range(count)]


async def append(writer: LogWriter, batch: Sequence[bytes]) -> None:
    """Append as a publisher does: again and again while the log is away."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await writer.append(batch)
            except LogUnavailable:
                await asyncio.sleep(0.01)
            else:
                return


async def test_records_arrive_complete_and_in_order_at_every_reader(transport: Transport) -> None:
    writer, readers = transport.writer(), [transport.reader(), transport.reader()]
    sent = records("r", 60)
    for start in range(0, 60, 7):
        await writer.append(sent[start : start + 7])
    for reader in readers:
        assert await read_records(reader, 60) == sent


async def test_what_is_acknowledged_is_there_to_be_read_at_once(transport: Transport) -> None:
    writer, reader = transport.writer(), transport.reader()
    for batch in (records("a", 3), records("b", 1)):
        await writer.append(batch)
        assert (await reader.read(0)).records == batch


async def test_a_reader_at_the_head_is_woken_by_an_append(transport: Transport) -> None:
    writer, reader = transport.writer(), transport.reader()
    waiting = asyncio.create_task(reader.read(WAIT_S))
    await writer.append([b"news"])
    # The first slice may have been taken empty, at the start, before the append.
    assert (await waiting).records == [b"news"]


async def test_a_read_at_the_head_comes_back_empty(transport: Transport) -> None:
    reader = transport.reader()
    slice_ = await reader.read(0.01)
    assert (slice_.records, slice_.at_head, slice_.caught_up) == ([], True, True)


async def test_an_append_time_is_the_logs_clock(transport: Transport) -> None:
    await transport.writer().append(records("r", 2))
    slice_ = await transport.reader().read(1)
    assert len(slice_.appended_unix_ms) == len(slice_.records) == 2
    assert slice_.appended_unix_ms[0] <= slice_.appended_unix_ms[1]
    assert slice_.appended_unix_ms[0] > 1_700_000_000_000


async def test_two_writers_interleave_and_keep_each_ones_order(transport: Transport) -> None:
    async def write(prefix: str) -> None:
        writer = transport.writer()
        for record in records(prefix, 20):
            await writer.append([record])

    await asyncio.gather(write("a"), write("b"))
    got = await read_records(transport.reader(), 40)
    assert [record for record in got if record.startswith(b"a")] == records("a", 20)
    assert [record for record in got if record.startswith(b"b")] == records("b", 20)


async def test_a_crowd_of_tasks_shares_a_writer_and_keeps_each_ones_order(
    transport: Transport,
) -> None:
    writer = transport.writer()
    await writer.append([])

    async def write(prefix: str) -> None:
        for record in records(prefix, 3):
            await writer.append([record])

    crowd = [f"task {number}:" for number in range(150)]
    await asyncio.gather(*(write(prefix) for prefix in crowd))
    got = await read_records(transport.reader(), 450)
    for prefix in crowd:
        mine = [record for record in got if record.startswith(prefix.encode())]
        assert mine == records(prefix, 3)


async def test_records_of_one_mebibyte_pass(transport: Transport) -> None:
    rng = random.Random(1)
    large = [rng.randbytes(1 << 20) for _ in range(5)]
    await transport.writer().append(large)
    assert await read_records(transport.reader(), 5) == large


async def test_bytes_that_are_no_record_stop_nothing(transport: Transport) -> None:
    writer = transport.writer()
    await writer.append([b"before", b"\x00\xff" * 9, b"", b"after"])
    got = await read_records(transport.reader(), 4)
    assert got == [b"before", b"\x00\xff" * 9, b"", b"after"]


@pytest.mark.ends_log
async def test_an_empty_append_asks_whether_the_log_answers(restartable: Transport) -> None:
    writer = restartable.writer()
    with pytest.raises(LogUnavailable):
        await writer.append([])
    await restartable.start()
    await append(writer, [])
    assert (await restartable.reader().read(0)).records == []


@pytest.mark.ends_log
async def test_a_server_that_comes_late_is_used_when_it_is_there(restartable: Transport) -> None:
    writer, reader = restartable.writer(), restartable.reader()
    with pytest.raises(LogUnavailable) as unavailable:
        await writer.append([b"early"])
    assert writer.name in str(unavailable.value)
    await restartable.start()
    await append(writer, [b"late"])
    assert await read_records(reader, 1) == [b"late"]


@pytest.mark.ends_log
async def test_writer_and_reader_go_on_after_a_restart(restartable: Transport) -> None:
    await restartable.start()
    writer, reader = restartable.writer(), restartable.reader()
    await writer.append([b"before"])
    assert await read_records(reader, 1) == [b"before"]
    await restartable.stop()
    with pytest.raises(LogUnavailable):
        await writer.append([b"during"])
    await restartable.start()
    await append(writer, [b"during"])
    await append(writer, [b"after"])
    got = [b""]
    while got[-1] != b"after":
        got += await read_records(reader, 1)
    if restartable.repeats_what_was_given_up:
        got = [record for record, _ in itertools.groupby(got)]
    assert got[1:] == [b"during", b"after"]


async def test_a_cancelled_append_leaves_the_writer_usable(transport: Transport) -> None:
    writer = transport.writer()
    await writer.append([b"first"])
    for _ in range(5):
        cancelled = asyncio.create_task(writer.append([b"perhaps"]))
        await asyncio.sleep(0)
        cancelled.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await cancelled
    await append(writer, [b"last"])
    reader, got = transport.reader(), list[bytes]()
    while not got or got[-1] != b"last":
        got += await read_records(reader, 1)
    assert got == [b"first", *[b"perhaps"] * (len(got) - 2), b"last"]


async def test_a_cancelled_read_loses_nothing(transport: Transport) -> None:
    writer, reader = transport.writer(), transport.reader()
    for _ in range(5):
        cancelled = asyncio.create_task(reader.read(WAIT_S))
        await asyncio.sleep(0.001)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    await writer.append(records("r", 3))
    assert await read_records(reader, 3) == records("r", 3)


async def test_a_later_reader_goes_on_from_a_position(transport: Transport) -> None:
    writer, reader = transport.writer(), transport.reader()
    await writer.append(records("old", 3))
    slice_ = await reader.read(1)
    await writer.append(records("new", 3))
    resumed = transport.reader(slice_.position)
    first = await resumed.read(1)
    assert (first.records, first.trimmed, first.caught_up) == (records("new", 3), False, True)


async def test_a_position_of_another_log_means_the_beginning(transport: Transport) -> None:
    await transport.writer().append(records("r", 3))
    slice_ = await transport.reader(LogPosition("another", transport.position)).read(1)
    assert (slice_.records, slice_.trimmed) == (records("r", 3), True)


async def test_a_reader_is_caught_up_at_the_head_that_it_saw_first(transport: Transport) -> None:
    writer = transport.writer()
    for _ in range(10):
        await writer.append([b"x" * 20] * 500)
    reader, seen = transport.reader(), 0
    while not (slice_ := await reader.read(1)).caught_up:
        seen += len(slice_.records)
        assert slice_.records
    assert slice_.at_head
    assert seen + len(slice_.records) <= 5_000


@pytest.mark.parametrize("stopped", ["memory", *REDIS[:3]], indirect=True)  # these count records
async def test_a_reader_is_told_of_what_was_trimmed_before_it_read(transport: Transport) -> None:
    writer = transport.writer()
    if isinstance(transport, redis_transports.RedisTransport):
        writer = transport.writer(records_max=10)
    slow = transport.reader()
    await writer.append(records("seen", 2))
    assert not (await slow.read(1)).trimmed
    for _ in range(10):
        await writer.append(records("missed", 100))
    fresh = transport.reader()
    assert not (await fresh.read(1)).trimmed
    slice_ = await slow.read(1)
    assert slice_.trimmed
    assert 0 < len(slice_.records) < 1_000
    assert not (await slow.read(0)).trimmed


def test_a_rejection_is_not_an_outage() -> None:
    assert not issubclass(RecordsRejected, LogUnavailable)


def test_the_redis_reader_is_what_a_url_opens() -> None:
    assert isinstance(open_reader("redis://127.0.0.1:1", cell="c"), RedisReader)
