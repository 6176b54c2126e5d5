"""Queues the records of one partition and sends them in batches, one batch at a time.

The library keeps a batch until the server has it, however long that takes. A caller who gave up
meanwhile appends the same records again, after that batch. So records may be repeated, but they are
never out of order.
"""

# The client library comes without types.
# pyright: reportMissingTypeStubs=false

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aiokafka.errors import KafkaConnectionError, KafkaError, UnknownTopicOrPartitionError

from kvatlas_events.kafka.cluster import Client


@dataclass(slots=True)
class _Append:
    records: Sequence[tuple[bytes, bytes | None]]
    stored: asyncio.Future[None] = field(default_factory=asyncio.Future[None])
    batched: int = 0


class PartitionQueue:
    """The records on their way to one partition; any number of tasks may append.

    Args:
        producer: the library's producer.
        topic: name of the topic.
        partition: number of the partition.
        stored: called with the partition and the offset of each batch's first record.
    """

    def __init__(
        self, producer: Client, topic: str, partition: int, stored: Callable[[int, int], None]
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._stored = stored
        self._queued = deque[_Append]()
        self._ending: list[_Append] = []  # their last record is in the batch under way
        self._sender: asyncio.Task[None] | None = None
        self._sent_s: float | None = None  # when the library got the batch under way
        self.failed = False
        """The producer gave a batch up; later batches of it may be refused."""

    def waits_s(self, now_s: float) -> float:
        """Return the age of the batch under way, in seconds; 0: there is none."""
        return 0.0 if self._sent_s is None else now_s - self._sent_s

    def append(self, records: Sequence[tuple[bytes, bytes | None]]) -> asyncio.Future[None]:
        """Queue keys and values (None: no value); the future ends when all are stored.

        If the future is cancelled, records that are in no batch yet are dropped.
        """
        while self._queued and self._queued[0].stored.done():
            self._queued.popleft()  # its caller has given up
        append = _Append(records)
        self._queued.append(append)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_all())
        return append.stored

    def close(self) -> None:
        """Give up all queued records; their futures fail at once."""
        if self._sender is not None:
            self._sender.cancel()
        self._fail(KafkaConnectionError("the producer was given up"))

    async def _send_all(self) -> None:
        try:
            while (batch := self._fill()) is not None:
                self._sent_s = asyncio.get_running_loop().time()
                sent = await self._producer.send_batch(
                    batch, self._topic, partition=self._partition
                )
                self._stored(self._partition, (await sent).offset)
                self._sent_s = None
                for each in self._ending:
                    _resolve(each, None)
                self._ending.clear()
        except KafkaError as error:
            self.failed = True
            self._fail(error)
        except AssertionError as error:
            # The library's own: the brokers have not told it of this partition yet.
            self.failed = True
            self._fail(UnknownTopicOrPartitionError(str(error)))

    def _fail(self, error: KafkaError) -> None:
        for each in [*self._ending, *self._queued]:
            _resolve(each, error)
        self._ending.clear()
        self._queued.clear()

    def _fill(self) -> Client | None:
        """Return a batch of queued records, and note which appends end in it; None: none queued."""
        batch: Client = self._producer.create_batch()
        while self._queued:
            first = self._queued[0]
            if first.stored.done():
                self._queued.popleft()  # its caller has given up
                continue
            key, record = first.records[first.batched]
            if batch.append(timestamp=None, key=key, value=record) is None:
                break  # full; an empty batch takes a record of any size
            first.batched += 1
            if first.batched == len(first.records):
                self._ending.append(self._queued.popleft())
        batch.close()
        return batch if batch.record_count() else None


def _resolve(append: _Append, error: KafkaError | None) -> None:
    if append.stored.done():
        return
    if error is None:
        append.stored.set_result(None)
    else:
        append.stored.set_exception(error)
