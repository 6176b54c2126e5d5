"""The newest sealed records of one epoch, kept for indexers that lost some. Pure, bounded by bytes.

A ring shares its records' bytes with the outboxes, so a record in both is in memory once. The
oldest records are dropped first; those kept are always consecutive, up to the last one sealed.
"""

from collections import deque
from dataclasses import dataclass

RECORD_OVERHEAD_BYTES = 200
"""Charged for a record besides its length, for the objects that hold it."""


class RecordsNotKept(LookupError):  # noqa: N818 - named for what it is
    """The records asked for were dropped, or do not exist yet."""


@dataclass(frozen=True, slots=True)
class _Entry:
    first_event_id: int
    record: bytes


class ReplayRing:
    """Records in the order of their event ids.

    Args:
        bytes_max: size of all records kept, each with its overhead; 0 keeps none.
        next_event_id: first event id of the first record that will be added.
    """

    def __init__(self, bytes_max: int, next_event_id: int = 1) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._entries: deque[_Entry] = deque()
        self._next_event_id = next_event_id

    @property
    def first_event_id(self) -> int:
        """The lowest event id that `since` accepts."""
        return self._entries[0].first_event_id if self._entries else self._next_event_id

    def add(self, first_event_id: int, events: int, record: bytes) -> None:
        """Keep a record of `events` events that continues the last one."""
        self._next_event_id = first_event_id + events
        self._entries.append(_Entry(first_event_id, record))
        self._bytes += _cost(record)
        while self._bytes > self._bytes_max:
            self._bytes -= _cost(self._entries.popleft().record)

    def since(self, event_id: int) -> list[bytes]:
        """Return the records from the one that holds `event_id`; none if it is the next event.

        Raises:
            RecordsNotKept: some of them are not here; the text names the events that are.
        """
        if not self.first_event_id <= event_id <= self._next_event_id:
            raise RecordsNotKept(
                f"events from {self.first_event_id} to {self._next_event_id - 1} are kept, "
                f"not those from {event_id}"
            )
        newest_first: list[bytes] = []
        if event_id < self._next_event_id:
            for entry in reversed(self._entries):
                newest_first.append(entry.record)
                if entry.first_event_id <= event_id:
                    break
        return newest_first[::-1]


def _cost(record: bytes) -> int:
    return len(record) + RECORD_OVERHEAD_BYTES
