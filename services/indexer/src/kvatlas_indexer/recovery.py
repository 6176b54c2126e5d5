"""Asks publishers for lost records: one attempt per worker at a time, and few at once.

The cell lists the workers that lack records. An attempt begins after a jittered pause, in which most
gaps close by themselves. It asks for `Replay` of the records after the last applied event, and then
for `Snapshot`. The answers go into the cell like any other record, so the sequencer alone judges them,
and a log that goes on meanwhile does no harm.

Each attempt, successful or not, lengthens the pause before the worker's next one. A worker that stays
whole for a while starts with the shortest pause again. So the number of calls is bounded, whatever
fails. The cell's last resort, to empty the set, works independently of this.

Answers are applied on a thread of their own, so the logs' feeds never wait for a recovery.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TypeVar

from kvatlas_chassis import TaskSet
from kvatlas_events.backoff import Backoff
from kvatlas_indexer.rpc import Declined, Publisher, Unreachable, dial
from kvatlas_native import Cell, RecoveryRequest
from kvatlas_wire import WorkerKey

TRANSPORT = "recovery"
_PAGE = 256
"""Recovery requests read from the cell at a time."""
_POLL_S = 0.1
_POLL_S_MIN = 0.01

log = logging.getLogger(__name__)

T = TypeVar("T")


class Outcome(StrEnum):
    """The result of an attempt."""

    REPLAYED = "replayed"
    """The publisher's newest records made the worker whole."""
    SNAPSHOT = "snapshot"
    """The publisher's whole set made the worker whole."""
    UNREACHABLE = "unreachable"
    DECLINED = "declined"
    """The publisher does not have the data; it may serve another worker."""
    TIMED_OUT = "timed_out"
    NOT_HEALED = "not_healed"
    """An answer came, but the worker still lacks records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryLimits:
    """Bounds of all recoveries; `_s` is seconds."""

    at_once: int
    attempt_s: float = 15.0
    start_s_max: float = 0.5
    """Longest random pause before a worker's first attempt."""
    retry_s_min: float = 0.5
    retry_s_max: float = 30.0


class _Track:
    """The history of one worker's recovery."""

    def __init__(self, pause: Backoff, not_before_s: float, applied: int) -> None:
        self.pause = pause
        self.not_before_s = not_before_s
        self.applied = applied
        self.requested_at_s = not_before_s
        self.failed = False


class Recovery:
    """Recovers a cell's workers. `run` is its one task; the rest may be read at any time.

    Args:
        cell: the cell with the workers.
        limits: bounds of the load on publishers and on this replica.
        may_start: whether the logs are read to their heads; before that, the logs themselves bring
            most records that seem lost.
        unix_ms: the wall clock.
        connect: opens a channel to a publisher's address.
        rng: random numbers for pauses.
        monotonic_s: the clock of the pauses.
    """

    def __init__(
        self,
        cell: Cell,
        limits: RecoveryLimits,
        *,
        may_start: Callable[[], bool],
        unix_ms: Callable[[], int],
        connect: Callable[[str], AbstractAsyncContextManager[Publisher]] = dial,
        rng: random.Random | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.attempts: Counter[Outcome] = Counter()
        self._cell = cell
        self._limits = limits
        self._may_start = may_start
        self._unix_ms = unix_ms
        self._connect = connect
        self._rng = rng or random.Random()
        self._monotonic_s = monotonic_s
        self._tracks: dict[WorkerKey, _Track] = {}
        self._running: set[WorkerKey] = set()
        self._page_after: WorkerKey | None = None
        self._ended = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="recovery")

    @property
    def running(self) -> int:
        """Attempts under way; at most `limits.at_once`."""
        return len(self._running)

    async def run(self) -> None:
        """Recover for ever; attempts under way end with it."""
        tasks = TaskSet()
        failed = asyncio.create_task(tasks.failed())
        try:
            while not failed.done():
                self._ended.clear()
                if self._may_start() and len(self._running) < self._limits.at_once:
                    await self._begin_attempts(tasks)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S):
                        await self._ended.wait()
                    await asyncio.sleep(_POLL_S_MIN)  # many attempts end together
            await failed
        finally:
            failed.cancel()
            await tasks.close()
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _begin_attempts(self, tasks: TaskSet) -> None:
        """Begin the attempts that are due, on the next page of recovery requests."""
        requests = await self._on_thread(
            partial(self._cell.recovery_requests, _PAGE, after=self._page_after)
        )
        now_s = self._monotonic_s()
        self._page_after = None
        for request in requests:
            if len(self._running) == self._limits.at_once:
                return  # the next call begins where this one ends
            key = WorkerKey(request.worker_id, request.dp_rank)
            self._page_after = key
            track = self._tracked(key, request, now_s)
            if self._is_due(key, request, track, now_s):
                self._running.add(key)
                tasks.start(
                    self._attempt(key, request, track), name=f"recovery of {_name(request)}"
                )
        if len(requests) < _PAGE:
            self._page_after = None
            self._forget(now_s)

    def _tracked(self, key: WorkerKey, request: RecoveryRequest, now_s: float) -> _Track:
        track = self._tracks.get(key)
        if track is None:
            limits = self._limits
            pause = Backoff(limits.retry_s_min, limits.retry_s_max, self._rng)
            track = self._tracks[key] = _Track(pause, now_s + self._jitter_s(), request.applied)
        track.requested_at_s = now_s
        return track

    def _is_due(
        self, key: WorkerKey, request: RecoveryRequest, track: _Track, now_s: float
    ) -> bool:
        if key in self._running or now_s < track.not_before_s or not request.publisher_rpc:
            return False
        moved, track.applied = request.applied != track.applied, request.applied
        if moved and not request.recovering:
            # The log closes its gaps, for example if two transports overlap: wait once more.
            track.not_before_s = now_s + self._jitter_s()
            return False
        return True

    def _forget(self, now_s: float) -> None:
        """Drop the history of workers that have been whole for a while, or are silent."""
        whole_s = self._limits.retry_s_max
        forgotten = [
            key
            for key, track in self._tracks.items()
            if key not in self._running
            and now_s - max(track.requested_at_s, track.not_before_s) > whole_s
        ]
        for key in forgotten:
            del self._tracks[key]

    def _jitter_s(self) -> float:
        return self._rng.random() * self._limits.start_s_max

    async def _attempt(self, key: WorkerKey, request: RecoveryRequest, track: _Track) -> None:
        try:
            outcome = await self._ask(request, track)
            self.attempts[outcome] += 1
        finally:
            track.not_before_s = self._monotonic_s() + track.pause.next_s()
            self._running.discard(key)
            self._ended.set()

    async def _ask(self, request: RecoveryRequest, track: _Track) -> Outcome:
        """Ask within the attempt's time; log a failure and return it as the outcome."""
        try:
            async with (
                asyncio.timeout(self._limits.attempt_s),
                self._connect(request.publisher_rpc) as publisher,
            ):
                return await self._recover(publisher, request)
        except Unreachable as error:
            outcome, why = Outcome.UNREACHABLE, str(error)
        except Declined as error:
            outcome, why = Outcome.DECLINED, str(error)
        except TimeoutError:
            outcome = Outcome.TIMED_OUT
            why = f"{request.publisher_rpc}: no whole answer within {self._limits.attempt_s:g} s"
        level = logging.DEBUG if track.failed else logging.WARNING  # counters show repetitions
        log.log(level, "cannot recover worker %s: %s", _name(request), why)
        track.failed = True
        return outcome

    async def _recover(self, publisher: Publisher, request: RecoveryRequest) -> Outcome:
        if request.applied < request.known:
            try:
                if await self._apply_answer(publisher.replay(request), request):
                    return Outcome.REPLAYED
            except Declined as error:
                log.info("worker %s: no replay: %s", _name(request), error)
        if await self._apply_answer(publisher.snapshot(request), request):
            return Outcome.SNAPSHOT
        return Outcome.NOT_HEALED

    async def _apply_answer(
        self, answer: AsyncGenerator[Sequence[bytes], None], request: RecoveryRequest
    ) -> bool:
        """Apply the answer; True: the worker lacks nothing any more."""
        async with aclosing(answer):
            async for records in answer:
                await self._on_thread(partial(self._apply, records, request))
        lacks = partial(self._cell.recovery_request, request.worker_id, request.dp_rank)
        return await self._on_thread(lacks) is None

    def _apply(self, records: Sequence[bytes], request: RecoveryRequest) -> None:
        now_ms = self._unix_ms()
        applied = self._cell.apply(
            records,
            transport=TRANSPORT,
            appended_unix_ms=[now_ms] * len(records),
            now_unix_ms=now_ms,
        )
        if applied.first_rejection is not None:
            log.warning(
                "recovery of worker %s: %d of %d records rejected; the first: %s",
                _name(request),
                applied.rejected,
                len(records),
                applied.first_rejection,
            )

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _name(request: RecoveryRequest) -> str:
    return f"{request.worker_id}/{request.dp_rank}"
