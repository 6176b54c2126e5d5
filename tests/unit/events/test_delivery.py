"""A delivery: order, overflow, what a receiver may ask for, and how it ends."""

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, Callable, Sequence

import pytest

from kvatlas_events import Appended, LogUnavailable, RecordsRejected, WorkerKey
from kvatlas_events.backoff import Backoff
from kvatlas_events.delivery import Delivery, DeliverySettings
from kvatlas_testing.memory_log import MemoryLog

WORKER = WorkerKey(7, 1)
LACKING = Appended(needs_snapshot=frozenset({WORKER}))
WHOLE = Appended()
SMALL = DeliverySettings(queue_records_max=4, append_records_max=3, flush_s=0)


class Receiver:
    """A writer that answers as it is told, and in between takes everything."""

    name = "receiver"

    def __init__(self) -> None:
        self.answers: list[Appended | Exception] = []
        self.got: list[bytes] = []
        self.appends: list[list[bytes]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def append(self, records: Sequence[bytes]) -> Appended:
        self.appends.append(list(records))
        await self.gate.wait()
        answer = self.answers.pop(0) if self.answers else WHOLE
        if isinstance(answer, Exception):
            raise answer
        self.got += records
        return answer

    async def close(self) -> None: ...


class Clock:
    """Time that passes only where it is told to, or slept through."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def monotonic_s(self) -> float:
        return self.now_s

    async def sleep(self, pause_s: float) -> None:
        self.slept.append(pause_s)
        self.now_s += pause_s
        await asyncio.sleep(0)


Start = Callable[..., Delivery]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def start(clock: Clock) -> AsyncGenerator[Start, None]:
    tasks: list[asyncio.Task[None]] = []

    def start_one(
        writer: Receiver,
        *,
        settings: DeliverySettings = SMALL,
        snapshot: Callable[[], Sequence[bytes]] = lambda: [b"snapshot"],
        rejected: Callable[[RecordsRejected], None] | None = None,
    ) -> Delivery:
        delivery = Delivery(
            WORKER,
            writer,
            snapshot=snapshot,
            rejected=rejected,
            settings=settings,
            rng=random.Random(1),
            sleep=clock.sleep,
            monotonic_s=clock.monotonic_s,
        )
        tasks.append(asyncio.create_task(delivery.run()))
        return delivery

    yield start_one
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0)


async def settle() -> None:
    """Let everything that can happen without time passing happen."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_records_go_in_order_and_in_bites(start: Start) -> None:
    receiver = Receiver()
    delivery = start(receiver)
    for record in (b"1", b"2", b"3", b"4"):
        delivery.push(record)
    delivery.push_heartbeat(b"old heartbeat")
    delivery.push_heartbeat(b"heartbeat")
    assert await delivery.close(10)
    assert receiver.appends == [[b"1", b"2", b"3"], [b"4", b"heartbeat"]]
    assert delivery.counts.appended_records == 5
    assert delivery.counts.appended_bytes == 13
    assert delivery.queued_records == 0


async def test_an_outage_is_retried_with_the_same_records(start: Start, clock: Clock) -> None:
    receiver = Receiver()
    receiver.answers = [LogUnavailable("away"), LogUnavailable("away"), LogUnavailable("away")]
    delivery = start(receiver)
    delivery.push(b"1")
    assert await delivery.close(10)
    assert receiver.got == [b"1"]
    assert receiver.appends == [[b"1"]] * 4
    assert delivery.counts.retries == 3
    assert 0.025 <= clock.slept[0] <= 0.05 <= clock.slept[1] <= 0.1 <= clock.slept[2] <= 0.2
    assert delivery.unavailable is None


async def test_an_outage_is_told_while_it_lasts(start: Start) -> None:
    receiver = Receiver()
    receiver.answers = [LogUnavailable("the log is away")]
    delivery = start(receiver)
    assert delivery.unavailable is None
    delivery.push(b"1")
    await until(lambda: delivery.counts.retries == 1)
    assert delivery.unavailable == "the log is away"
    assert await delivery.close(10)


async def test_an_overflow_ends_with_a_snapshot_of_the_moment_of_return(start: Start) -> None:
    receiver = Receiver()
    events: list[int] = []
    delivery = start(receiver, snapshot=lambda: [b"snapshot of %d" % len(events), b"part 2"])
    receiver.gate.clear()
    receiver.answers = [LogUnavailable("away"), LogUnavailable("away")]
    for event in range(10):
        events.append(event)
        delivery.push(b"%d" % event)
    assert delivery.overflows == 1
    assert delivery.counts.dropped_records == 6
    assert delivery.queued_records == 0
    receiver.gate.set()
    await until(lambda: delivery.counts.snapshots == 1)
    events.append(10)
    delivery.push(b"10")
    assert await delivery.close(10)
    assert receiver.got == [b"snapshot of 10", b"part 2", b"10"]
    # It asked whether somebody is there before it took the snapshot.
    assert receiver.appends[-3:] == [[], [b"snapshot of 10", b"part 2"], [b"10"]] or (
        receiver.appends[-2:] == [[], [b"snapshot of 10", b"part 2", b"10"]]
    )


async def test_an_overflow_during_an_append_loses_no_later_record(start: Start) -> None:
    receiver = Receiver()
    receiver.gate.clear()
    delivery = start(receiver)
    delivery.push(b"under way")
    await settle()
    for record in (b"2", b"3", b"4", b"5"):
        delivery.push(record)
    receiver.gate.set()
    await settle()
    delivery.push(b"6")
    assert await delivery.close(10)
    assert receiver.got == [b"under way", b"snapshot", b"6"]


async def test_a_receiver_that_lacks_something_gets_a_snapshot(start: Start) -> None:
    receiver = Receiver()
    receiver.answers = [LACKING]
    delivery = start(receiver)
    delivery.push(b"1")
    await settle()
    delivery.push(b"2")
    assert await delivery.close(10)
    assert receiver.got == [b"1", b"snapshot", b"2"]
    assert delivery.counts.snapshots == 1


async def test_what_another_worker_lacks_is_not_ours_to_send(start: Start) -> None:
    receiver = Receiver()
    receiver.answers = [Appended(needs_snapshot=frozenset({WorkerKey(8)}))]
    delivery = start(receiver)
    delivery.push(b"1")
    assert await delivery.close(10)
    assert receiver.got == [b"1"]


async def test_a_snapshot_under_way_is_not_started_again(start: Start) -> None:
    receiver = Receiver()
    parts = [b"a", b"b", b"c", b"d", b"e"]
    receiver.answers = [WHOLE, LACKING, WHOLE]  # the probe, the first three parts, the rest
    delivery = start(receiver, snapshot=lambda: parts)
    delivery.require_snapshot()
    assert await delivery.close(10)
    assert receiver.got == parts
    assert delivery.counts.snapshots == 1


async def test_a_receiver_that_is_never_content_gets_ever_fewer_snapshots(
    start: Start, clock: Clock
) -> None:
    receiver = Receiver()
    receiver.answers = [LACKING] * 100_000
    delivery = start(receiver)
    taken_s: list[float] = []
    for _ in range(400):
        clock.now_s += 0.25
        delivery.push_heartbeat(b"heartbeat")
        await settle()
        taken_s += [clock.now_s] * (delivery.counts.snapshots - len(taken_s))
    assert 5 <= len(taken_s) <= 12
    pauses = [later - earlier for earlier, later in itertools.pairwise(taken_s)]
    assert pauses[-1] >= 8 * pauses[0]
    assert receiver.got.count(b"heartbeat") > 350


async def test_a_log_that_lost_its_data_is_told_everything_again(start: Start) -> None:
    receiver = Receiver()
    receiver.answers = [Appended(identity="one"), Appended(identity="one")]
    receiver.answers += [Appended(identity="two")] * 10
    delivery = start(receiver)
    for record in (b"1", b"2", b"3"):
        delivery.push(record)
        await settle()
    delivery.push(b"4")
    assert await delivery.close(10)
    assert receiver.got == [b"1", b"2", b"3", b"snapshot", b"4"]
    assert delivery.counts.snapshots == 1


async def test_a_rejection_reaches_the_owner_and_the_rest_goes_on(start: Start) -> None:
    receiver = Receiver()
    receiver.answers = [RecordsRejected("another block size")]
    told: list[RecordsRejected] = []
    delivery = start(receiver, rejected=told.append)
    delivery.push(b"1")
    await settle()
    delivery.push(b"2")
    assert await delivery.close(10)
    assert [str(error) for error in told] == ["another block size"]
    assert receiver.got == [b"2"]
    assert delivery.counts.rejected_records == 1


async def test_a_rejection_of_the_question_before_a_snapshot_reaches_the_owner_and_is_asked_again(
    start: Start,
) -> None:
    receiver = Receiver()
    receiver.answers = [RecordsRejected("not allowed"), RecordsRejected("not allowed")]
    told: list[RecordsRejected] = []
    delivery = start(receiver, rejected=told.append)
    delivery.require_snapshot()
    assert await delivery.close(10)
    assert [str(error) for error in told] == ["not allowed"] * 2
    assert receiver.got == [b"snapshot"]
    assert delivery.counts.rejected_records == 0


async def test_a_rejection_that_nobody_is_told_of_ends_the_delivery() -> None:
    receiver = Receiver()
    receiver.answers = [RecordsRejected("another block size")]
    delivery = Delivery(WORKER, receiver, snapshot=list, settings=SMALL)
    delivery.push(b"1")
    with pytest.raises(RecordsRejected, match="another block size"):
        await delivery.run()
    assert not await delivery.close(0)


async def test_a_stalled_writer_costs_another_one_nothing(start: Start) -> None:
    stalled, healthy = Receiver(), Receiver()
    stalled.gate.clear()
    deliveries = [start(stalled), start(healthy)]
    for record in range(100):
        for delivery in deliveries:
            delivery.push(b"%d" % record)
        await settle()
    assert healthy.got == [b"%d" % record for record in range(100)]
    assert (deliveries[0].overflows, deliveries[1].overflows) == (1, 0)
    assert deliveries[0].queued_records <= SMALL.queue_records_max


async def test_close_gives_up_when_its_time_is_over(start: Start) -> None:
    receiver = Receiver()
    receiver.gate.clear()
    delivery = start(receiver)
    delivery.push(b"1")
    assert not await delivery.close(0.01)
    assert delivery.queued_records == 1


async def test_a_full_append_does_not_wait_for_company(start: Start) -> None:
    receiver = Receiver()
    patient = DeliverySettings(append_records_max=3, append_bytes_max=100, flush_s=3600)
    delivery = start(receiver, settings=patient)
    await settle()
    delivery.push(b"1")
    delivery.push(b"2")
    await settle()
    assert receiver.got == []
    delivery.push(b"3")
    await settle()
    assert receiver.got == [b"1", b"2", b"3"]
    delivery.push(b"x" * 100)
    await settle()
    assert len(receiver.got) == 4
    delivery.push(b"last")
    assert await delivery.close(10)
    assert receiver.got[-1] == b"last"


async def test_records_wait_a_moment_for_company(start: Start) -> None:
    receiver = Receiver()
    delivery = start(receiver, settings=DeliverySettings(flush_s=0.001))
    await settle()
    delivery.push(b"1")
    await until(lambda: bool(receiver.got))
    assert receiver.appends == [[b"1"]]


async def test_delivery_into_a_real_log_outlasts_its_outage() -> None:
    log = MemoryLog()
    log.outage = "away"
    delivery = Delivery(WORKER, log.writer(), snapshot=list, settings=DeliverySettings(flush_s=0))
    running = asyncio.create_task(delivery.run())
    delivery.push(b"1")
    await until(lambda: delivery.unavailable is not None)
    log.outage = None
    assert await delivery.close(10)
    await running
    assert (await log.reader().read(0)).records == [b"1"]


def test_a_backoff_doubles_to_its_bound_and_begins_again() -> None:
    backoff = Backoff(1, 10, random.Random(3))
    pauses = [backoff.next_s() for _ in range(6)]
    for pause, whole in zip(pauses, [1, 2, 4, 8, 10, 10], strict=True):
        assert whole / 2 <= pause <= whole
    backoff.reset()
    assert backoff.next_s() <= 1
