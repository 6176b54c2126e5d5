"""Recovery with scripted publishers: whom it asks, how often, and how many at once."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import pytest

from kvatlas_indexer.recovery import Outcome, Recovery, RecoveryLimits
from kvatlas_indexer.rpc import Declined, Publisher, Unreachable, dial
from kvatlas_native import RecoveryRequest
from kvatlas_wire.v1 import events_pb2 as pb
from tests.unit.cell.bench import Bench
from tests.unit.cell.record_source import RecordSource, store

ADDRESS = "host:1"
FACTS = pb.Heartbeat(publisher_rpc=ADDRESS)
LIMITS = RecoveryLimits(at_once=4, start_s_max=0.0, retry_s_min=0.001, retry_s_max=0.004)

Answer = Sequence[bytes] | Exception | None
"""Records of one message, an error, or no answer at all (None)."""


class ScriptedPublisher:
    """Answers from a script, and keeps the calls."""

    def __init__(
        self,
        *,
        replay: Callable[[RecoveryRequest], Answer] = lambda _: Declined("gone"),
        snapshot: Callable[[RecoveryRequest], Answer] = lambda _: Declined("none"),
    ) -> None:
        self.asked: list[tuple[str, int, int]] = []
        """Each call: its kind, the worker, and the first missing event."""
        self.dialed: list[str] = []
        self._replay = replay
        self._snapshot = snapshot

    @asynccontextmanager
    async def dial(self, address: str) -> AsyncGenerator[Publisher, None]:
        self.dialed.append(address)
        yield self

    async def replay(self, request: RecoveryRequest) -> AsyncGenerator[Sequence[bytes], None]:
        self.asked.append(("replay", request.worker_id, request.applied + 1))
        yield await settle(self._replay(request))

    async def snapshot(self, request: RecoveryRequest) -> AsyncGenerator[Sequence[bytes], None]:
        self.asked.append(("snapshot", request.worker_id, request.applied + 1))
        yield await settle(self._snapshot(request))


async def settle(answer: Answer) -> Sequence[bytes]:
    if answer is None:
        await asyncio.Event().wait()
        raise AssertionError
    if isinstance(answer, Exception):
        raise answer
    return answer


class Stage:
    """A cell and its recovery, run until a condition holds."""

    def __init__(
        self,
        publisher: ScriptedPublisher | None,
        *,
        limits: RecoveryLimits = LIMITS,
        may_start: Callable[[], bool] = lambda: True,
    ) -> None:
        self.bench = Bench()
        self.recovery = Recovery(
            self.bench.cell,
            limits,
            may_start=may_start,
            unix_ms=lambda: self.bench.now_ms,
            connect=dial if publisher is None else publisher.dial,
            rng=random.Random(1),
        )

    def lose(self, source: RecordSource, *, address: str = ADDRESS) -> None:
        """Lose the next event of a worker, and apply the one after it."""
        source.events(store(source.worker_id * 10 + 1))
        facts = pb.Heartbeat(publisher_rpc=address)
        self.bench.feed(
            source.events(store(source.worker_id * 10 + 2)), source.heartbeat(facts=facts)
        )

    async def until(self, done: Callable[[], bool]) -> None:
        """Run until `done()`; the test's own time limit ends a hang."""
        task = asyncio.create_task(self.recovery.run())
        try:
            while not done():
                if task.done():
                    task.result()
                await asyncio.sleep(0.001)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    @property
    def attempts(self) -> dict[Outcome, int]:
        return {outcome: count for outcome, count in self.recovery.attempts.items() if count}

    def is_whole(self) -> bool:
        return not self.bench.cell.recovery_requests(1) and not self.recovery.running


async def test_a_replay_from_the_first_lost_event_heals() -> None:
    source = RecordSource(1)
    first, lost = source.events(store(1)), source.events(store(2))
    publisher = ScriptedPublisher(replay=lambda _: [lost])
    stage = Stage(publisher)
    stage.bench.feed(first, source.events(store(3)), source.heartbeat(facts=FACTS))
    await stage.until(stage.is_whole)
    assert stage.bench.find(1, 2, 3) == [(1, 0, 3)]
    assert publisher.asked == [("replay", 1, 2)]
    assert publisher.dialed == [ADDRESS]
    assert stage.attempts == {Outcome.REPLAYED: 1}


async def test_records_that_cannot_be_replayed_are_replaced_by_a_snapshot_in_the_same_attempt() -> (
    None
):
    source = RecordSource(1)
    publisher = ScriptedPublisher(snapshot=lambda _: source.snapshot([11], [12]))
    stage = Stage(publisher)
    stage.lose(source)
    await stage.until(stage.is_whole)
    assert stage.bench.find(11, 12) == [(1, 0, 2)]
    assert publisher.asked == [("replay", 1, 1), ("snapshot", 1, 1)]
    assert stage.attempts == {Outcome.SNAPSHOT: 1}


async def test_a_differing_digest_asks_for_no_replay() -> None:
    source = RecordSource(1)
    publisher = ScriptedPublisher(snapshot=lambda _: source.snapshot([2]))
    stage = Stage(publisher)
    stage.bench.feed(source.events(store(1)), source.heartbeat([2], facts=FACTS))
    await stage.until(stage.is_whole)
    assert publisher.asked == [("snapshot", 1, 2)]
    assert stage.bench.find(2) == [(1, 0, 1)]


async def test_an_epoch_that_ends_during_the_recovery_is_recovered_into_the_next_one() -> None:
    old, new = RecordSource(1, epoch=1_000), RecordSource(1, epoch=2_000)

    def next_epoch(_: RecoveryRequest) -> list[bytes]:
        new.events(store(5))
        return new.snapshot([5])

    publisher = ScriptedPublisher(replay=lambda _: Declined("epoch 2000"), snapshot=next_epoch)
    stage = Stage(publisher)
    stage.lose(old)
    await stage.until(stage.is_whole)
    assert (stage.bench.find(5), stage.bench.find(11)) == ([(1, 0, 1)], [])
    assert stage.bench.worker().info.epoch == 2_000
    stage.bench.feed(old.events(store(6)))
    assert stage.bench.find(5) == [(1, 0, 1)]


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (Unreachable("refused"), Outcome.UNREACHABLE),
        (Declined("not served here"), Outcome.DECLINED),
        ([b"nonsense"], Outcome.NOT_HEALED),
        (None, Outcome.TIMED_OUT),
    ],
)
async def test_a_failed_attempt_is_counted_and_repeated_until_one_succeeds(
    failure: Answer, outcome: Outcome
) -> None:
    source, failures = RecordSource(1), iter([failure, failure])

    def answer(_: RecoveryRequest) -> Answer:
        return next(failures, None) if failures_left() else source.snapshot([11, 12])

    def failures_left() -> bool:
        return publisher.asked.count(("snapshot", 1, 1)) <= 2

    publisher = ScriptedPublisher(snapshot=answer)
    limits = RecoveryLimits(
        at_once=1, attempt_s=0.05, start_s_max=0.0, retry_s_min=0.001, retry_s_max=0.002
    )
    stage = Stage(publisher, limits=limits)
    stage.lose(source)
    await stage.until(stage.is_whole)
    assert stage.attempts == {outcome: 2, Outcome.SNAPSHOT: 1}
    assert stage.bench.find(11, 12) == [(1, 0, 2)]


async def test_pauses_grow_and_no_publisher_is_asked_before_the_end_of_one() -> None:
    now_s = 0.0
    asked_s: list[float] = []

    def refuse(_: RecoveryRequest) -> Answer:
        asked_s.append(now_s)
        return Unreachable("refused")

    publisher = ScriptedPublisher(replay=refuse)
    limits = RecoveryLimits(at_once=4, start_s_max=1.0, retry_s_min=1.0, retry_s_max=8.0)
    bench = Stage(None).bench
    recovery = Recovery(
        bench.cell,
        limits,
        may_start=lambda: True,
        unix_ms=lambda: bench.now_ms,
        connect=publisher.dial,
        rng=random.Random(3),
        monotonic_s=lambda: now_s,
    )
    source = RecordSource(1)
    source.last_event_id = 5
    bench.feed(source.events(store(1)), source.heartbeat(facts=FACTS))
    task = asyncio.create_task(recovery.run())
    while len(asked_s) < 7:
        await asyncio.sleep(0.001)
        now_s += 0.05
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    pauses = [after - before for before, after in pairwise(asked_s)]
    floors = [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert all(pause >= floor for pause, floor in zip(pauses, floors, strict=True)), pauses


async def test_no_publisher_is_asked_before_the_logs_are_read_and_its_address_is_known() -> None:
    refusals = 0

    def may_start() -> bool:
        nonlocal refusals
        if refusals < 3:
            assert publisher.asked == []
            refusals += 1
            return False
        return True

    publisher = ScriptedPublisher(snapshot=lambda _: sources[0].snapshot([11, 12]))
    stage = Stage(publisher, may_start=may_start)
    sources = [RecordSource(1), RecordSource(2)]
    stage.lose(sources[0])
    stage.lose(sources[1], address="")
    await stage.until(lambda: Outcome.SNAPSHOT in stage.attempts)
    assert refusals == 3
    assert {worker_id for _, worker_id, _ in publisher.asked} == {1}
    assert stage.bench.cell.recovery_request(2, 0) is not None


async def test_200_workers_are_recovered_and_never_more_at_once_than_allowed() -> None:
    sources = {worker_id: RecordSource(worker_id) for worker_id in range(1, 201)}
    open_now: set[int] = set()
    crowd = asyncio.Event()
    most = 0

    class Crowded(ScriptedPublisher):
        async def snapshot(self, request: RecoveryRequest) -> AsyncGenerator[Sequence[bytes], None]:
            nonlocal most
            assert request.worker_id not in open_now
            open_now.add(request.worker_id)
            most = max(most, len(open_now))
            if len(open_now) == limits.at_once:
                crowd.set()
            await crowd.wait()  # no answer before all permitted attempts have begun
            first = request.worker_id * 10 + 1
            yield sources[request.worker_id].snapshot([first, first + 1])
            open_now.discard(request.worker_id)

    limits = RecoveryLimits(at_once=7, start_s_max=0.02, retry_s_min=1.0)
    stage = Stage(Crowded(), limits=limits)
    for source in sources.values():
        stage.lose(source)
    await stage.until(stage.is_whole)
    assert stage.attempts == {Outcome.SNAPSHOT: 200}
    assert most == 7
    for worker_id in sources:
        first = worker_id * 10 + 1
        assert stage.bench.find(first, first + 1) == [(worker_id, 0, 2)]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "unix:/nowhere"])
async def test_an_address_without_an_answer_is_unreachable(address: str) -> None:
    stage = Stage(None)
    stage.lose(RecordSource(1), address=address)
    await stage.until(lambda: bool(stage.attempts))
    assert set(stage.attempts) == {Outcome.UNREACHABLE}
