"""Promises of the Kafka transport alone: identities, partitions, positions, lost records."""

import asyncio
import os
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any

import numpy as np
import pytest
from aiokafka import (  # pyright: ignore[reportMissingTypeStubs] - it has no types
    AIOKafkaConsumer,
    AIOKafkaProducer,
    TopicPartition,
)
from aiokafka.admin import (  # pyright: ignore[reportMissingTypeStubs] - the same
    AIOKafkaAdminClient,
    NewPartitions,
    NewTopic,
    RecordsToDelete,
)

from kvatlas_events import (
    Batch,
    LogPosition,
    LogUnavailable,
    RecordsRejected,
    Store,
    Tier,
    WorkerKey,
    encode_batch,
)
from kvatlas_events.kafka.cluster import KafkaCluster
from kvatlas_events.kafka.reader import KafkaReader
from kvatlas_events.kafka.topics import PARTITIONS, log_topic
from kvatlas_events.kafka.url import KafkaUrl
from kvatlas_events.kafka.writer import KafkaWriter
from kvatlas_testing.child_process import paused
from kvatlas_testing.kafka import EmbeddedKafka
from tests.conformance.log.outages import outlast, read_records
from tests.headers import header

Kafka = Callable[[], tuple[str, EmbeddedKafka | None]]
Client = Any
"""One of the library's, which has no types."""


class Log:
    """A cell of its own, and Kafka's own tools for it."""

    def __init__(self, address: str, server: EmbeddedKafka | None) -> None:
        self.address = address
        self.server = server
        self.cell = f"test-{uuid.uuid4().hex}"
        self.topic = f"kvatlas.{self.cell}.log"
        self.open: list[Any] = []

    def writer(self, answer_s: float = 10) -> KafkaWriter:
        server = KafkaCluster(KafkaUrl((self.address,)), answer_s=answer_s)
        self.open.append(KafkaWriter(server, log_topic(self.cell)))
        return self.open[-1]

    def reader(self, position: LogPosition | None = None, answer_s: float = 10) -> KafkaReader:
        server = KafkaCluster(KafkaUrl((self.address,)), answer_s=answer_s)
        self.open.append(KafkaReader(server, log_topic(self.cell), position=position))
        return self.open[-1]

    async def admin(self) -> Client:
        admin: Client = AIOKafkaAdminClient(bootstrap_servers=self.address)
        await admin.start()
        return admin

    async def messages(self, count: int) -> list[Any]:
        """Read as a stranger would."""
        consumer: Client = AIOKafkaConsumer(
            self.topic, bootstrap_servers=self.address, auto_offset_reset="earliest"
        )
        await consumer.start()
        got: list[Any] = []
        async with asyncio.timeout(10):
            while len(got) < count:
                for batch in (await consumer.getmany(timeout_ms=100)).values():
                    got += batch
        await consumer.stop()
        return got

    async def close(self) -> None:
        for each in self.open:
            await each.close()


@pytest.fixture
async def log(kafka: Kafka) -> AsyncGenerator[Log, None]:
    of_a_test = Log(*kafka())
    yield of_a_test
    await of_a_test.close()


@pytest.fixture
def ours(log: Log) -> EmbeddedKafka:
    if log.server is None:
        pytest.skip("the Kafka server that these tests were given is not ours to stop")
    return log.server


def record_of(worker_id: int, event_id: int) -> bytes:
    store = Store(None, np.array([event_id], dtype=np.uint64), Tier.DEVICE)
    return encode_batch(
        Batch(header=header(WorkerKey(worker_id, 1)), first_event_id=event_id, events=(store,))
    )


async def test_a_workers_records_are_in_one_partition_and_all_are_read(log: Log) -> None:
    writer, workers = log.writer(), range(1, 41)
    for event_id in range(1, 4):
        await writer.append([record_of(worker, event_id) for worker in workers])
    got = await read_records(log.reader(), 120)
    for worker in workers:
        sent = [record_of(worker, event_id) for event_id in range(1, 4)]
        assert [record for record in got if record in sent] == sent
    places: dict[bytes, set[int]] = {}
    for message in await log.messages(120):
        places.setdefault(message.key, set()).add(message.partition)
    assert sorted(places) == sorted(f"{worker}/1".encode() for worker in workers)
    assert all(len(partitions) == 1 for partitions in places.values())
    used = {partition for partitions in places.values() for partition in partitions}
    assert len(used) > PARTITIONS / 2


async def test_a_position_names_what_is_next_in_every_partition(log: Log) -> None:
    writer, workers = log.writer(), range(1, 41)
    await writer.append([record_of(worker, 1) for worker in workers])
    reader = log.reader()
    await read_records(reader, 40)
    position = (await reader.read(0)).position
    later = [record_of(worker, 2) for worker in workers]
    await writer.append(later)
    resumed = log.reader(position)
    assert sorted(await read_records(resumed, 40)) == sorted(later)
    slice_ = await resumed.read(0)
    assert (slice_.records, slice_.at_head, slice_.caught_up) == ([], True, True)


async def test_the_topic_is_made_as_documented(log: Log) -> None:
    await log.reader().read(0)
    admin = await log.admin()
    (topic,) = await admin.describe_topics([log.topic])
    assert len(topic["partitions"]) == PARTITIONS == 8
    await admin.close()
    # The record's time is the broker's clock, not the time that the sender names.
    producer: Client = AIOKafkaProducer(bootstrap_servers=log.address)
    await producer.start()
    await producer.send_and_wait(log.topic, b"x", partition=0, timestamp_ms=1_000)
    await producer.stop()
    slice_ = await log.reader().read(1)
    assert slice_.records == [b"x"]
    assert slice_.appended_unix_ms[0] > 1_700_000_000_000


async def test_a_message_without_a_value_is_counted_and_left_out(log: Log) -> None:
    await log.writer().append([b"before"])
    producer: Client = AIOKafkaProducer(bootstrap_servers=log.address)
    await producer.start()
    await producer.send_and_wait(log.topic, None, key=b"k", partition=0)
    await producer.stop()
    reader, got, foreign = log.reader(), list[bytes](), 0
    while foreign == 0 or not got:
        slice_ = await reader.read(1)
        got, foreign = [*got, *slice_.records], foreign + slice_.foreign
        assert len(slice_.records) == len(slice_.appended_unix_ms)
    assert (got, foreign) == ([b"before"], 1)


async def test_a_topic_made_again_is_another_log(log: Log) -> None:
    writer, reader = log.writer(), log.reader()
    before = await writer.append([b"lost", b"as well"])
    first = await reader.read(1)
    assert first.position is not None
    assert first.position.identity == before.identity
    admin = await log.admin()
    await admin.delete_topics([log.topic])
    await admin.close()
    # The broker goes on with the old topic for a moment after it has confirmed the deletion.
    while (await outlast(lambda: writer.append([]))).identity == before.identity:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.05)
    await outlast(lambda: writer.append([b"new"]))
    slice_ = await outlast(lambda: log.reader(first.position).read(1))
    assert (slice_.records, slice_.trimmed) == ([b"new"], True)
    lost, got = False, list[bytes]()
    while not got:  # as the reader that was there all the time sees it
        slice_ = await outlast(lambda: reader.read(0))
        lost, got = lost or slice_.trimmed, [*got, *slice_.records]
    assert (lost, got) == (True, [b"new"])


@pytest.mark.ends_log
async def test_a_server_that_lost_its_data_shows_to_both_sides(
    log: Log, ours: EmbeddedKafka
) -> None:
    writer, reader = log.writer(), log.reader()
    before = await writer.append([b"lost"])
    assert (await writer.append([])).identity == before.identity
    assert (await reader.read(1)).records == [b"lost"]
    ours.close()
    ours.start()
    after = await outlast(lambda: writer.append([]))
    assert after.identity not in {None, before.identity}
    await outlast(lambda: writer.append([b"new"]))
    slice_ = await outlast(lambda: reader.read(1))
    assert (slice_.records, slice_.trimmed) == ([b"new"], True)


async def test_a_reader_is_told_of_what_was_trimmed_before_it_read(log: Log) -> None:
    writer, slow = log.writer(), log.reader()
    await writer.append([b"seen"])
    position = (await slow.read(1)).position
    assert position is not None
    await slow.close()
    await writer.append([b"missed", b"missed too", b"kept"])
    place = TopicPartition(log.topic, (await log.messages(4))[0].partition)
    admin = await log.admin()
    await admin.delete_records({place: RecordsToDelete(before_offset=3)})
    await admin.close()
    for reader, trimmed in ((log.reader(position), True), (log.reader(), False)):
        slice_ = await reader.read(1)
        assert (slice_.records, slice_.trimmed) == ([b"kept"], trimmed)
        assert not (await reader.read(0)).trimmed


async def test_a_log_that_lost_its_newest_records_is_read_again(log: Log) -> None:
    await log.writer().append([b"a", b"b"])
    position = (await log.reader().read(1)).position
    assert position is not None
    entries = dict(each.split(":") for each in position.entry.split(","))
    beyond = ",".join(f"{p}:{int(o) + 3 if int(o) else 0}" for p, o in entries.items())
    reader = log.reader(LogPosition(position.identity, beyond))
    slice_ = await reader.read(1)
    assert (slice_.records, slice_.trimmed) == ([b"a", b"b"], True)
    assert slice_.position == position


async def test_partitions_that_are_added_are_written_and_read(log: Log) -> None:
    writer, reader = log.writer(), log.reader()
    await writer.append([b"before"])
    assert (await reader.read(1)).records == [b"before"]
    admin = await log.admin()
    await admin.create_partitions({log.topic: NewPartitions(total_count=PARTITIONS * 2)})
    # The broker shows them a moment after it has confirmed them.
    while len((await admin.describe_topics([log.topic]))[0]["partitions"]) == PARTITIONS:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.05)
    await admin.close()
    records = [record_of(worker, 1) for worker in range(1, 41)]
    await writer.append([])  # looks at the topic
    await writer.append(records)
    assert sorted(await read_records(log.reader(), 41)) == sorted([b"before", *records])
    used = {message.partition for message in await log.messages(41)}
    assert max(used) >= PARTITIONS
    got = list[bytes]()
    async with asyncio.timeout(10):
        while len(got) < 40:
            slice_ = await reader.read(0)
            assert not slice_.trimmed
            got += slice_.records
    assert sorted(got) == sorted(records)


async def test_a_topic_that_takes_no_large_records_is_said(log: Log) -> None:
    admin = await log.admin()
    small = NewTopic(log.topic, 1, 1, topic_configs={"max.message.bytes": "1000"})
    await admin.create_topics([small])
    await admin.close()
    writer = log.writer()
    with pytest.raises(RecordsRejected, match=r"max\.message\.bytes"):
        await writer.append([os.urandom(5_000)])
    await writer.append([b"small"])
    assert (await log.reader().read(1)).records == [b"small"]


async def test_a_frozen_server_is_given_up_and_used_when_it_thaws(
    log: Log, ours: EmbeddedKafka
) -> None:
    writer, reader = log.writer(answer_s=1), log.reader(answer_s=1)
    await outlast(lambda: writer.append([b"before"]))
    assert (await outlast(lambda: reader.read(1))).records == [b"before"]
    assert ours.pid is not None
    with paused(ours.pid):
        with pytest.raises(LogUnavailable, match=r"does not answer within 1 s") as unavailable:
            await writer.append([b"during"])
        assert log.address in str(unavailable.value)
        with pytest.raises(LogUnavailable):
            await reader.read(0.01)
    await outlast(lambda: writer.append([b"after"]))
    got = list[bytes]()
    while b"after" not in got:
        got += (await outlast(lambda: reader.read(1))).records
    assert got in ([b"during", b"after"], [b"after"])


async def test_who_waits_for_a_writer_that_is_closed_is_told(log: Log, ours: EmbeddedKafka) -> None:
    writer = log.writer()
    await outlast(lambda: writer.append([b"before"]))
    assert ours.pid is not None
    with paused(ours.pid):
        waiting = [asyncio.create_task(writer.append([b"during"])) for _ in range(3)]
        await asyncio.sleep(0)  # they are on their way
        await writer.close()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in ends] == [LogUnavailable] * 3
    await outlast(lambda: log.writer().append([]))


async def test_a_server_that_is_no_kafka_is_given_up() -> None:
    async def refuse(stream: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        await stream.read(1)
        answer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as stranger:
        port = stranger.sockets[0].getsockname()[1]
        writer = KafkaWriter(
            KafkaCluster(KafkaUrl((f"127.0.0.1:{port}",)), answer_s=1), log_topic("c")
        )
        with pytest.raises(LogUnavailable, match=f"kafka://127.0.0.1:{port} cannot be reached"):
            await writer.append([b"x"])
        await writer.close()
