"""What is on its way to one partition: many tasks' appends, in batches, one batch at a time.

The library keeps a batch until the server has it, however long that takes. A caller who gave up
meanwhile appends the same records again, behind that batch: repeated, and never out of order.
"""

# The client library comes without types.
# pyright: reportMissingTypeStubs=false

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aiokafka.errors import KafkaConnectionError, KafkaError, UnknownTopicOrPartitionError

from kvatlas_events.kafka_server import Client


@dataclass(slots=True)
class _Pending:
    records: Sequence[tuple[bytes, bytes | None]]
    stored: asyncio.Future[None] = field(default_factory=asyncio.Future[None])
    batched: int = 0


class KafkaLane:
    """The way to one partition.

    Args:
        producer: the library's.
        stored: called with the partition and the offset of each batch's first record.
    """

    def __init__(
        self, producer: Client, topic: str, partition: int, stored: Callable[[int, int], None]
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._stored = stored
        self._pending = deque[_Pending]()
        self._ending: list[_Pending] = []  # of which the last record is in the batch under way
        self._pump: asyncio.Task[None] | None = None
        self._begun_s: float | None = None  # when the batch under way was handed over
        self.failed = False
        """The producer gave a batch up: what it sends after that may be refused too."""

    def waits_s(self, now_s: float) -> float:
        """Return for how long the library has had the batch under way; 0: there is none."""
        return 0.0 if self._begun_s is None else now_s - self._begun_s

    def append(self, records: Sequence[tuple[bytes, bytes | None]]) -> asyncio.Future[None]:
        """Queue keys and records, None for no value; the future says when all are stored.

        Cancelled, what of them is in no batch yet will be in none.
        """
        while self._pending and self._pending[0].stored.done():
            self._pending.popleft()  # its caller has given up, as all do before long
        pending = _Pending(records)
        self._pending.append(pending)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._send_all())
        return pending.stored

    def close(self) -> None:
        """Give up what is on its way: whoever waits for it is told at once."""
        if self._pump is not None:
            self._pump.cancel()
        self._fail(KafkaConnectionError("the producer was given up"))

    async def _send_all(self) -> None:
        try:
            while (batch := self._fill()) is not None:
                self._begun_s = asyncio.get_running_loop().time()
                sent = await self._producer.send_batch(
                    batch, self._topic, partition=self._partition
                )
                self._stored(self._partition, (await sent).offset)
                self._begun_s = None
                for each in self._ending:
                    _resolve(each, None)
                self._ending.clear()
        except KafkaError as error:
            self.failed = True
            self._fail(error)
        except AssertionError as error:
            # The library's own: its brokers have not told it of this partition yet.
            self.failed = True
            self._fail(UnknownTopicOrPartitionError(str(error)))

    def _fail(self, error: KafkaError) -> None:
        for each in [*self._ending, *self._pending]:
            _resolve(each, error)
        self._ending.clear()
        self._pending.clear()

    def _fill(self) -> Client | None:
        """Return a batch of what is queued, and note what ends in it; None: nothing is queued."""
        batch: Client = self._producer.create_batch()
        while self._pending:
            first = self._pending[0]
            if first.stored.done():
                self._pending.popleft()  # its caller has given up
                continue
            key, record = first.records[first.batched]
            if batch.append(timestamp=None, key=key, value=record) is None:
                break  # full; an empty one takes a record of any size
            first.batched += 1
            if first.batched == len(first.records):
                self._ending.append(self._pending.popleft())
        batch.close()
        return batch if batch.record_count() else None


def _resolve(pending: _Pending, error: KafkaError | None) -> None:
    if pending.stored.done():
        return
    if error is None:
        pending.stored.set_result(None)
    else:
        pending.stored.set_exception(error)
