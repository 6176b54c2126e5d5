"""What a life keeps of its newest records, and that it never answers with a gap."""

import re

import pytest

from kvatlas_publisher.recent import RECORD_OVERHEAD_BYTES, NotKept, RecentRecords

BYTES = 100
COST = BYTES + RECORD_OVERHEAD_BYTES


def record(number: int) -> bytes:
    return bytes([number]) * BYTES


def filled(records: int, *, room: int, events: int = 3) -> RecentRecords:
    """Records 0, 1, … of `events` events each, with room for so many."""
    recent = RecentRecords(room * COST)
    for number in range(records):
        recent.add(1 + number * events, events, record(number))
    return recent


def test_nothing_said_yet_is_an_empty_answer_from_event_1() -> None:
    recent = RecentRecords(1_000)
    assert recent.since(1) == []
    with pytest.raises(NotKept):
        recent.since(2)


@pytest.mark.parametrize(
    ("event_id", "first_record"), [(1, 0), (3, 0), (4, 1), (6, 1), (7, 2), (9, 2)]
)
def test_an_answer_begins_with_the_record_that_holds_the_event(
    event_id: int, first_record: int
) -> None:
    recent = filled(3, room=3)
    assert recent.since(event_id) == [record(number) for number in range(first_record, 3)]


def test_who_has_everything_gets_nothing_and_who_asks_beyond_is_told() -> None:
    recent = filled(3, room=3)
    assert recent.since(10) == []
    with pytest.raises(NotKept, match=re.escape("events from 1 to 9 are kept, not those from 11")):
        recent.since(11)


def test_the_oldest_records_go_first_and_the_bound_holds() -> None:
    recent = filled(50, room=4)
    assert recent.bytes_kept == 4 * COST
    assert recent.first_event_id == 1 + 46 * 3
    assert recent.since(recent.first_event_id) == [record(number) for number in range(46, 50)]
    with pytest.raises(NotKept):
        recent.since(recent.first_event_id - 1)


def test_without_room_only_who_lacks_nothing_is_answered() -> None:
    recent = filled(2, room=0)
    assert (recent.bytes_kept, recent.since(7)) == (0, [])
    with pytest.raises(NotKept):
        recent.since(6)
