"""The newest records that an epoch keeps; an answer never has a gap."""

import re

import pytest

from kvatlas_publisher.epoch.replay_ring import RECORD_OVERHEAD_BYTES, RecordsNotKept, ReplayRing

BYTES = 100
COST = BYTES + RECORD_OVERHEAD_BYTES


def record(number: int) -> bytes:
    return bytes([number]) * BYTES


def filled(records: int, *, room: int, events: int = 3) -> ReplayRing:
    """Records 0, 1, … of `events` events each, with room for so many."""
    ring = ReplayRing(room * COST)
    for number in range(records):
        ring.add(1 + number * events, events, record(number))
    return ring


def test_before_the_first_record_only_event_1_can_be_asked_for() -> None:
    ring = ReplayRing(1_000)
    assert ring.since(1) == []
    with pytest.raises(RecordsNotKept):
        ring.since(2)


@pytest.mark.parametrize(
    ("event_id", "first_record"), [(1, 0), (3, 0), (4, 1), (6, 1), (7, 2), (9, 2)]
)
def test_an_answer_begins_with_the_record_that_holds_the_event(
    event_id: int, first_record: int
) -> None:
    ring = filled(3, room=3)
    assert ring.since(event_id) == [record(number) for number in range(first_record, 3)]


def test_the_next_event_gives_no_record_and_later_ones_are_an_error() -> None:
    ring = filled(3, room=3)
    assert ring.since(10) == []
    with pytest.raises(
        RecordsNotKept, match=re.escape("events from 1 to 9 are kept, not those from 11")
    ):
        ring.since(11)


def test_the_oldest_records_go_first_and_the_bound_holds() -> None:
    ring = filled(50, room=4)
    assert ring.first_event_id == 1 + 46 * 3
    assert ring.since(ring.first_event_id) == [record(number) for number in range(46, 50)]
    with pytest.raises(RecordsNotKept):
        ring.since(ring.first_event_id - 1)


def test_without_room_only_the_next_event_can_be_asked_for() -> None:
    ring = filled(2, room=0)
    assert ring.since(7) == []
    with pytest.raises(RecordsNotKept):
        ring.since(6)
