"""From one worker's outbox to one log writer.

Every pair of worker and destination has a delivery of its own, so that a destination that stalls
fills one outbox and costs no other one anything. `push` never waits: it is called on the path of
the engine's events.

A destination that missed records is brought back by a snapshot, which is taken in the same instant
as it is queued, so that the records pushed after it continue it exactly. It is asked for only when
the destination answers again, for a snapshot of a destination that stays away grows stale while it
waits. That is so when

- the outbox overflowed,
- the receiver says that it cannot continue (`Appended.needs_snapshot`), at most once in a while: a
  receiver that is over its memory budget says so for ever, or
- the log is another one than before (`Appended.identity`): all that was appended is gone.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kvatlas_events.backoff import Backoff
from kvatlas_events.log import Appended, LogUnavailable, LogWriter, RecordsRejected
from kvatlas_events.model import Worker
from kvatlas_native import Outbox

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettings:
    """Bounds and times of a delivery; `_s` is seconds."""

    queue_records_max: int = 16_384
    queue_bytes_max: int = 64 << 20
    append_records_max: int = 512
    append_bytes_max: int = 4 << 20
    flush_s: float = 0.001
    """A record that finds the outbox empty waits so long for company; 0: not at all."""
    retry_s_min: float = 0.05
    retry_s_max: float = 5.0
    snapshot_s_min: float = 0.5
    """Between two snapshots that the receiver asks for; doubles while it is not content."""
    snapshot_s_max: float = 60.0


@dataclass(slots=True)
class DeliveryCounts:
    """What a delivery did since it was made; only ever counted up."""

    appended_records: int = 0
    appended_bytes: int = 0
    retries: int = 0
    rejected_records: int = 0
    dropped_records: int = 0
    snapshots: int = 0


class Delivery:
    """Delivers one worker's records to one writer, until it is closed.

    The owner runs `run()` as a task and calls the rest from the same event loop. The writer stays
    the owner's: deliveries may share it.

    Args:
        worker: whose records these are.
        writer: where they go.
        snapshot: returns the records of a snapshot of this moment. Called on the event loop.
        rejected: told of every `RecordsRejected`; the records are given up. What it raises ends
            `run`. None: `run` raises the rejection itself.
        settings: bounds and times.
        rng: of the jitter.
        sleep: waits for so many seconds; of the backoff.
        monotonic_s: a clock; of the time between snapshots.
    """

    def __init__(
        self,
        worker: Worker,
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
        """Why the writer does not answer; None while it does, or before it has been asked."""
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
        """Records that wait, or are under way and not acknowledged; heartbeats apart."""
        return self._outbox.queued_records

    @property
    def queued_bytes(self) -> int:
        """The bytes of the queued records."""
        return self._outbox.queued_bytes

    @property
    def overflows(self) -> int:
        """How often the outbox overflowed and dropped what it held."""
        return self._outbox.overflows

    def push(self, record: bytes) -> None:
        """Queue a numbered record, or drop it while a snapshot is due anyway."""
        if not self._outbox.push(record):
            self.counts.dropped_records += 1
        self._notify()

    def push_heartbeat(self, record: bytes) -> None:
        """Send `record` when all that is queued has been, unless a newer one comes first."""
        self._outbox.push_heartbeat(record)
        self._notify()

    def require_snapshot(self) -> None:
        """Drop what is queued and send a snapshot instead: the start of an epoch, for one."""
        self._outbox.require_snapshot()
        self._notify()

    async def run(self) -> None:
        """Deliver until `close`, or until cancelled.

        Raises:
            RecordsRejected: if nobody else was to be told.
        """
        self._task = asyncio.current_task()
        try:
            while await self._work():
                if not await self._answers():
                    continue
                if self._outbox.awaits_snapshot:
                    # No await between these two: the snapshot is of the moment it is queued.
                    self._outbox.push_snapshot(self._snapshot())
                    self.counts.snapshots += 1
                await self._append()
        finally:
            self._task = None
            self._ended.set()

    async def close(self, drain_s: float) -> bool:
        """Deliver what is queued for at most `drain_s` seconds, then end `run`.

        True: everything was acknowledged, what was due as a snapshot too. Push nothing after it.
        `run` must have been started as a task, though it need not have begun.
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

    async def _work(self) -> bool:
        """Wait until there is something to do; False: nothing is left, and it is closed."""
        while not self._has_work():
            if self._closing:
                return False
            self._wake.clear()
            self._full.clear()
            await self._wake.wait()
            if self._settings.flush_s <= 0:
                continue
            # What comes first waits a little; what piled up during an append has waited already.
            try:
                async with asyncio.timeout(self._settings.flush_s):
                    await self._full.wait()
            except TimeoutError:
                continue
        return True

    async def _answers(self) -> bool:
        """Make sure, before a snapshot is taken, that somebody is there to get it."""
        if not self._outbox.awaits_snapshot:
            return True
        try:
            appended = await self._attempt([])
        except RecordsRejected as error:
            await self._tell(error)
            return False
        if appended is not None:
            self._identity = appended.identity
        return appended is not None

    async def _append(self) -> None:
        peeked = self._outbox.peek(
            self._settings.append_records_max, self._settings.append_bytes_max
        )
        if peeked is None:
            return  # a snapshot of nothing
        ticket, records = peeked
        try:
            appended = await self._attempt(records)
        except RecordsRejected as error:
            self.counts.rejected_records += len(records)
            await self._tell(error, given_up=ticket)
            return
        if appended is None:
            return
        self._outbox.acknowledge(ticket)
        self.counts.appended_records += len(records)
        self.counts.appended_bytes += sum(map(len, records))
        self._heed(appended)

    async def _tell(self, rejection: RecordsRejected, *, given_up: int | None = None) -> None:
        """Tell the owner of a rejection, let go of what was rejected, and pause."""
        if self._rejected is None:
            raise rejection
        self._rejected(rejection)
        if given_up is not None:
            self._outbox.acknowledge(given_up)
        await self._sleep(self._retry.next_s())

    async def _attempt(self, records: Sequence[bytes]) -> Appended | None:
        """Append once; None: the writer was unavailable, and the pause is over."""
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

    def _heed(self, appended: Appended) -> None:
        """Do what the acknowledgement asks for."""
        before, self._identity = self._identity, appended.identity
        if before not in {None, appended.identity}:
            _log.warning("%s lost its data; sending worker %s again", self.writer.name, self.worker)
            self._outbox.require_snapshot()
            return
        if self._outbox.holds_snapshot or self._outbox.awaits_snapshot:
            return  # what is demanded is on its way
        if self.worker not in appended.needs_snapshot:
            self._snapshot_pause.reset()
            return
        now_s = self._monotonic_s()
        if now_s >= self._snapshot_not_before_s:
            self._snapshot_not_before_s = now_s + self._snapshot_pause.next_s()
            self._outbox.require_snapshot()
