"""Asks publishers for what this replica lacks: one attempt per worker at a time, few at once.

The cell lists who lacks records. Each such worker is asked for after a jittered pause, in which most
gaps close by themselves: first `Replay` of what follows the last event applied, then `Snapshot`.
What comes goes into the cell like any other record, so the sequencer alone decides what it is worth,
and a log that goes on meanwhile changes nothing. Every attempt, healed or not, lengthens the pause
before the worker's next one; a worker that stays whole for a while starts afresh. So whatever fails,
the number of calls is bounded, and the cell's last resort (empty the set, count it) is untouched.

Applying runs on a thread of its own: the logs' feeds never queue behind a recovery.
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
from kvatlas_native import Cell, WorkerNeed

TRANSPORT = "recovery"
_PAGE = 256
_LOOK_S = 0.1
_LOOK_S_MIN = 0.01

log = logging.getLogger(__name__)

Key = tuple[int, int]
T = TypeVar("T")


class Outcome(StrEnum):
    """How an attempt ended."""

    REPLAYED = "replayed"
    """Whole, by the publisher's newest records."""
    SNAPSHOT = "snapshot"
    """Whole, by the publisher's whole set."""
    UNREACHABLE = "unreachable"
    DECLINED = "declined"
    """The publisher does not have it: another worker's, for one."""
    TIMED_OUT = "timed_out"
    NOT_HEALED = "not_healed"
    """An answer came, and the worker still lacks something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryLimits:
    """Bounds of all recoveries; `_s` is seconds."""

    at_once: int
    attempt_s: float = 15.0
    start_s_max: float = 0.5
    """Of the jitter before a worker's first attempt."""
    retry_s_min: float = 0.5
    retry_s_max: float = 30.0


class _Track:
    """What is remembered of one worker's recovery."""

    def __init__(self, pause: Backoff, not_before_s: float, applied: int) -> None:
        self.pause = pause
        self.not_before_s = not_before_s
        self.applied = applied
        self.needed_at_s = not_before_s
        self.failed = False


class Recovery:
    """Recovers a cell's workers. `run` is its one task; the rest may be read at any time.

    Args:
        cell: whose workers these are.
        limits: bounds of the load on publishers and on this replica.
        may_start: says whether the logs were read to their heads; a log that still comes in heals
            most of what it seems to lack.
        unix_ms: the wall clock.
        connect: reaches a publisher by its address.
        rng: of jitter and pauses.
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
        self._tracks: dict[Key, _Track] = {}
        self._running: set[Key] = set()
        self._page_after: Key | None = None
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
                    await self._look(tasks)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._ended.wait()
                    await asyncio.sleep(_LOOK_S_MIN)  # many end together: look once
            await failed
        finally:
            failed.cancel()
            await tasks.close()
            self._thread.shutdown(wait=False, cancel_futures=True)

    # --- whom to ask for, and when ---

    async def _look(self, tasks: TaskSet) -> None:
        """Begin the attempts that are due, on the next page of the list."""
        needs = await self._on_thread(partial(self._cell.needs, _PAGE, after=self._page_after))
        now_s = self._monotonic_s()
        self._page_after = None
        for need in needs:
            if len(self._running) == self._limits.at_once:
                return  # the next look begins where this one ends
            key = (need.worker_id, need.dp_rank)
            self._page_after = key
            track = self._tracked(key, need, now_s)
            if self._is_due(key, need, track, now_s):
                self._running.add(key)
                tasks.start(self._attempt(key, need, track), name=f"recovery of {_name(need)}")
        if len(needs) < _PAGE:
            self._page_after = None
            self._forget(now_s)

    def _tracked(self, key: Key, need: WorkerNeed, now_s: float) -> _Track:
        track = self._tracks.get(key)
        if track is None:
            limits = self._limits
            pause = Backoff(limits.retry_s_min, limits.retry_s_max, self._rng)
            track = self._tracks[key] = _Track(pause, now_s + self._jitter_s(), need.applied)
        track.needed_at_s = now_s
        return track

    def _is_due(self, key: Key, need: WorkerNeed, track: _Track, now_s: float) -> bool:
        if key in self._running or now_s < track.not_before_s or not need.publisher_rpc:
            return False
        moved, track.applied = need.applied != track.applied, need.applied
        if moved and not need.recovering:
            # Its gaps close by themselves, as between two transports: give it another moment.
            track.not_before_s = now_s + self._jitter_s()
            return False
        return True

    def _forget(self, now_s: float) -> None:
        """Let go of workers that have been whole for a while, or are silent."""
        whole_s = self._limits.retry_s_max
        over = [
            key
            for key, track in self._tracks.items()
            if key not in self._running
            and now_s - max(track.needed_at_s, track.not_before_s) > whole_s
        ]
        for key in over:
            del self._tracks[key]

    def _jitter_s(self) -> float:
        return self._rng.random() * self._limits.start_s_max

    # --- one attempt ---

    async def _attempt(self, key: Key, need: WorkerNeed, track: _Track) -> None:
        try:
            outcome = await self._ask(need, track)
            self.attempts[outcome] += 1
        finally:
            track.not_before_s = self._monotonic_s() + track.pause.next_s()
            self._running.discard(key)
            self._ended.set()

    async def _ask(self, need: WorkerNeed, track: _Track) -> Outcome:
        """Ask within the attempt's time; what goes wrong is said and is an outcome."""
        try:
            async with (
                asyncio.timeout(self._limits.attempt_s),
                self._connect(need.publisher_rpc) as publisher,
            ):
                return await self._heal(publisher, need)
        except Unreachable as error:
            outcome, why = Outcome.UNREACHABLE, str(error)
        except Declined as error:
            outcome, why = Outcome.DECLINED, str(error)
        except TimeoutError:
            outcome = Outcome.TIMED_OUT
            why = f"{need.publisher_rpc}: no whole answer within {self._limits.attempt_s:g} s"
        level = logging.DEBUG if track.failed else logging.WARNING  # the counters tell the rest
        log.log(level, "cannot recover worker %s: %s", _name(need), why)
        track.failed = True
        return outcome

    async def _heal(self, publisher: Publisher, need: WorkerNeed) -> Outcome:
        if need.applied < need.known:
            try:
                if await self._take(publisher.replay(need), need):
                    return Outcome.REPLAYED
            except Declined as error:
                log.info("worker %s: no replay: %s", _name(need), error)
        if await self._take(publisher.snapshot(need), need):
            return Outcome.SNAPSHOT
        return Outcome.NOT_HEALED

    async def _take(self, answer: AsyncGenerator[Sequence[bytes], None], need: WorkerNeed) -> bool:
        """Apply what comes; True: the worker lacks nothing any more."""
        async with aclosing(answer):
            async for records in answer:
                await self._on_thread(partial(self._apply, records, need))
        lacks = partial(self._cell.need_of, need.worker_id, need.dp_rank)
        return await self._on_thread(lacks) is None

    def _apply(self, records: Sequence[bytes], need: WorkerNeed) -> None:
        now_ms = self._unix_ms()
        applied = self._cell.apply(
            records,
            transport=TRANSPORT,
            appended_unix_ms=[now_ms] * len(records),
            now_unix_ms=now_ms,
        )
        if applied.first_rejection is not None:
            log.warning(
                "recovery of worker %s: %d of %d records refused; the first: %s",
                _name(need),
                applied.rejected,
                len(records),
                applied.first_rejection,
            )

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _name(need: WorkerNeed) -> str:
    return f"{need.worker_id}/{need.dp_rank}"
