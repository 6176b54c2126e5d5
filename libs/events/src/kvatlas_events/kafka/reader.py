"""Reads all partitions of a Kafka log, without a consumer group."""

# The client library comes without types.
# pyright: reportMissingTypeStubs=false

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, OffsetOutOfRangeError

from kvatlas_events.kafka.cluster import Client, KafkaCluster
from kvatlas_events.kafka.topics import PROBE_KEY, TopicPlan
from kvatlas_events.log import LogPosition, LogSlice, LogUnavailable

_CHECK_S = 5.0
"""Time between checks that the topic is still the same, in seconds."""
_OFFSETS_S = 3.0
"""Time for the leaders to tell their offsets, in seconds. The library would ask for ever, and an
outage must be known before leases end."""
_POLL_S = 0.5
"""Wait between checks for the head while only messages that are not records arrive, in seconds."""
_SLICE_RECORDS_MAX = 2_048


class KafkaReader:
    """A `LogReader`, from the beginning, or after `position` if that is of the same log."""

    def __init__(
        self, cluster: KafkaCluster, topic: TopicPlan, *, position: LogPosition | None = None
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._identity = None if position is None else position.identity
        self._next = {} if position is None else _offsets(position.entry)
        self._consumer: Client | None = None
        self._partitions: tuple[int, ...] = ()
        self._ends: dict[int, int] = {}
        self._head_at_start: dict[int, int] | None = None
        self._checked_s = 0.0
        self._lost = False

    @property
    def name(self) -> str:
        """See `LogReader`."""
        return self._cluster.name

    async def read(self, wait_s: float) -> LogSlice:
        """See `LogReader`."""
        try:
            async with self._cluster.bounded(wait_s):
                return self._slice(await self._read(wait_s))
        except LogUnavailable:
            await self._drop_consumer()
            raise

    async def close(self) -> None:
        """See `LogReader`."""
        await self._drop_consumer()
        await self._cluster.close()

    async def _read(self, wait_s: float) -> Mapping[Any, Sequence[Any]]:
        if self._consumer is None or self._now_s() - self._checked_s > _CHECK_S:
            await self._check()
        batches = await self._poll(wait_s)
        while not batches:
            # At the head, or the answers are late: the partitions' ends tell which.
            await self._check()
            if self._reached(self._ends):
                break
            batches = await self._poll(_POLL_S)
        return batches

    async def _poll(self, wait_s: float) -> Mapping[Any, Sequence[Any]]:
        """Wait for records; empty also if a position is outside of the log."""
        consumer: Client = self._consumer
        try:
            return await consumer.getmany(
                timeout_ms=int(wait_s * 1_000), max_records=_SLICE_RECORDS_MAX
            )
        except OffsetOutOfRangeError:
            return {}  # the next check finds out which, and moves it

    async def _check(self) -> None:
        """Compare the log with the last check, and move to where reading can go on."""
        topic = await self._cluster.topic(self._topic)
        same = self._identity in {None, topic.identity}
        consumer = self._consumer
        if consumer is None or not same or topic.partitions != self._partitions:
            await self._drop_consumer()
            self._consumer = consumer = await self._cluster.start_consumer()
            consumer.assign([TopicPartition(self._topic.name, each) for each in topic.partitions])
            to_seek = set(topic.partitions)
        else:
            to_seek = set[int]()
        if not same:
            # Another log: everything in it is new.
            self._next, self._lost, self._head_at_start = {}, True, None
        self._identity, self._partitions = topic.identity, topic.partitions
        try:
            await self._seek(consumer, to_seek)
        except BaseException:
            await self._drop_consumer()  # a partition without an offset must not be read
            raise
        self._checked_s = self._now_s()

    async def _seek(self, consumer: Client, to_seek: set[int]) -> None:
        """Compare each partition's next offset with what it holds; seek where they differ."""
        wanted = [TopicPartition(self._topic.name, each) for each in self._partitions]
        try:
            async with asyncio.timeout(min(_OFFSETS_S, self._cluster.answer_s)):
                begins = await consumer.beginning_offsets(wanted)
                ends = await consumer.end_offsets(wanted)
        except TimeoutError:
            raise KafkaConnectionError("the partitions' leaders do not answer") from None
        for each in wanted:
            begin, end = begins[each], ends[each]
            offset = self._next.setdefault(each.partition, begin)
            if each.partition not in to_seek:
                # The library skips control messages: the ends of other clients' transactions.
                self._next[each.partition] = offset = await consumer.position(each)
            if not begin <= offset <= end:
                # Trimmed before it was read, or the newest records are lost.
                self._lost = True
                self._next[each.partition] = begin
                to_seek.add(each.partition)
            if each.partition in to_seek:
                consumer.seek(each, self._next[each.partition])
        self._ends = {each.partition: ends[each] for each in wanted}
        # Records that the log has lost need not be caught up with.
        heads = self._head_at_start or self._ends
        self._head_at_start = {each: min(head, self._ends[each]) for each, head in heads.items()}

    def _slice(self, batches: Mapping[Any, Sequence[Any]]) -> LogSlice:
        records: list[bytes] = []
        appended_unix_ms: list[int] = []
        probes: list[tuple[int, bytes]] = []
        messages = 0
        for source, batch in batches.items():
            messages += len(batch)
            for each in batch:
                if each.value is not None:
                    records.append(each.value)
                    appended_unix_ms.append(max(0, each.timestamp))  # -1: the sender gave none
                elif each.key is not None and each.key.startswith(PROBE_KEY):
                    probes.append((source.partition, each.key.removeprefix(PROBE_KEY)))
            self._next[source.partition] = batch[-1].offset + 1
            end = self._consumer.highwater(source) if self._consumer else None
            self._ends[source.partition] = max(self._ends[source.partition], end or 0)
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

    async def _drop_consumer(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await self._cluster.stop_consumer(consumer)


def _entry(offsets: Mapping[int, int]) -> str:
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(offsets.items()))


def _offsets(entry: str) -> dict[int, int]:
    pairs = (each.split(":") for each in entry.split(","))
    return {int(partition): int(offset) for partition, offset in pairs}
