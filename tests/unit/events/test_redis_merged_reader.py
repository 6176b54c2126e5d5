"""Several groups of shards read as one log: no failure or delay of one is hidden."""

import asyncio
from dataclasses import dataclass, field

import pytest

from kvatlas_events import LogPosition, LogSlice, LogUnavailable
from kvatlas_events.redis.merged_reader import MergedReader


@dataclass
class Group:
    """Returns the slices that a test gives it; waits while there are none."""

    name: str
    coming: asyncio.Queue[LogSlice | LogUnavailable] = field(
        default_factory=asyncio.Queue[LogSlice | LogUnavailable]
    )
    waits_s: list[float] = field(default_factory=list[float])

    async def read(self, wait_s: float) -> LogSlice:
        self.waits_s.append(wait_s)
        said = await self.coming.get()
        if isinstance(said, LogUnavailable):
            raise said
        return said

    def say(self, *records: bytes, at_ms: int = 1, at_head: bool = True, entry: str = "1") -> None:
        self.coming.put_nowait(
            LogSlice(
                records=records,
                appended_unix_ms=[at_ms] * len(records),
                at_head=at_head,
                caught_up=at_head,
                trimmed=False,
                foreign=0,
                position=LogPosition(self.name, entry),
            )
        )

    def fail(self) -> None:
        self.coming.put_nowait(LogUnavailable(f"{self.name} is away"))


async def settled(reading: "asyncio.Task[LogSlice]") -> None:
    """Let everything happen that needs no further event."""
    for _ in range(20):
        await asyncio.sleep(0)
    assert not reading.done()


async def test_the_first_slice_needs_an_answer_of_every_group() -> None:
    a, b = Group("a"), Group("b")
    merged = MergedReader([a, b])
    a.say(b"1")
    reading = asyncio.create_task(merged.read(60))
    await settled(reading)
    b.say(entry="2")
    slice_ = await reading
    assert (slice_.records, slice_.position) == ([b"1"], LogPosition("a,b", "1,2"))
    assert slice_.at_head
    assert slice_.caught_up
    assert a.waits_s == b.waits_s == [0]
    await merged.close()


async def test_a_group_that_has_nothing_keeps_none_from_being_read() -> None:
    a, b = Group("a"), Group("b")
    merged = MergedReader([a, b])
    for place in (a, b):
        place.say()
    await merged.read(0)
    for number in range(3):
        a.say(b"%d" % number, entry=str(number))
        slice_ = await merged.read(60)
        assert (slice_.records, slice_.position) == (
            [b"%d" % number],
            LogPosition("a,b", f"{number},1"),
        )
    assert b.waits_s == [0, 0.5]  # one read, which is under way still
    await merged.close()


async def test_what_the_others_brought_waits_until_a_failed_group_answers() -> None:
    a, b = Group("a"), Group("b")
    merged = MergedReader([a, b])
    a.say(b"1")
    b.fail()
    with pytest.raises(LogUnavailable, match="b is away"):
        await merged.read(60)
    b.fail()
    with pytest.raises(LogUnavailable, match="b is away"):
        await merged.read(60)
    b.say(b"2")
    assert (await merged.read(60)).records == [b"1", b"2"]
    assert a.waits_s == [0]
    assert b.waits_s == [0, 0, 0]
    await merged.close()


async def test_a_group_whose_answer_is_late_holds_up_the_others() -> None:
    now_s = 0.0
    a, b = Group("a"), Group("b")
    merged = MergedReader([a, b], monotonic_s=lambda: now_s)
    for place in (a, b):
        place.say()
    await merged.read(0)
    a.say(b"1")
    assert (await merged.read(60)).records == [b"1"]
    now_s = 1.1  # what b waits for news, and may be late
    a.say(b"2")
    reading = asyncio.create_task(merged.read(60))
    await settled(reading)
    b.say()
    assert (await reading).records == [b"2"]
    await merged.close()


async def test_groups_that_are_behind_come_last_and_the_furthest_behind_at_the_end() -> None:
    a, b, c = Group("a"), Group("b"), Group("c")
    merged = MergedReader([a, b, c])
    a.say(b"old", at_ms=5, at_head=False)
    b.say(b"newest", at_ms=9)
    c.say(b"new", at_ms=7, at_head=False)
    slice_ = await merged.read(60)
    assert slice_.records == [b"newest", b"new", b"old"]
    assert slice_.appended_unix_ms == [9, 7, 5]
    assert not slice_.at_head
    assert not slice_.caught_up
    await merged.close()


async def test_a_cancelled_read_leaves_what_is_under_way() -> None:
    a, b = Group("a"), Group("b")
    merged = MergedReader([a, b])
    reading = asyncio.create_task(merged.read(60))
    await settled(reading)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    a.say(b"1")
    b.say(b"2")
    assert (await merged.read(60)).records == [b"1", b"2"]
    assert a.waits_s == b.waits_s == [0]
    await merged.close()


async def test_a_read_that_does_not_wait_asks_every_group_anew() -> None:
    a, b = Group("a"), Group("b")
    merged = MergedReader([a, b])
    for place in (a, b):
        place.say()
    await merged.read(0)
    a.say(b"1")
    await merged.read(60)  # leaves b waiting for news
    a.say(b"2")
    b.say(b"3")
    assert (await merged.read(0)).records == [b"2", b"3"]
    await merged.close()
