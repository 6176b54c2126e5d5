"""A Kafka writer, with a cluster that does what the test says."""

import asyncio
import contextlib

import pytest

from kvatlas_events import LogUnavailable
from kvatlas_events.kafka.cluster import Client, KafkaCluster
from kvatlas_events.kafka.metadata import Topic
from kvatlas_events.kafka.topics import TopicPlan, log_topic
from kvatlas_events.kafka.url import KafkaUrl
from kvatlas_events.kafka.writer import KafkaWriter


class Cluster(KafkaCluster):
    """A cluster whose topic changes its identity, and whose producers may start slowly."""

    def __init__(self) -> None:
        super().__init__(KafkaUrl(("127.0.0.1:1",)), answer_s=0.1)
        self.identity = "first"
        self.starts = asyncio.Event()
        self.starts.set()

    async def topic(self, plan: TopicPlan) -> Topic:
        del plan
        return Topic(0, self.identity, (0, 1), leaderless=False, controller_id=1)

    async def start_producer(self) -> Client:
        await self.starts.wait()
        return object()

    async def stop_producer(self, producer: Client) -> None:
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
