"""Delivers one worker's records from its outbox to one log writer.

Each pair of worker and destination has its own delivery, so a destination that stalls fills its own
outbox only. `push` never waits, because it is called on the path of the engine's events.

A destination that missed records gets a snapshot. The snapshot is taken at the moment it is queued,
so the records pushed after it continue it exactly. It is taken only when the destination answers
again, because an earlier one would be outdated by then. A destination misses records when

- the outbox overflowed,
- the receiver cannot continue (`Appended.needs_snapshot`); repeated requests are rate-limited,
  because a receiver that is over its memory budget always asks, or
- the log's identity changed (`Appended.identity`): everything appended before is lost.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kvatlas_events.backoff import Backoff
from kvatlas_events.log import Appended, LogUnavailable, LogWriter, RecordsRejected
from kvatlas_native import Outbox
from kvatlas_wire import WorkerKey

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettings:
    """Bounds and times of a delivery; `_s`: in seconds."""

    queue_records_max: int = 16_384
    queue_bytes_max: int = 64 << 20
    append_records_max: int = 512
    append_bytes_max: int = 4 << 20
    flush_s: float = 0.001
    """Time that the first record in an empty outbox waits for more; 0: sent at once."""
    retry_s_min: float = 0.05
    retry_s_max: float = 5.0
    snapshot_s_min: float = 0.5
    """Pause between snapshots that the receiver asks for; doubles while it asks again."""
    snapshot_s_max: float = 60.0


@dataclass(slots=True)
class DeliveryCounts:
    """Counters of a delivery since its creation."""

    appended_records: int = 0
    appended_bytes: int = 0
    retries: int = 0
    rejected_records: int = 0
    dropped_records: int = 0
    snapshots: int = 0


class Delivery:
    """Delivers one worker's records to one writer, until it is closed.

    The owner runs `run()` as a task and calls the other methods on the same event loop. The owner
    also closes the writer, because deliveries may share it.

    Args:
        worker: worker whose records these are.
        writer: destination.
        snapshot: returns the records of a snapshot of this moment. Called on the event loop.
        rejected: called with every `RecordsRejected`; the records are dropped. An error that it
            raises ends `run`. None: `run` raises the rejection itself.
        settings: bounds and times.
        rng: source of the jitter.
        sleep: waits for a number of seconds, for the backoff.
        monotonic_s: clock for the time between snapshots, in seconds.
    """

    def __init__(
        self,
        worker: WorkerKey,
        writer: LogWriter,
        *,
        snapshot: Callable[[], Sequence[bytes]],
        rejected: Callable[[RecordsRejected], None] | None = None,
        settings: DeliverySettings | None = None,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.worker = worker
        self.writer = writer
        self.counts = DeliveryCounts()
        self.unavailable: str | None = None
        """Reason why the writer does not answer; None while it answers, or before the first call."""
        self._settings = settings = settings or DeliverySettings()
        rng = rng or random.Random()
        self._snapshot = snapshot
        self._rejected = rejected
        self._sleep = sleep
        self._monotonic_s = monotonic_s
        self._retry = Backoff(settings.retry_s_min, settings.retry_s_max, rng)
        self._snapshot_pause = Backoff(settings.snapshot_s_min, settings.snapshot_s_max, rng)
        self._snapshot_not_before_s = monotonic_s()
        self._identity: str | None = None
        self._outbox = Outbox(
            records_max=settings.queue_records_max, bytes_max=settings.queue_bytes_max
        )
        self._wake = asyncio.Event()
        self._full = asyncio.Event()
        self._ended = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    @property
    def queued_records(self) -> int:
        """Records that wait or are not acknowledged yet, without heartbeats."""
        return self._outbox.queued_records

    @property
    def queued_bytes(self) -> int:
        """Bytes of the queued records."""
        return self._outbox.queued_bytes

    @property
    def overflows(self) -> int:
        """Number of times that the outbox overflowed and dropped its records."""
        return self._outbox.overflows

    def push(self, record: bytes) -> None:
        """Queue a numbered record; drop it while a snapshot is due anyway."""
        if not self._outbox.push(record):
            self.counts.dropped_records += 1
        self._notify()

    def push_heartbeat(self, record: bytes) -> None:
        """Send `record` after everything queued, unless a newer heartbeat replaces it."""
        self._outbox.push_heartbeat(record)
        self._notify()

    def require_snapshot(self) -> None:
        """Drop the queued records and send a snapshot instead, for example at the start of an epoch."""
        self._outbox.require_snapshot()
        self._notify()

    async def run(self) -> None:
        """Deliver until `close`, or until cancelled.

        Raises:
            RecordsRejected: if `rejected` is None.
        """
        self._task = asyncio.current_task()
        try:
            while await self._wait_for_work():
                if not await self._answers():
                    continue
                if self._outbox.awaits_snapshot:
                    # No await between these two: the snapshot must be queued at the moment it is taken.
                    self._outbox.push_snapshot(self._snapshot())
                    self.counts.snapshots += 1
                await self._append()
        finally:
            self._task = None
            self._ended.set()

    async def close(self, drain_s: float) -> bool:
        """Deliver the queued records for at most `drain_s` seconds, then end `run`.

        Returns True if everything was acknowledged, also a snapshot that was due. Push nothing
        afterwards. `run` must have been started as a task; it need not have begun.
        """
        self._closing = True
        self._notify()
        try:
            async with asyncio.timeout(drain_s):
                await self._ended.wait()
        except TimeoutError:
            if self._task is not None:
                self._task.cancel()
                await self._ended.wait()
        return not self._has_work()

    def _has_work(self) -> bool:
        return self._outbox.awaits_snapshot or not self._outbox.is_empty

    def _notify(self) -> None:
        self._wake.set()
        outbox, settings = self._outbox, self._settings
        if (
            self._closing
            or outbox.queued_records >= settings.append_records_max
            or outbox.queued_bytes >= settings.append_bytes_max
        ):
            self._full.set()

    async def _wait_for_work(self) -> bool:
        """Wait until there is something to send; False: closed, and nothing is left."""
        while not self._has_work():
            if self._closing:
                return False
            self._wake.clear()
            self._full.clear()
            await self._wake.wait()
            if self._settings.flush_s <= 0:
                continue
            # The first record waits a little; records that came during an append have waited already.
            try:
                async with asyncio.timeout(self._settings.flush_s):
                    await self._full.wait()
            except TimeoutError:
                continue
        return True

    async def _answers(self) -> bool:
        """Check before a snapshot is taken that the writer answers."""
        if not self._outbox.awaits_snapshot:
            return True
        try:
            appended = await self._attempt([])
        except RecordsRejected as error:
            await self._reject(error)
            return False
        if appended is not None:
            self._identity = appended.identity
        return appended is not None

    async def _append(self) -> None:
        peeked = self._outbox.peek(
            self._settings.append_records_max, self._settings.append_bytes_max
        )
        if peeked is None:
            return  # an empty snapshot
        ticket, records = peeked
        try:
            appended = await self._attempt(records)
        except RecordsRejected as error:
            self.counts.rejected_records += len(records)
            await self._reject(error, ticket=ticket)
            return
        if appended is None:
            return
        self._outbox.acknowledge(ticket)
        self.counts.appended_records += len(records)
        self.counts.appended_bytes += sum(map(len, records))
        self._on_acknowledged(appended)

    async def _reject(self, rejection: RecordsRejected, *, ticket: int | None = None) -> None:
        """Report a rejection to the owner, drop the rejected records, and pause."""
        if self._rejected is None:
            raise rejection
        self._rejected(rejection)
        if ticket is not None:
            self._outbox.acknowledge(ticket)
        await self._sleep(self._retry.next_s())

    async def _attempt(self, records: Sequence[bytes]) -> Appended | None:
        """Append once; None: the writer was unavailable, and the backoff has passed."""
        try:
            appended = await self.writer.append(records)
        except LogUnavailable as error:
            if self.unavailable is None:
                _log.warning("cannot deliver events of worker %s: %s", self.worker, error)
            self.unavailable = str(error)
            self.counts.retries += 1
            await self._sleep(self._retry.next_s())
            return None
        if self.unavailable is not None:
            _log.info("delivering events of worker %s to %s again", self.worker, self.writer.name)
        self.unavailable = None
        self._retry.reset()
        return appended

    def _on_acknowledged(self, appended: Appended) -> None:
        """Require a snapshot if the acknowledgement calls for one."""
        before, self._identity = self._identity, appended.identity
        if before not in {None, appended.identity}:
            _log.warning("%s lost its data; sending worker %s again", self.writer.name, self.worker)
            self._outbox.require_snapshot()
            return
        if self._outbox.holds_snapshot or self._outbox.awaits_snapshot:
            return  # a snapshot is on its way
        if self.worker not in appended.needs_snapshot:
            self._snapshot_pause.reset()
            return
        now_s = self._monotonic_s()
        if now_s >= self._snapshot_not_before_s:
            self._snapshot_not_before_s = now_s + self._snapshot_pause.next_s()
            self._outbox.require_snapshot()
