"""One worker's deliveries, one per destination, and the tasks that run them."""

import random
from asyncio import gather
from collections.abc import Callable, Sequence

from kvatlas_chassis import FatalError, SettingsError, TaskSet
from kvatlas_events import LogWriter, RecordsRejected, Worker
from kvatlas_events.delivery import Delivery, DeliverySettings
from kvatlas_events.log import Fenced


class Outlets:
    """Every destination of one worker's records; each stalls, overflows and recovers alone.

    Args:
        worker: whose records these are.
        writers: where they go; they stay the caller's.
        snapshot: returns the records of a snapshot of this moment.
        refused: told of records that a receiver will never take, after the first ones it took.
        is_ours: says whether an epoch of this worker was ours.
        settings: bounds and times of each delivery.
    """

    def __init__(
        self,
        worker: Worker,
        writers: Sequence[LogWriter],
        *,
        snapshot: Callable[[], Sequence[bytes]],
        refused: Callable[[RecordsRejected], None],
        is_ours: Callable[[int], bool],
        settings: DeliverySettings | None,
    ) -> None:
        self._refused = refused
        self._is_ours = is_ours
        self.deliveries = [
            Delivery(
                worker,
                writer,
                snapshot=snapshot,
                rejected=self._on_rejected,
                settings=settings,
                rng=random.Random(),
            )
            for writer in writers
        ]

    def start(self, tasks: TaskSet) -> None:
        """Deliver, as tasks of `tasks`; they fail as `Delivery.run` does, or with a FatalError."""
        for delivery in self.deliveries:
            _start(delivery, tasks)

    async def take_over(self, before: "Outlets", drain_s: float, tasks: TaskSet) -> None:
        """Do the same, each delivery once the one before it is done with the writer that they share.

        That takes `drain_s` seconds at most; a destination that is away costs the others nothing.
        """

        async def relieve(old: Delivery, new: Delivery) -> None:
            await old.close(drain_s)
            _start(new, tasks)

        await gather(*map(relieve, before.deliveries, self.deliveries))

    def push(self, record: bytes) -> None:
        """Queue a numbered record everywhere."""
        for delivery in self.deliveries:
            delivery.push(record)

    def push_heartbeat(self, record: bytes) -> None:
        """Queue a heartbeat everywhere."""
        for delivery in self.deliveries:
            delivery.push_heartbeat(record)

    def require_snapshot(self) -> None:
        """Send a snapshot everywhere, before what is pushed from now on."""
        for delivery in self.deliveries:
            delivery.require_snapshot()

    async def close(self, drain_s: float) -> bool:
        """Deliver what is queued for at most `drain_s` seconds; True: all was acknowledged."""
        return all(await gather(*(each.close(drain_s) for each in self.deliveries)))

    def _on_rejected(self, rejection: RecordsRejected) -> None:
        """Records that are never taken: a setting is wrong, here or there."""
        if isinstance(rejection, Fenced):
            if self._is_ours(rejection.rival_epoch):
                return  # our own next life came there first, by another transport
            raise FatalError(f"kvatlas publisher: {rejection}")
        if not any(delivery.counts.appended_records for delivery in self.deliveries):
            raise SettingsError(f"kvatlas publisher: events are refused: {rejection}")
        self._refused(rejection)


def _start(delivery: Delivery, tasks: TaskSet) -> None:
    tasks.start(delivery.run(), name=f"delivery to {delivery.writer.name}")
