"""Recovery against scripted publishers: who is asked, how often, how many at once, and what heals."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import pytest

from kvatlas_indexer.recovery import Outcome, Recovery, RecoveryLimits
from kvatlas_indexer.rpc import Declined, Publisher, Unreachable, dial
from kvatlas_native import WorkerNeed
from kvatlas_wire.v1 import events_pb2 as pb
from tests.unit.cell.bench import Bench
from tests.unit.cell.speaker import Speaker, store

ADDRESS = "host:1"
FACTS = pb.Heartbeat(publisher_rpc=ADDRESS)
LIMITS = RecoveryLimits(at_once=4, start_s_max=0.0, retry_s_min=0.001, retry_s_max=0.004)

Answer = Sequence[bytes] | Exception | None
"""Records of one message, a refusal, or nothing ever."""


class ScriptedPublisher:
    """Answers what a test says, and keeps what it was asked."""

    def __init__(
        self,
        *,
        replay: Callable[[WorkerNeed], Answer] = lambda _: Declined("gone"),
        snapshot: Callable[[WorkerNeed], Answer] = lambda _: Declined("none"),
    ) -> None:
        self.asked: list[tuple[str, int, int]] = []
        """Each question: its kind, the worker, and the first event that it lacks."""
        self.dialled: list[str] = []
        self._replay = replay
        self._snapshot = snapshot

    @asynccontextmanager
    async def dial(self, address: str) -> AsyncGenerator[Publisher, None]:
        self.dialled.append(address)
        yield self

    async def replay(self, need: WorkerNeed) -> AsyncGenerator[Sequence[bytes], None]:
        self.asked.append(("replay", need.worker_id, need.applied + 1))
        yield await settle(self._replay(need))

    async def snapshot(self, need: WorkerNeed) -> AsyncGenerator[Sequence[bytes], None]:
        self.asked.append(("snapshot", need.worker_id, need.applied + 1))
        yield await settle(self._snapshot(need))


async def settle(answer: Answer) -> Sequence[bytes]:
    if answer is None:
        await asyncio.Event().wait()
        raise AssertionError
    if isinstance(answer, Exception):
        raise answer
    return answer


class Stage:
    """A recovering cell, run until a test has seen enough."""

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

    def lose(self, speaker: Speaker, *, address: str = ADDRESS) -> None:
        """Begin to hear a worker late: after its first event, or after what `speaker` has said."""
        speaker.events(store(speaker.worker_id * 10 + 1))
        facts = pb.Heartbeat(publisher_rpc=address)
        self.bench.feed(
            speaker.events(store(speaker.worker_id * 10 + 2)), speaker.heartbeat(facts=facts)
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
        return not self.bench.cell.needs(1) and not self.recovery.running


async def test_a_replay_from_the_first_lost_event_heals() -> None:
    speaker = Speaker(1)
    first, lost = speaker.events(store(1)), speaker.events(store(2))
    publisher = ScriptedPublisher(replay=lambda _: [lost])
    stage = Stage(publisher)
    stage.bench.feed(first, speaker.events(store(3)), speaker.heartbeat(facts=FACTS))
    await stage.until(stage.is_whole)
    assert stage.bench.find(1, 2, 3) == [(1, 0, 3)]
    assert publisher.asked == [("replay", 1, 2)]
    assert publisher.dialled == [ADDRESS]
    assert stage.attempts == {Outcome.REPLAYED: 1}


async def test_what_is_not_replayed_any_more_is_healed_by_a_snapshot_in_the_same_attempt() -> None:
    speaker = Speaker(1)
    publisher = ScriptedPublisher(snapshot=lambda _: speaker.snapshot([11], [12]))
    stage = Stage(publisher)
    stage.lose(speaker)
    await stage.until(stage.is_whole)
    assert stage.bench.find(11, 12) == [(1, 0, 2)]
    assert publisher.asked == [("replay", 1, 1), ("snapshot", 1, 1)]
    assert stage.attempts == {Outcome.SNAPSHOT: 1}


async def test_a_differing_digest_asks_for_no_replay() -> None:
    speaker = Speaker(1)
    publisher = ScriptedPublisher(snapshot=lambda _: speaker.snapshot([2]))
    stage = Stage(publisher)
    stage.bench.feed(speaker.events(store(1)), speaker.heartbeat([2], facts=FACTS))
    await stage.until(stage.is_whole)
    assert publisher.asked == [("snapshot", 1, 2)]
    assert stage.bench.find(2) == [(1, 0, 1)]


async def test_an_epoch_that_ends_during_the_recovery_is_healed_into_the_next_one() -> None:
    old, new = Speaker(1, epoch=1_000), Speaker(1, epoch=2_000)

    def next_life(_: WorkerNeed) -> list[bytes]:
        new.events(store(5))
        return new.snapshot([5])

    publisher = ScriptedPublisher(replay=lambda _: Declined("epoch 2000"), snapshot=next_life)
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
async def test_an_attempt_that_fails_is_counted_and_tried_again_until_it_heals(
    failure: Answer, outcome: Outcome
) -> None:
    speaker, failures = Speaker(1), iter([failure, failure])

    def answer(_: WorkerNeed) -> Answer:
        return next(failures, None) if failures_left() else speaker.snapshot([11, 12])

    def failures_left() -> bool:
        return publisher.asked.count(("snapshot", 1, 1)) <= 2

    publisher = ScriptedPublisher(snapshot=answer)
    limits = RecoveryLimits(
        at_once=1, attempt_s=0.05, start_s_max=0.0, retry_s_min=0.001, retry_s_max=0.002
    )
    stage = Stage(publisher, limits=limits)
    stage.lose(speaker)
    await stage.until(stage.is_whole)
    assert stage.attempts == {outcome: 2, Outcome.SNAPSHOT: 1}
    assert stage.bench.find(11, 12) == [(1, 0, 2)]


async def test_pauses_grow_and_nobody_is_asked_before_one_is_over() -> None:
    now_s = 0.0
    asked_s: list[float] = []

    def refuse(_: WorkerNeed) -> Answer:
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
    speaker = Speaker(1)
    speaker.last_event_id = 5
    bench.feed(speaker.events(store(1)), speaker.heartbeat(facts=FACTS))
    task = asyncio.create_task(recovery.run())
    while len(asked_s) < 7:
        await asyncio.sleep(0.001)
        now_s += 0.01
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    pauses = [after - before for before, after in pairwise(asked_s)]
    floors = [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert all(pause >= floor for pause, floor in zip(pauses, floors, strict=True)), pauses


async def test_nobody_is_asked_before_the_logs_are_read_or_an_address_is_known() -> None:
    refusals = 0

    def may_start() -> bool:
        nonlocal refusals
        if refusals < 3:
            assert publisher.asked == []
            refusals += 1
            return False
        return True

    publisher = ScriptedPublisher(snapshot=lambda _: speakers[0].snapshot([11, 12]))
    stage = Stage(publisher, may_start=may_start)
    speakers = [Speaker(1), Speaker(2)]
    stage.lose(speakers[0])
    stage.lose(speakers[1], address="")
    await stage.until(lambda: Outcome.SNAPSHOT in stage.attempts)
    assert refusals == 3
    assert {worker_id for _, worker_id, _ in publisher.asked} == {1}
    assert stage.bench.cell.need_of(2, 0) is not None


async def test_200_workers_are_recovered_and_never_more_at_once_than_allowed() -> None:
    speakers = {worker_id: Speaker(worker_id) for worker_id in range(1, 201)}
    open_now: set[int] = set()
    crowd = asyncio.Event()
    most = 0

    class Crowded(ScriptedPublisher):
        async def snapshot(self, need: WorkerNeed) -> AsyncGenerator[Sequence[bytes], None]:
            nonlocal most
            assert need.worker_id not in open_now
            open_now.add(need.worker_id)
            most = max(most, len(open_now))
            if len(open_now) == limits.at_once:
                crowd.set()
            await crowd.wait()  # nobody is answered before all that may be asked are
            first = need.worker_id * 10 + 1
            yield speakers[need.worker_id].snapshot([first, first + 1])
            open_now.discard(need.worker_id)

    limits = RecoveryLimits(at_once=7, start_s_max=0.02, retry_s_min=1.0)
    stage = Stage(Crowded(), limits=limits)
    for speaker in speakers.values():
        stage.lose(speaker)
    await stage.until(stage.is_whole)
    assert stage.attempts == {Outcome.SNAPSHOT: 200}
    assert most == 7
    for worker_id in speakers:
        first = worker_id * 10 + 1
        assert stage.bench.find(first, first + 1) == [(worker_id, 0, 2)]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "unix:/nowhere"])
async def test_an_address_where_nobody_answers_is_unreachable(address: str) -> None:
    stage = Stage(None)
    stage.lose(Speaker(1), address=address)
    await stage.until(lambda: bool(stage.attempts))
    assert set(stage.attempts) == {Outcome.UNREACHABLE}
