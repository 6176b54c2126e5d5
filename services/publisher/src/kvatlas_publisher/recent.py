"""The newest sealed records of one life, kept for indexers that lost some. Pure, bounded by bytes.

The records are the very bytes that went to the log, so keeping them costs nothing while an outbox
holds them too. The oldest go first; what is kept is always consecutive up to the last one sealed.
"""

from collections import deque
from dataclasses import dataclass

RECORD_OVERHEAD_BYTES = 200
"""Charged for a record besides its length: the objects that hold it."""


class NotKept(LookupError):  # noqa: N818 - named for what it is
    """The records asked for are gone, or are not made yet."""


@dataclass(frozen=True, slots=True)
class _Kept:
    first_event_id: int
    record: bytes


class RecentRecords:
    """A ring of records in the order of their event ids.

    Args:
        bytes_max: of all records kept, each with its overhead; 0 keeps none.
        next_event_id: of the first record that will be added.
    """

    def __init__(self, bytes_max: int, next_event_id: int = 1) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: deque[_Kept] = deque()
        self._next_event_id = next_event_id

    @property
    def bytes_kept(self) -> int:
        """Of the records, each with its overhead."""
        return self._bytes

    @property
    def first_event_id(self) -> int:
        """The lowest event id that `since` can begin with."""
        return self._kept[0].first_event_id if self._kept else self._next_event_id

    def add(self, first_event_id: int, events: int, record: bytes) -> None:
        """Keep the record of `events` events that continues the last one."""
        self._next_event_id = first_event_id + events
        self._kept.append(_Kept(first_event_id, record))
        self._bytes += _cost(record)
        while self._bytes > self._bytes_max:
            self._bytes -= _cost(self._kept.popleft().record)

    def since(self, event_id: int) -> list[bytes]:
        """Return the records from the one that holds `event_id` on; none if it is the next one.

        Raises:
            NotKept: there is no unbroken way from there; the text says what is kept.
        """
        if not self.first_event_id <= event_id <= self._next_event_id:
            raise NotKept(
                f"events from {self.first_event_id} to {self._next_event_id - 1} are kept, "
                f"not those from {event_id}"
            )
        newest_first: list[bytes] = []
        if event_id < self._next_event_id:
            for kept in reversed(self._kept):
                newest_first.append(kept.record)
                if kept.first_event_id <= event_id:
                    break
        return newest_first[::-1]


def _cost(record: bytes) -> int:
    return len(record) + RECORD_OVERHEAD_BYTES
