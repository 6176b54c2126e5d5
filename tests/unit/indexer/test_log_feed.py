"""Reading a log into a cell: failures are reported and retried, and readiness follows the head."""

import asyncio
import random
from collections.abc import Callable, Iterator

import pytest

from kvatlas_events import LogSlice, LogUnavailable
from kvatlas_events.backoff import Backoff
from kvatlas_indexer.logs.log_feed import Feed, LogFeed, PushedFeed
from kvatlas_indexer.readiness import Readiness
from tests.unit.cell.bench import RECOVER_MS, Bench
from tests.unit.cell.record_source import RecordSource, store


def slice_of(*records: bytes, caught_up: bool = True) -> LogSlice:
    return LogSlice(
        records=records,
        appended_unix_ms=[1_000] * len(records),
        at_head=caught_up,
        caught_up=caught_up,
        trimmed=False,
        foreign=0,
        position=None,
    )


class ScriptedReader:
    """Answers with the steps of a script, then waits for ever."""

    name = "redis://test"

    def __init__(self, *script: LogSlice | LogUnavailable) -> None:
        self._script: Iterator[LogSlice | LogUnavailable] = iter(script)
        self.over = asyncio.Event()

    async def read(self, wait_s: float) -> LogSlice:
        del wait_s
        step = next(self._script, None)
        if step is None:
            self.over.set()
            await asyncio.Event().wait()
            raise AssertionError
        if isinstance(step, LogUnavailable):
            raise step
        return step

    async def close(self) -> None:
        pass


async def until(happened: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if happened():
            return
        await asyncio.sleep(0)
    raise AssertionError


async def run(bench: Bench, *script: LogSlice | LogUnavailable) -> LogFeed:
    reader = ScriptedReader(*script)
    feed = LogFeed(
        bench.cell,
        reader,
        "redis",
        backoff=Backoff(0.0, 0.0, random.Random(1)),
        unix_ms=lambda: bench.now_ms,
    )
    task = asyncio.create_task(feed.run())
    await reader.over.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return feed


async def test_records_reach_the_cell_and_the_head_is_known() -> None:
    bench, source = Bench(), RecordSource()
    first, second = source.events(store(1)), source.events(store(2))
    feed = await run(bench, slice_of(first, caught_up=False), slice_of(second))
    assert (feed.obstacle, feed.is_alive) == (None, True)
    assert bench.find(1, 2) == [(1, 0, 2)]
    (log,) = bench.status().logs
    assert (log.transport, log.alive, log.records, log.lag_ms) == ("redis", True, 2, 0)


async def test_the_obstacle_names_a_log_that_is_being_read_or_does_not_answer() -> None:
    bench = Bench()
    feed = await run(bench, slice_of(RecordSource().events(store(1)), caught_up=False))
    assert feed.obstacle == "log redis://test: reading towards its head"
    assert bench.status().logs[0].lag_ms > 0
    feed = await run(Bench(), LogUnavailable("refused"))
    assert (feed.obstacle, feed.is_alive) == ("log redis://test: refused", False)


async def test_a_failure_after_the_head_was_reached_stops_leases_but_no_answer() -> None:
    bench = Bench()
    feed = await run(bench, slice_of(), LogUnavailable("gone"))
    assert (feed.obstacle, feed.is_alive) == (None, False)
    assert not bench.status().logs[0].alive
    feed = await run(bench, slice_of(), LogUnavailable("gone"), slice_of())
    assert feed.is_alive
    assert bench.status().logs[0].alive


async def test_each_cause_of_repeated_rejections_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench, other = Bench(), RecordSource(cell="green")
    refused = [slice_of(b"no record"), slice_of(other.events(store(1)))] * 20
    ahead = [RecordSource(epoch=1_790_000_000_000_000 + number) for number in range(20)]
    await run(bench, *refused, *(slice_of(each.events(store(1))) for each in ahead))
    texts = [text for text in caplog.messages if "; the first: " in text]
    said = [text.partition("; the first: ")[2] for text in texts]
    assert len(said) == 3
    assert said[:2] == ["not a kvatlas record", "worker 1/0 has cell green, this cell has blue"]
    assert "more than ten minutes ahead" in said[2]


class StallingReader(ScriptedReader):
    """Holds its second answer back until `go_on`, like a stalled server."""

    def __init__(self, *script: LogSlice) -> None:
        super().__init__(*script)
        self.asked = 0
        self.go_on = asyncio.Event()

    async def read(self, wait_s: float) -> LogSlice:
        self.asked += 1
        if self.asked == 2:
            await self.go_on.wait()
        return await super().read(wait_s)


async def test_a_log_whose_answer_is_late_is_not_alive_until_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvatlas_indexer.logs.log_feed._READ_WAIT_S", 0.001)
    monkeypatch.setattr("kvatlas_indexer.logs.log_feed._LATE_S", 0.001)
    bench = Bench()
    reader = StallingReader(slice_of(), slice_of(RecordSource().events(store(1))))
    backoff = Backoff(0.0, 0.0, random.Random(1))
    feed = LogFeed(bench.cell, reader, "redis", backoff=backoff, unix_ms=lambda: bench.now_ms)
    task = asyncio.create_task(feed.run())
    await seen(lambda: reader.asked == 2 and not feed.is_alive)
    assert not bench.status().logs[0].alive
    assert feed.obstacle is None
    reader.go_on.set()
    await seen(lambda: bench.find(1) == [(1, 0, 1)])
    assert reader.asked in {2, 3}  # no read was repeated
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def seen(happened: Callable[[], bool]) -> None:
    """Wait like `until`, over real time; the test's own limit ends a hang."""
    while not happened():  # noqa: ASYNC110 - of another task
        await asyncio.sleep(0.001)


def run_readiness(bench: Bench, *feeds: Feed) -> tuple[Readiness, asyncio.Task[None]]:
    readiness = Readiness(bench.cell, recover_ms=60_000, tick_s=0.0, unix_ms=lambda: bench.now_ms)
    assert readiness.obstacles() == ["reading the state to start from"]
    return readiness, asyncio.create_task(readiness.run(feeds))


async def test_a_replica_is_ready_when_its_feeds_are_and_its_workers_have_recovered() -> None:
    bench, source = Bench(), RecordSource()
    waiting = PushedFeed(obstacle="log x: refused")
    readiness, task = run_readiness(bench, PushedFeed(), waiting)
    await asyncio.sleep(0)
    assert readiness.obstacles() == ["log x: refused"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    source.last_event_id = 5
    bench.feed(source.events(store(1)))
    readiness, task = run_readiness(bench, PushedFeed())
    await until(lambda: readiness.obstacles() == ["1 workers are recovering"])
    assert not bench.status().ready
    bench.feed(*source.snapshot([1], as_of=6))
    await readiness.ready.wait()
    assert (bench.status().ready, readiness.obstacles()) == (True, [])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_readiness_also_waits_for_a_worker_given_up_while_the_log_was_read() -> None:
    bench, source = Bench(), RecordSource()
    source.last_event_id = 5
    bench.feed(source.events(store(1)))
    for _ in range(2 * RECOVER_MS // 500):
        bench.pass_ms(500)
        bench.feed(source.heartbeat())
    assert bench.count("recoveries_given_up") == 1
    readiness, task = run_readiness(bench, PushedFeed())
    await until(lambda: readiness.obstacles() == ["1 workers are recovering"])
    bench.feed(*source.snapshot([1], as_of=6))
    await readiness.ready.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
