"""Faults that the Kafka transport survives: a broker that stops, moves or falls silent; strangers."""

import asyncio
import os
import uuid
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer  # pyright: ignore[reportMissingTypeStubs] - it has no types
from aiokafka.admin import (  # pyright: ignore[reportMissingTypeStubs] - the same
    AIOKafkaAdminClient,
    NewTopic,
)

from kvatlas_events import LogUnavailable
from kvatlas_events.kafka.cluster import KafkaCluster
from kvatlas_events.kafka.reader import KafkaReader
from kvatlas_events.kafka.topics import PARTITIONS, log_topic
from kvatlas_events.kafka.url import KafkaUrl
from kvatlas_events.kafka.writer import KafkaWriter
from kvatlas_testing.child_process import free_port, paused
from kvatlas_testing.kafka import EmbeddedKafka
from tests.brokers import kafka_broker
from tests.conformance.log.outages import outlast
from tests.conformance.log.proxy import TcpProxy

Kafka = Callable[[], tuple[str, EmbeddedKafka | None]]


class Log:
    """A cell of its own, at whatever address leads to a broker."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.cell = f"test-{uuid.uuid4().hex}"
        self.topic = f"kvatlas.{self.cell}.log"
        self.open: list[Any] = []

    def writer(self, answer_s: float = 4) -> KafkaWriter:
        server = KafkaCluster(KafkaUrl((self.address,)), answer_s=answer_s)
        self.open.append(KafkaWriter(server, log_topic(self.cell)))
        return self.open[-1]

    def reader(self, answer_s: float = 4) -> KafkaReader:
        server = KafkaCluster(KafkaUrl((self.address,)), answer_s=answer_s)
        self.open.append(KafkaReader(server, log_topic(self.cell)))
        return self.open[-1]

    async def close(self) -> None:
        for each in self.open:
            await each.close()


@pytest.fixture
async def log(kafka: Kafka) -> AsyncGenerator[Log, None]:
    of_a_test = Log(kafka()[0])
    yield of_a_test
    await of_a_test.close()


@pytest.fixture
async def proxy() -> AsyncGenerator[TcpProxy, None]:
    async with TcpProxy() as proxy:
        yield proxy


Start = Callable[..., EmbeddedKafka]


@pytest.fixture
def start() -> Generator[Start, None, None]:
    """Start a broker of the test's own."""
    with ExitStack() as brokers:

        def start_one(
            *, advertised_port: int | None = None, creates_topics: bool = False
        ) -> EmbeddedKafka:
            return brokers.enter_context(
                kafka_broker(advertised_port=advertised_port, creates_topics=creates_topics)
            )

        yield start_one


@pytest.fixture
def ours(kafka: Kafka) -> EmbeddedKafka:
    _, server = kafka()
    if server is None:
        pytest.skip("the Kafka server that these tests were given is not ours to stop")
    return server


def port_of(server: EmbeddedKafka) -> int:
    return int(server.address.rpartition(":")[2])


async def read_until(reader: KafkaReader, record: bytes) -> None:
    got: list[bytes] = []
    while record not in got:
        got += (await outlast(lambda: reader.read(1))).records


async def test_a_writer_that_is_closed_while_the_broker_stands_still_leaves_nothing_behind(
    log: Log, ours: EmbeddedKafka
) -> None:
    writer = log.writer(answer_s=1)
    await outlast(lambda: writer.append([b"before"]))
    assert ours.pid is not None
    with paused(ours.pid):
        appending = asyncio.create_task(writer.append([b"during"]))
        await asyncio.sleep(1.4)  # the library has given its request up, and asks who leads
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await writer.close()
        assert loop.time() - began_s < 1
        with pytest.raises(LogUnavailable):
            await appending
        async with asyncio.timeout(5):
            while asyncio.all_tasks() != {asyncio.current_task()}:  # noqa: ASYNC110 - the library's own
                await asyncio.sleep(0.05)


async def test_a_connection_that_falls_silent_is_given_up_by_both_sides(
    proxy: TcpProxy, start: Start
) -> None:
    proxy.upstream_port = port_of(start(advertised_port=proxy.port))
    log = Log(f"127.0.0.1:{proxy.port}")
    writer, reader = log.writer(answer_s=3), log.reader(answer_s=3)
    await outlast(lambda: writer.append([b"before"]))
    await read_until(reader, b"before")
    proxy.silence()
    await outlast(lambda: writer.append([b"after"]))
    await read_until(reader, b"after")
    await log.close()


async def test_a_broker_that_comes_back_at_another_address_is_found_by_both_sides(
    proxy: TcpProxy, start: Start
) -> None:
    server = start()
    proxy.upstream_port = port_of(server)
    log = Log(f"127.0.0.1:{proxy.port}")
    writer, reader = log.writer(answer_s=2), log.reader(answer_s=2)
    await outlast(lambda: writer.append([b"before"]))
    await read_until(reader, b"before")
    server.kill()
    proxy.upstream_port = free_port()
    properties = server.data.parent / "server.properties"
    said = properties.read_text().replace(str(port_of(server)), str(proxy.upstream_port))
    properties.write_text(said)
    server.start()
    await outlast(lambda: writer.append([b"after"]))
    await read_until(reader, b"after")
    await log.close()


async def test_a_strangers_transaction_stops_nobody(log: Log) -> None:
    writer, reader = log.writer(), log.reader()
    await outlast(lambda: writer.append([b"before"]))
    stranger: Any = AIOKafkaProducer(bootstrap_servers=log.address, transactional_id=log.cell)
    await stranger.start()
    for partition in range(PARTITIONS):
        async with stranger.transaction():
            await stranger.send(log.topic, b"theirs", partition=partition)
    await stranger.stop()
    for each in (reader, log.reader()):
        got: list[bytes] = []
        async with asyncio.timeout(20):
            while len(got) < 1 + PARTITIONS:
                got += (await each.read(0)).records
        slice_ = await each.read(0)
        assert (slice_.records, slice_.at_head, slice_.caught_up) == ([], True, True)
    await writer.append([b"after"])
    assert (await reader.read(1)).records == [b"after"]


async def test_a_message_of_no_time_is_a_very_old_one(log: Log) -> None:
    admin: Any = AIOKafkaAdminClient(bootstrap_servers=log.address)
    await admin.start()
    await admin.create_topics([NewTopic(log.topic, 1, 1)])  # of the senders' clocks
    await admin.close()
    stranger: Any = AIOKafkaProducer(bootstrap_servers=log.address)
    await stranger.start()
    await stranger.send_and_wait(log.topic, b"x", partition=0, timestamp_ms=-1)
    await stranger.stop()
    slice_ = await log.reader().read(1)
    assert (slice_.records, slice_.appended_unix_ms) == ([b"x"], [0])


async def test_newest_records_that_the_log_lost_are_none_to_catch_up_with(start: Start) -> None:
    server = start()
    log = Log(server.address)
    writer, reader = log.writer(), log.reader()
    for _ in range(12):
        await outlast(lambda: writer.append([os.urandom(1 << 20)]))
    assert not (await outlast(lambda: reader.read(1))).caught_up
    server.kill()
    (segment,) = (each for each in server.data.glob(f"{log.topic}-*/*.log") if each.stat().st_size)
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size // 2)
    server.start()
    slice_ = await outlast(lambda: reader.read(0.5))
    while not slice_.at_head:
        slice_ = await outlast(lambda: reader.read(0.5))
    assert slice_.caught_up
    await log.close()


async def test_a_topic_that_is_deleted_is_made_again_by_us_and_not_by_the_broker(
    start: Start,
) -> None:
    log = Log(start(creates_topics=True).address)
    writer, reader = log.writer(), log.reader()
    before = await outlast(lambda: writer.append([b"before"]))
    await outlast(lambda: reader.read(1))
    admin: Any = AIOKafkaAdminClient(bootstrap_servers=log.address)
    await admin.start()
    await admin.delete_topics([log.topic])
    after = before
    async with asyncio.timeout(40):
        while after.identity == before.identity:  # which is not looked at by every append
            after = await outlast(lambda: writer.append([b"at once"]))
            await outlast(lambda: reader.read(0.2))
    (topic,) = await admin.describe_topics([log.topic])
    assert len(topic["partitions"]) == PARTITIONS
    await admin.close()
    await log.close()
