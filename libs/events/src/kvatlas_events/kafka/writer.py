"""Appends a publisher's records to a Kafka log.

A worker's records go to one partition, chosen by the worker's key. The log's *identity* is the ids of
cluster and topic.
"""

# The client library comes without types.
# pyright: reportMissingTypeStubs=false

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache

from aiokafka.partitioner import murmur2  # pyright: ignore[reportUnknownVariableType] - no types

from kvatlas_events.kafka.cluster import Client, KafkaCluster
from kvatlas_events.kafka.partition_queue import PartitionQueue
from kvatlas_events.kafka.topics import PROBE_KEY, TopicPlan
from kvatlas_events.log import Appended, LogUnavailable
from kvatlas_events.record_key import key_of_record

_CHECK_S = 5.0
"""Time between checks that the topic is still the same, in seconds."""
_STUCK_ANSWERS = 3
"""A producer that stores nothing for this many answer times is replaced: it knows only the brokers
that it has met, and never asks the URL's addresses again."""


def _worker_key(record: bytes) -> bytes:
    worker = key_of_record(record)
    return b"" if worker is None else str(worker).encode()


class KafkaWriter:
    """A `LogWriter` and `LogProber`; several tasks share its one producer.

    Args:
        cluster: closed with the writer.
        topic: topic to write to.
        key_of: returns a record's key, which chooses its partition.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        topic: TopicPlan,
        *,
        key_of: Callable[[bytes], bytes] = _worker_key,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._key_of = key_of
        self._turn = asyncio.Lock()
        self._producer: Client | None = None
        self._queues: dict[int, PartitionQueue] = {}
        self._identity = ""
        self._checked_s = 0.0
        self._is_current = False  # the producer works, and the topic is that of `_identity`
        self._stored_offsets: dict[int, int] = {}
        self._losses = 0

    @property
    def name(self) -> str:
        """See `LogWriter`."""
        return self._cluster.name

    async def append(self, records: Sequence[bytes]) -> Appended:
        """See `LogWriter`; keeps the order among the records of one worker."""
        await self._send(lambda: self._queue(records), check=not records)
        suffix = f"+{self._losses}" if self._losses else ""
        return Appended(identity=self._identity + suffix)

    async def append_probe(self, mark: bytes) -> frozenset[int]:
        """See `LogProber`; each partition is a part, because each has its own leader."""
        message = [(PROBE_KEY + mark, None)]
        await self._send(
            lambda: [queue.append(message) for queue in self._queues.values()], check=False
        )
        return frozenset(self._queues)

    async def close(self) -> None:
        """See `LogWriter`."""
        await self._drop_producer()
        await self._cluster.close()

    async def _send(self, queue: Callable[[], list[asyncio.Future[None]]], *, check: bool) -> None:
        """Wait until everything that `queue` queues is stored."""
        waiting: list[asyncio.Future[None]] = []
        try:
            async with self._cluster.bounded():
                await self._prepare(check=check)
                waiting = queue()
                await asyncio.gather(*waiting)
        except LogUnavailable:
            self._is_current = False
            raise
        finally:
            for each in waiting:
                each.cancel()

    async def _prepare(self, *, check: bool) -> None:
        """Make sure that a producer works, and that the topic is the one it was started for."""
        async with self._turn:
            now_s = asyncio.get_running_loop().time()
            if self._is_current and not check and now_s - self._checked_s < _CHECK_S:
                return
            topic = await self._cluster.topic(self._topic)
            stuck_s = _STUCK_ANSWERS * self._cluster.answer_s
            failed = any(
                queue.failed or queue.waits_s(now_s) > stuck_s for queue in self._queues.values()
            )
            moved = (topic.identity, set(topic.partitions)) != (self._identity, set(self._queues))
            if self._producer is None or failed or moved:
                await self._drop_producer()
                self._producer = producer = await self._cluster.start_producer()
                self._queues = {
                    partition: PartitionQueue(producer, self._topic.name, partition, self._note)
                    for partition in topic.partitions
                }
            if topic.identity != self._identity:
                self._identity = topic.identity
                self._stored_offsets = {}
            self._checked_s = now_s
            self._is_current = True

    def _queue(self, records: Sequence[bytes]) -> list[asyncio.Future[None]]:
        """Queue the records at their partitions, in order."""
        by_partition: dict[int, list[tuple[bytes, bytes | None]]] = {}
        for record in records:
            key = self._key_of(record)
            partition = _partition(key, len(self._queues))
            by_partition.setdefault(partition, []).append((key, record))
        return [self._queues[partition].append(each) for partition, each in by_partition.items()]

    def _note(self, partition: int, offset: int) -> None:
        """Note the offset of a stored batch.

        If it is not above the offset of the batch before, the log has lost acknowledged records.
        """
        if 0 <= offset <= self._stored_offsets.get(partition, -1):
            self._losses += 1
            self._is_current = False
        self._stored_offsets[partition] = offset

    async def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        self._is_current = False
        for queue in self._queues.values():
            queue.close()
        self._queues = {}
        if producer is not None:
            await self._cluster.stop_producer(producer)


@lru_cache(maxsize=65_536)
def _partition(key: bytes, partitions: int) -> int:
    """Return the partition of `key`, as Kafka's own clients choose it."""
    return (murmur2(key) & 0x7FFF_FFFF) % partitions
