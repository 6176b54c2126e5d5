"""Marks show whether a log accepts writes; leases stand still while none come back."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from kvatlas_events import LogSlice, LogUnavailable
from kvatlas_events.backoff import Backoff
from kvatlas_indexer.logs.log_feed import LogFeed
from kvatlas_indexer.logs.probe import Marks, Probe, interval_s
from kvatlas_wire.v1 import indexer_pb2 as rpc
from tests.unit.cell.bench import LEASE_MS, Bench
from tests.unit.cell.record_source import RecordSource, store


def marks(*, late_s: float = 3.0) -> Marks:
    return Marks("me", late_s=late_s, now_s=100.0)


def test_the_age_is_that_of_the_newest_mark_that_is_back() -> None:
    some = marks()
    first, second = some.next(101.0), some.next(102.0)
    assert first != second
    some.accepted(first, frozenset({0}))
    some.accepted(second, frozenset({0}))
    assert some.age_s(102.0) == 2.0
    some.came_back(0, second)
    some.came_back(0, first)  # after the newer one, so it changes nothing
    assert some.age_s(105.0) == 3.0
    assert not some.are_late(105.0)
    assert some.are_late(105.001)


def test_a_mark_is_back_when_it_has_come_from_every_part_of_the_log() -> None:
    some = marks()
    mark = some.next(101.0)
    some.came_back(4, mark)  # the reader can be faster than the acknowledgement
    some.came_back(4, mark)
    some.accepted(mark, frozenset({4, 7}))
    assert some.age_s(101.0) == 1.0
    some.came_back(7, mark)
    assert some.age_s(101.0) == 0.0


def test_marks_of_other_processes_and_forgotten_marks_are_ignored() -> None:
    some = marks()
    old = some.next(101.0)
    for _ in range(1_000):
        some.next(102.0)
    some.accepted(old, frozenset({0}))
    for mark in (b"you/1", b"", old):
        some.came_back(0, mark)
    assert some.age_s(102.0) == 2.0


def test_a_refused_mark_does_not_delay_the_next() -> None:
    some = marks()
    some.next(101.0)
    mark = some.next(102.0)
    some.accepted(mark, frozenset({0}))
    some.came_back(0, mark)
    assert some.age_s(102.0) == 0.0


def test_marks_are_many_in_a_lease() -> None:
    assert interval_s(1_000, 10_000) == 1.0
    assert interval_s(1_000, 800) == 0.1


class Prober:
    """The writing side of a log; `refuses`: the reason for which it refuses the next marks."""

    name = "redis://test"

    def __init__(self) -> None:
        self.refuses: str | None = None
        self.taken: list[bytes] = []
        self.asked = 0

    async def append_probe(self, mark: bytes) -> frozenset[int]:
        self.asked += 1
        if self.refuses is not None:
            raise LogUnavailable(self.refuses)
        self.taken.append(mark)
        return frozenset({0})

    async def close(self) -> None:
        pass


class Reader:
    """Answers every read at once with the marks of `prober`, while `gives` is set."""

    name = "redis://test"

    def __init__(self, prober: Prober) -> None:
        self._prober = prober
        self.gives = True
        self.records: list[bytes] = []
        self.appended_ms = 0

    async def read(self, wait_s: float) -> LogSlice:
        del wait_s
        await asyncio.sleep(0)
        records, self.records = self.records, []
        marks = self._prober.taken if self.gives else []
        if self.gives:
            self._prober.taken = []
        return LogSlice(
            records=records,
            appended_unix_ms=[self.appended_ms] * len(records),
            at_head=True,
            caught_up=True,
            trimmed=False,
            foreign=0,
            position=None,
            probes=[(0, mark) for mark in marks],
        )

    async def close(self) -> None:
        pass


class Following:
    """A running feed and its probe, on a clock that the test moves."""

    def __init__(self) -> None:
        self.bench, self.now_s = Bench(), 0.0
        self.prober = Prober()
        self.reader = Reader(self.prober)
        self.probe = Probe(self.prober, name="me", interval_s=0.0, monotonic_s=lambda: self.now_s)
        self.feed = LogFeed(
            self.bench.cell,
            self.reader,
            "redis",
            backoff=Backoff(0.0, 0.0, random.Random(1)),
            unix_ms=lambda: self.bench.now_ms,
            probe=self.probe,
        )

    async def until(self, happened: Callable[[], bool]) -> None:
        for _ in range(100_000):
            if happened():
                return
            await asyncio.sleep(0)
        raise AssertionError


@asynccontextmanager
async def following() -> AsyncGenerator[Following]:
    """Run a feed whose worker is matched, from a record of this moment."""
    each = Following()
    each.reader.records = [RecordSource().events(store(1))]
    each.reader.appended_ms = each.bench.now_ms
    tasks = [asyncio.create_task(each.feed.run()), asyncio.create_task(each.probe.run())]
    try:
        await each.until(lambda: each.feed.is_alive and each.bench.find(1) == [(1, 0, 1)])
        yield each
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_while_a_log_refuses_writes_leases_stand_still_and_reads_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with following() as f:
        f.bench.pass_ms(LEASE_MS // 2)
        f.prober.refuses = "redis://test refuses: NOREPLICAS"
        f.now_s += LEASE_MS / 2_000
        await f.until(lambda: not f.feed.is_alive)
        assert not f.bench.status().logs[0].alive
        assert f.feed.obstacle is None  # the head was reached
        asked = f.prober.asked
        await f.until(lambda: f.prober.asked > asked + 3)
        f.bench.pass_ms(100 * LEASE_MS, log_alive=f.feed.is_alive)
        assert f.bench.state() == rpc.WORKER_STATE_LIVE
        f.prober.refuses = None
        await f.until(lambda: f.feed.is_alive)
        # The whole lease is left: the time since the last mark was taken back.
        f.bench.pass_ms(LEASE_MS, log_alive=f.feed.is_alive)
        assert f.bench.state() == rpc.WORKER_STATE_LIVE
        f.bench.pass_ms(200, log_alive=f.feed.is_alive)
        assert f.bench.state() == rpc.WORKER_STATE_STALE
        assert f.probe.failures > 3
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert warnings == [
        "log redis://test takes no probes: redis://test refuses: NOREPLICAS; leases stand still"
    ]


async def test_a_log_that_accepts_marks_but_does_not_return_them_is_not_alive(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with following() as f:
        f.reader.gives = False
        f.now_s += 5.0
        await f.until(lambda: not f.feed.is_alive)
        assert f.probe.age_s == 5.0
        f.reader.gives = True
        await f.until(lambda: f.feed.is_alive)
        assert f.probe.age_s == 0.0
    assert "does not give back in time what is appended; leases stand still" in caplog.text
