"""A Kafka writer, with a cluster that does what the test says."""

import asyncio
import contextlib

import pytest

from kvatlas_events import LogUnavailable
from kvatlas_events.kafka_log import KafkaWriter
from kvatlas_events.kafka_metadata import Topic
from kvatlas_events.kafka_server import Client, KafkaServer
from kvatlas_events.kafka_topics import TopicPlan, log_topic


class Cluster(KafkaServer):
    """Of a topic whose identity changes, and producers that may take their time to start."""

    def __init__(self) -> None:
        super().__init__(["127.0.0.1:1"], answer_s=0.1)
        self.identity = "first"
        self.starts = asyncio.Event()
        self.starts.set()

    async def topic(self, plan: TopicPlan) -> Topic:
        del plan
        return Topic(0, self.identity, (0, 1), leaderless=False, controller_id=1)

    async def producer(self) -> Client:
        await self.starts.wait()
        return object()

    async def abandon(self, producer: Client) -> None:
        del producer


async def test_an_append_that_is_cancelled_while_the_log_changes_leaves_the_writer_usable() -> None:
    cluster = Cluster()
    writer = KafkaWriter(cluster, log_topic("c"))
    await writer.append([])
    cluster.identity = "second"
    cluster.starts.clear()
    asking = asyncio.create_task(writer.append([]))
    await asyncio.sleep(0)
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    with pytest.raises(LogUnavailable):  # there is no producer yet
        await writer.append([b"x"])
    with pytest.raises(LogUnavailable):
        await writer.append_probe(b"mark")
    cluster.starts.set()
    assert (await writer.append([])).identity == "second"
    await writer.close()
