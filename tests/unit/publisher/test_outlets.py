"""What a receiver's refusal means: a rival, a wrong setting, or our own newer life."""

import asyncio
from collections.abc import Sequence

import pytest

from kvatlas_chassis import FatalError, SettingsError, TaskSet
from kvatlas_events import Appended, RecordsRejected, Worker
from kvatlas_events.delivery import DeliverySettings
from kvatlas_events.log import Fenced
from kvatlas_publisher.outlets import Outlets

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
    """Outlets to one receiver, running."""

    def __init__(self) -> None:
        self.receiver = Receiver()
        self.told: list[RecordsRejected] = []
        self.tasks = TaskSet()
        self.outlets = Outlets(
            Worker(7, 0),
            [self.receiver],
            snapshot=list,
            refused=self.told.append,
            is_ours=lambda epoch: epoch == OURS,
            settings=DeliverySettings(retry_s_min=0.001, retry_s_max=0.001),
        )
        self.outlets.start(self.tasks)


def fenced(rival_epoch: int) -> Fenced:
    return Fenced("receiver:", Worker(7, 0), 5, rival_epoch)


async def test_a_rival_ends_us_with_its_epoch() -> None:
    stage = Stage()
    stage.receiver.refusal = fenced(1_000)
    stage.outlets.push(b"record")
    with pytest.raises(FatalError, match="1000") as caught:
        await stage.tasks.failed()
    assert caught.value.exit_status == 1
    await stage.tasks.close()


async def test_our_own_newer_life_that_came_by_another_transport_does_not() -> None:
    stage = Stage()
    stage.receiver.refusal = fenced(OURS)
    stage.outlets.push(b"old")
    await stage.receiver.refused.wait()
    stage.receiver.refusal = None
    stage.outlets.push(b"new")
    assert await stage.outlets.close(5.0)
    assert stage.receiver.taken == [b"new"]
    assert stage.told == []
    await stage.tasks.close()


async def test_a_refusal_of_the_first_record_is_a_wrong_setting() -> None:
    stage = Stage()
    stage.receiver.refusal = RecordsRejected("block size 2; the cell's is 16")
    stage.outlets.push(b"record")
    with pytest.raises(SettingsError, match="the cell's is 16"):
        await stage.tasks.failed()
    await stage.tasks.close()


async def test_a_later_refusal_is_told_and_others_go_on() -> None:
    stage = Stage()
    stage.outlets.push(b"first")
    assert await drained(stage)
    stage.receiver.refusal = RecordsRejected("no")
    stage.outlets.push(b"refused")
    await stage.receiver.refused.wait()
    stage.receiver.refusal = None
    stage.outlets.push(b"second")
    assert await stage.outlets.close(5.0)
    assert stage.receiver.taken == [b"first", b"second"]
    assert [str(each) for each in stage.told] == ["no"]
    await stage.tasks.close()


async def drained(stage: Stage) -> bool:
    (delivery,) = stage.outlets.deliveries
    while delivery.queued_records:  # noqa: ASYNC110 - a counter is what is waited for
        await asyncio.sleep(0.001)
    return delivery.counts.appended_records == 1
