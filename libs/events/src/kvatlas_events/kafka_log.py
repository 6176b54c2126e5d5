"""The event log as one topic of a Kafka cluster; the package's README describes it.

A worker's records go to one partition, chosen by the worker's key, and every reader reads all
partitions, without a group. A log is told from another of the same name by its *identity*, the ids
of cluster and topic.
"""

# The client library comes without types.
# pyright: reportMissingTypeStubs=false

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, OffsetOutOfRangeError
from aiokafka.partitioner import murmur2  # pyright: ignore[reportUnknownVariableType] - the same

from kvatlas_events.kafka_lane import KafkaLane
from kvatlas_events.kafka_server import Client, KafkaServer
from kvatlas_events.kafka_topics import TopicPlan
from kvatlas_events.log import Appended, LogPosition, LogSlice, LogUnavailable
from kvatlas_events.record_worker import worker_of_record

_LOOK_S = 5.0
"""How long a busy writer or reader may work without asking whether the topic is still the same."""
_OFFSETS_S = 3.0
"""The library asks again and again for offsets; an outage shall be known sooner than leases end."""
_POLL_S = 0.5
"""What is no message ends no wait: how long until a reader sees that only such was left."""
_STUCK_ANSWERS = 3
"""A producer that stores nothing for as many times as an answer may take is replaced: it knows the
brokers that it has met, and never asks the URL's addresses again."""
_SLICE_RECORDS_MAX = 2_048
_PROBE_KEY = b"probe/"
"""Of a message without a value: what is no worker's key, and goes before a probe's mark."""


def _worker_key(record: bytes) -> bytes:
    worker = worker_of_record(record)
    return b"" if worker is None else f"{worker.worker_id}/{worker.dp_rank}".encode()


class KafkaWriter:
    """A `LogWriter` and `LogProber`; several tasks share its one producer.

    Args:
        server: closed with it.
        topic: what to write to.
        key_of: gives each record's key, which chooses its partition.
    """

    def __init__(
        self,
        server: KafkaServer,
        topic: TopicPlan,
        *,
        key_of: Callable[[bytes], bytes] = _worker_key,
    ) -> None:
        self._server = server
        self._topic = topic
        self._key_of = key_of
        self._turn = asyncio.Lock()
        self._producer: Client | None = None
        self._lanes: dict[int, KafkaLane] = {}
        self._identity = ""
        self._looked_s = 0.0
        self._certain = False  # that the producer works and the topic is the one of `_identity`
        self._acked: dict[int, int] = {}
        self._losses = 0

    @property
    def name(self) -> str:
        """As of `LogWriter`."""
        return self._server.name

    async def append(self, records: Sequence[bytes]) -> Appended:
        """As of `LogWriter`; the order is kept among the records of one worker."""
        await self._send(lambda: self._queue(records), now=not records)
        suffix = f"+{self._losses}" if self._losses else ""
        return Appended(identity=self._identity + suffix)

    async def append_probe(self, mark: bytes) -> frozenset[int]:
        """As of `LogProber`; each partition is a part, for each has a leader of its own."""
        message = [(_PROBE_KEY + mark, None)]
        await self._send(lambda: [lane.append(message) for lane in self._lanes.values()], now=False)
        return frozenset(self._lanes)

    async def close(self) -> None:
        """As of `LogWriter`."""
        await self._drop()
        await self._server.close()

    async def _send(self, queue: Callable[[], list[asyncio.Future[None]]], *, now: bool) -> None:
        """Wait until all that `queue` hands to the partitions is stored."""
        waiting: list[asyncio.Future[None]] = []
        try:
            async with self._server.bounded():
                await self._look(now=now)
                waiting = queue()
                await asyncio.gather(*waiting)
        except LogUnavailable:
            self._certain = False
            raise
        finally:
            for each in waiting:
                each.cancel()

    async def _look(self, *, now: bool) -> None:
        """See that there is a producer, and that the topic is the one it was opened for."""
        async with self._turn:
            time_s = asyncio.get_running_loop().time()
            if self._certain and not now and time_s - self._looked_s < _LOOK_S:
                return
            topic = await self._server.topic(self._topic)
            stuck_s = _STUCK_ANSWERS * self._server.answer_s
            failed = any(
                lane.failed or lane.waits_s(time_s) > stuck_s for lane in self._lanes.values()
            )
            moved = (topic.identity, set(topic.partitions)) != (self._identity, set(self._lanes))
            if self._producer is None or failed or moved:
                await self._drop()
                self._producer = producer = await self._server.producer()
                self._lanes = {
                    partition: KafkaLane(producer, self._topic.name, partition, self._note)
                    for partition in topic.partitions
                }
            if topic.identity != self._identity:
                self._identity = topic.identity
                self._acked = {}
            self._looked_s = time_s
            self._certain = True

    def _queue(self, records: Sequence[bytes]) -> list[asyncio.Future[None]]:
        """Hand the records to their partitions, each one's in order."""
        shares: dict[int, list[tuple[bytes, bytes | None]]] = {}
        for record in records:
            key = self._key_of(record)
            partition = _partition(key, len(self._lanes))
            shares.setdefault(partition, []).append((key, record))
        return [self._lanes[partition].append(share) for partition, share in shares.items()]

    def _note(self, partition: int, offset: int) -> None:
        """Take note of where a batch was stored.

        Not behind the one before: the log has lost records that it had acknowledged.
        """
        if 0 <= offset <= self._acked.get(partition, -1):
            self._losses += 1
            self._certain = False
        self._acked[partition] = offset

    async def _drop(self) -> None:
        producer, self._producer = self._producer, None
        self._certain = False
        for lane in self._lanes.values():
            lane.close()
        self._lanes = {}
        if producer is not None:
            await self._server.abandon(producer)


class KafkaReader:
    """A `LogReader`, from the beginning or after `position` if it is of the same log."""

    def __init__(
        self, server: KafkaServer, topic: TopicPlan, *, position: LogPosition | None = None
    ) -> None:
        self._server = server
        self._topic = topic
        self._identity = None if position is None else position.identity
        self._next = {} if position is None else _offsets(position.entry)
        self._consumer: Client | None = None
        self._partitions: tuple[int, ...] = ()
        self._ends: dict[int, int] = {}
        self._head_at_start: dict[int, int] | None = None
        self._looked_s = 0.0
        self._lost = False

    @property
    def name(self) -> str:
        """As of `LogReader`."""
        return self._server.name

    async def read(self, wait_s: float) -> LogSlice:
        """As of `LogReader`."""
        try:
            async with self._server.bounded(wait_s):
                return self._slice(await self._read(wait_s))
        except LogUnavailable:
            await self._drop()
            raise

    async def close(self) -> None:
        """As of `LogReader`."""
        await self._drop()
        await self._server.close()

    async def _read(self, wait_s: float) -> Mapping[Any, Sequence[Any]]:
        if self._consumer is None or self._now_s() - self._looked_s > _LOOK_S:
            await self._look()
        batches = await self._poll(wait_s)
        while not batches:
            # At the head, or the answers are late: the ends of the partitions tell.
            await self._look()
            if self._reached(self._ends):
                break
            batches = await self._poll(_POLL_S)
        return batches

    async def _poll(self, wait_s: float) -> Mapping[Any, Sequence[Any]]:
        """Wait for records; none also when a position is outside of the log."""
        consumer: Client = self._consumer
        try:
            return await consumer.getmany(
                timeout_ms=int(wait_s * 1_000), max_records=_SLICE_RECORDS_MAX
            )
        except OffsetOutOfRangeError:
            return {}  # the look that follows finds out which, and goes on elsewhere

    async def _look(self) -> None:
        """See what has become of the log, and be where reading can go on."""
        topic = await self._server.topic(self._topic)
        same = self._identity in {None, topic.identity}
        consumer = self._consumer
        if consumer is None or not same or topic.partitions != self._partitions:
            await self._drop()
            self._consumer = consumer = await self._server.consumer()
            consumer.assign([TopicPartition(self._topic.name, each) for each in topic.partitions])
            unplaced = set(topic.partitions)
        else:
            unplaced = set[int]()
        if not same:
            # Another log: what is in it now is all new.
            self._next, self._lost, self._head_at_start = {}, True, None
        self._identity, self._partitions = topic.identity, topic.partitions
        try:
            await self._place(consumer, unplaced)
        except BaseException:
            await self._drop()  # a partition without a place must not be read
            raise
        self._looked_s = self._now_s()

    async def _place(self, consumer: Client, unplaced: set[int]) -> None:
        """Compare each partition's next offset with what the partition holds, and move it."""
        wanted = [TopicPartition(self._topic.name, each) for each in self._partitions]
        try:
            async with asyncio.timeout(min(_OFFSETS_S, self._server.answer_s)):
                begins = await consumer.beginning_offsets(wanted)
                ends = await consumer.end_offsets(wanted)
        except TimeoutError:
            raise KafkaConnectionError("the partitions' leaders do not answer") from None
        for each in wanted:
            begin, end = begins[each], ends[each]
            goes_on = self._next.setdefault(each.partition, begin)
            if each.partition not in unplaced:
                # The library passes over what is for itself: the ends of strangers' transactions.
                self._next[each.partition] = goes_on = await consumer.position(each)
            if not begin <= goes_on <= end:
                # Trimmed before it was read, or without its newest records.
                self._lost = True
                self._next[each.partition] = begin
                unplaced.add(each.partition)
            if each.partition in unplaced:
                consumer.seek(each, self._next[each.partition])
        self._ends = {each.partition: ends[each] for each in wanted}
        # Newest records that the log has lost are none to catch up with.
        heads = self._head_at_start or self._ends
        self._head_at_start = {each: min(head, self._ends[each]) for each, head in heads.items()}

    def _slice(self, batches: Mapping[Any, Sequence[Any]]) -> LogSlice:
        records: list[bytes] = []
        appended_unix_ms: list[int] = []
        probes: list[tuple[int, bytes]] = []
        messages = 0
        for place, batch in batches.items():
            messages += len(batch)
            for each in batch:
                if each.value is not None:
                    records.append(each.value)
                    appended_unix_ms.append(max(0, each.timestamp))  # -1: none, of a sender's clock
                elif each.key is not None and each.key.startswith(_PROBE_KEY):
                    probes.append((place.partition, each.key.removeprefix(_PROBE_KEY)))
            self._next[place.partition] = batch[-1].offset + 1
            end = self._consumer.highwater(place) if self._consumer else None
            self._ends[place.partition] = max(self._ends[place.partition], end or 0)
        lost, self._lost = self._lost, False
        head, identity = self._head_at_start, self._identity
        return LogSlice(
            records=records,
            appended_unix_ms=appended_unix_ms,
            at_head=self._reached(self._ends),
            caught_up=head is not None and self._reached(head),
            trimmed=lost,
            foreign=messages - len(records) - len(probes),
            position=None if identity is None else LogPosition(identity, _entry(self._next)),
            probes=probes,
        )

    def _reached(self, ends: Mapping[int, int]) -> bool:
        return all(self._next[partition] >= end for partition, end in ends.items())

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def _drop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await self._server.release(consumer)


@lru_cache(maxsize=65_536)
def _partition(key: bytes, partitions: int) -> int:
    """Return the partition of `key`, as Kafka's own clients choose it."""
    return (murmur2(key) & 0x7FFF_FFFF) % partitions


def _entry(offsets: Mapping[int, int]) -> str:
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(offsets.items()))


def _offsets(entry: str) -> dict[int, int]:
    pairs = (each.split(":") for each in entry.split(","))
    return {int(partition): int(offset) for partition, offset in pairs}
