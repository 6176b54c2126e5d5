"""The queue of one partition of Kafka, with a library that does what the test says."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from aiokafka.errors import (  # pyright: ignore[reportMissingTypeStubs] - it has no types
    KafkaError,
)

from kvatlas_events.kafka.partition_queue import PartitionQueue

Records = list[tuple[bytes, bytes | None]]


@dataclass
class Stored:
    offset: int


@dataclass
class Batch:
    """Takes two records."""

    records: Records = field(default_factory=Records)

    def append(self, *, timestamp: None, key: bytes, value: bytes | None) -> object:
        del timestamp
        if len(self.records) == 2:
            return None
        self.records.append((key, value))
        return self

    def record_count(self) -> int:
        return len(self.records)

    def close(self) -> None: ...


class Producer:
    """A producer whose result for each batch comes from `store`."""

    def __init__(self, store: Callable[[Batch], Awaitable[Stored]]) -> None:
        self._store = store
        self.batches: list[Batch] = []

    def create_batch(self) -> Batch:
        return Batch()

    async def send_batch(self, batch: Batch, topic: str, *, partition: int) -> Awaitable[Stored]:
        del topic, partition
        self.batches.append(batch)
        return self._store(batch)


def queue(producer: object) -> PartitionQueue:
    return PartitionQueue(producer, "topic", 0, lambda _partition, _offset: None)


class Given(list[tuple[bytes, bytes | None]]):
    """Records whose end can be seen."""


async def test_a_stalled_queue_keeps_no_records_of_callers_that_gave_up() -> None:
    async def never(_batch: Batch) -> Stored:
        return await asyncio.get_running_loop().create_future()

    stalled = queue(Producer(never))
    waiting = stalled.append([(b"k", b"under way")])
    await asyncio.sleep(0)
    kept: list[weakref.ref[Given]] = []

    def give_up() -> None:
        records = Given([(b"k", bytes(1_000))])
        kept.append(weakref.ref(records))
        stalled.append(records).cancel()

    for _ in range(10):  # as a delivery does, for as long as an outage lasts
        give_up()
        await asyncio.sleep(0)
    gc.collect()
    assert sum(each() is not None for each in kept) <= 1
    stalled.close()
    with pytest.raises(KafkaError, match="given up"):
        await waiting


async def test_who_waits_is_told_of_a_partition_that_the_library_does_not_know() -> None:
    async def refuse(_batch: Batch) -> Stored:
        raise AssertionError("Unrecognized partition")

    lost = queue(Producer(refuse))
    async with asyncio.timeout(5):
        with pytest.raises(KafkaError, match="Unrecognized partition"):
            await lost.append([(b"k", b"v")])
    assert lost.failed
