"""The deliveries of one worker's records, one per destination, and the tasks that run them."""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from kvatlas_chassis import FatalError, SettingsError, TaskSet
from kvatlas_events import LogWriter, RecordsRejected
from kvatlas_events.delivery import Delivery
from kvatlas_events.log import Fenced
from kvatlas_publisher.context import WorkerContext

log = logging.getLogger(__name__)


class Deliveries:
    """Every destination of one worker's records; each stalls, overflows and recovers alone.

    Args:
        context: the worker.
        writers: the destinations; `close` closes them.
        snapshot: returns the records of a snapshot of this moment.
        is_own_epoch: returns whether this process opened an epoch of the worker.
    """

    def __init__(
        self,
        context: WorkerContext,
        writers: Sequence[LogWriter],
        *,
        snapshot: Callable[[], Sequence[bytes]],
        is_own_epoch: Callable[[int], bool],
    ) -> None:
        self._context = context
        self._writers = writers
        self._snapshot = snapshot
        self._is_own_epoch = is_own_epoch
        self._tasks: TaskSet | None = None
        self._all = self._make()

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._all)

    def start(self) -> TaskSet:
        """Deliver in tasks, and return them.

        A task fails with a FatalError if a receiver will never accept the worker's records.
        """
        self._tasks = TaskSet()
        for delivery in self._all:
            self._start(delivery, self._tasks)
        return self._tasks

    def on_worker_changed(self, drain_s: float) -> None:
        """Deliver for the context's new worker, after what is queued for the old one.

        Each new delivery waits at most `drain_s` seconds for the old one of the same destination. A
        destination that does not answer delays only itself.
        """
        if self._tasks is None:
            raise RuntimeError("not started")
        old, self._all = self._all, self._make()
        for before, after in zip(old, self._all, strict=True):
            self._tasks.start(self._hand_over(before, after, drain_s), name="hand over")

    def push(self, record: bytes) -> None:
        """Queue a numbered record for every destination."""
        for delivery in self._all:
            delivery.push(record)

    def push_heartbeat(self, record: bytes) -> None:
        """Queue a heartbeat for every destination."""
        for delivery in self._all:
            delivery.push_heartbeat(record)

    def require_snapshot(self) -> None:
        """Send every destination a snapshot before what is pushed from now on."""
        for delivery in self._all:
            delivery.require_snapshot()

    async def close(self, drain_s: float) -> bool:
        """Deliver what is queued for at most `drain_s` seconds, then close the writers.

        True: every destination has acknowledged everything, or `start` was never called.
        """
        delivered = True
        if self._tasks is not None:
            closing = (delivery.close(drain_s) for delivery in self._all)
            delivered = all(await asyncio.gather(*closing))
            await self._tasks.close()
        for writer in self._writers:
            await writer.close()
        return delivered

    def _make(self) -> list[Delivery]:
        made: list[Delivery] = []
        made += (
            Delivery(
                self._context.worker,
                writer,
                snapshot=self._snapshot,
                rejected=partial(self._on_rejected, made),
                settings=self._context.process.delivery,
                rng=random.Random(),
            )
            for writer in self._writers
        )
        return made

    async def _hand_over(self, before: Delivery, after: Delivery, drain_s: float) -> None:
        await before.close(drain_s)
        if self._tasks is not None:
            self._start(after, self._tasks)

    def _start(self, delivery: Delivery, tasks: TaskSet) -> None:
        tasks.start(delivery.run(), name=f"delivery to {delivery.writer.name}")

    def _on_rejected(self, deliveries: Sequence[Delivery], rejection: RecordsRejected) -> None:
        """End the process if a receiver will never accept its records; else count and log it."""
        if isinstance(rejection, Fenced):
            if self._is_own_epoch(rejection.rival_epoch):
                return  # our own next epoch arrived there first, by another transport
            raise FatalError(f"kvatlas publisher: {rejection}")
        if not any(delivery.counts.appended_records for delivery in deliveries):
            raise SettingsError(f"kvatlas publisher: events are refused: {rejection}")
        self._context.counters.rejections += 1
        if self._context.log_limiter.allows("rejected"):
            log.error("worker %s: events are refused: %s", self._context.worker, rejection)
