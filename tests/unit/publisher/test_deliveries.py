"""A receiver refuses records: a newer publisher, a wrong setting, or our own newer epoch."""

import asyncio
from collections.abc import Sequence

import pytest

from kvatlas_chassis import FatalError, SettingsError
from kvatlas_events import Appended, RecordsRejected, WorkerKey
from kvatlas_events.delivery import DeliverySettings
from kvatlas_events.log import Fenced
from kvatlas_publisher.deliveries import Deliveries
from tests.unit.publisher.workers import worker_context

OURS = 99


class Receiver:
    """Takes records until it is given a refusal."""

    name = "receiver:"

    def __init__(self) -> None:
        self.refusal: RecordsRejected | None = None
        self.taken: list[bytes] = []
        self.refused = asyncio.Event()

    async def append(self, records: Sequence[bytes]) -> Appended:
        if self.refusal is not None:
            self.refused.set()
            raise self.refusal
        self.taken += records
        return Appended()

    async def close(self) -> None:
        pass


class Stage:
    """Deliveries to one receiver, running."""

    def __init__(self) -> None:
        self.receiver = Receiver()
        self.context = worker_context(
            dp_rank=0, delivery=DeliverySettings(retry_s_min=0.001, retry_s_max=0.001)
        )
        self.deliveries = Deliveries(
            self.context,
            [self.receiver],
            snapshot=list,
            is_own_epoch=lambda epoch: epoch == OURS,
        )
        self.tasks = self.deliveries.start()


def fenced(rival_epoch: int) -> Fenced:
    return Fenced("receiver:", WorkerKey(7, 0), 5, rival_epoch)


async def test_a_rival_ends_us_with_its_epoch() -> None:
    stage = Stage()
    stage.receiver.refusal = fenced(1_000)
    stage.deliveries.push(b"record")
    with pytest.raises(FatalError, match="1000") as caught:
        await stage.tasks.failed()
    assert caught.value.exit_status == 1
    await stage.tasks.close()


async def test_our_own_newer_epoch_that_came_by_another_transport_does_not() -> None:
    stage = Stage()
    stage.receiver.refusal = fenced(OURS)
    stage.deliveries.push(b"old")
    await stage.receiver.refused.wait()
    stage.receiver.refusal = None
    stage.deliveries.push(b"new")
    assert await stage.deliveries.close(5.0)
    assert stage.receiver.taken == [b"new"]
    assert stage.context.counters.rejections == 0
    await stage.tasks.close()


async def test_a_refusal_of_the_first_record_is_a_wrong_setting() -> None:
    stage = Stage()
    stage.receiver.refusal = RecordsRejected("block size 2; the cell's is 16")
    stage.deliveries.push(b"record")
    with pytest.raises(SettingsError, match="the cell's is 16"):
        await stage.tasks.failed()
    await stage.tasks.close()


async def test_a_later_refusal_is_logged_and_later_records_are_delivered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    stage.deliveries.push(b"first")
    assert await drained(stage)
    stage.receiver.refusal = RecordsRejected("no")
    stage.deliveries.push(b"refused")
    await stage.receiver.refused.wait()
    stage.receiver.refusal = None
    stage.deliveries.push(b"second")
    assert await stage.deliveries.close(5.0)
    assert stage.receiver.taken == [b"first", b"second"]
    assert stage.context.counters.rejections == 1
    assert caplog.messages == ["worker 7/0: events are refused: no"]
    await stage.tasks.close()


async def drained(stage: Stage) -> bool:
    (delivery,) = stage.deliveries
    while delivery.queued_records:  # noqa: ASYNC110 - a counter is what is waited for
        await asyncio.sleep(0.001)
    return delivery.counts.appended_records == 1
