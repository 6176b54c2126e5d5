"""The worker table: who there is, in rows that routing's columns share."""

from collections.abc import Iterator, Mapping
from typing import Final

import xxhash
from yarl import URL

from kvatlas_frontend.fleet.breaker import Breaker
from kvatlas_frontend.fleet.columns import Columns
from kvatlas_frontend.fleet.tracker import SlotTracker, Ticket
from kvatlas_frontend.fleet.worker import FleetChange, WorkerKey, WorkerRecord, WorkerState

_PATHS: Final = ("/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize", "/health")


class Member:
    """A worker of the table. What does not change from request to request is made once, here."""

    __slots__ = ("breaker", "key", "name", "rank", "record", "row", "urls")

    def __init__(self, row: int, record: WorkerRecord) -> None:
        self.row = row
        self.key = record.key
        self.name = str(record.key)  # for x-kvatlas-worker
        self.rank = str(record.key.dp_rank)  # for X-data-parallel-rank
        self.breaker = Breaker()
        self.record = record
        self.urls = _urls(record.engine_url)


class Fleet:
    """The workers of the cell. A row is used again when its worker is gone and nothing is in flight.

    The last table stays in force while no indexer answers: engines do not vanish with them.
    """

    def __init__(self) -> None:
        self.columns = Columns()
        self.tracker = SlotTracker(self.columns)
        self.version = 0  # counts changes of who there is or where
        self._rows: dict[WorkerKey, int] = {}
        self._members: list[Member | None] = [None] * self.columns.rows
        self._free = list(range(self.columns.rows - 1, -1, -1))
        self._leaving: set[int] = set()

    @property
    def rows(self) -> Mapping[WorkerKey, int]:
        """Row by worker."""
        return self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Member]:
        for row in self._rows.values():
            member = self._members[row]
            if member is not None:
                yield member

    def member(self, row: int) -> Member:
        """The worker in `row`.

        Raises:
            LookupError: there is none.
        """
        member = self._members[row]
        if member is None:
            raise LookupError(f"no worker in row {row}")
        return member

    def apply(self, change: FleetChange) -> None:
        """Take over a change told by an indexer."""
        if change.full:
            told = {record.key for record in change.workers}
            for key in [key for key in self._rows if key not in told]:
                self._remove(key)
        for key in change.removed:
            if key in self._rows:
                self._remove(key)
        for record in change.workers:
            self._put(record)

    def failed(self, member: Member, now_s: float) -> None:
        """The worker's engine could not be reached."""
        if self._is_current(member):
            pause_s = member.breaker.failed()
            self.columns.out_until_s[member.row] = now_s + pause_s if pause_s else 0.0

    def answered(self, member: Member) -> None:
        """The worker's engine was reached."""
        if member.breaker.answered() and self._is_current(member):
            self.columns.out_until_s[member.row] = 0.0

    def is_any_available(self, now_s: float) -> bool:
        """Whether a request could go anywhere now."""
        columns = self.columns
        return bool((columns.present & (columns.out_until_s <= now_s)).any())

    def release(self, ticket: Ticket) -> None:
        """End a ticket; a worker that has left gives its row back with its last one."""
        ticket.end()
        if ticket.row in self._leaving and not self.columns.requests[ticket.row]:
            self._leaving.discard(ticket.row)
            self._free_row(ticket.row)

    def _is_current(self, member: Member) -> bool:
        return self._members[member.row] is member

    def _put(self, record: WorkerRecord) -> None:
        row = self._rows.get(record.key)
        if row is None:
            row = self._new_row(record)
        member = self.member(row)
        before = member.record
        if before.engine_url != record.engine_url:
            member.urls = _urls(record.engine_url)
            self.version += 1
        if before.engine_url != record.engine_url or before.epoch != record.epoch:
            self.answered(member)  # another life: what failed was the one before
        member.record = record
        self.columns.present[row] = bool(member.urls)
        self.columns.live[row] = record.state is WorkerState.LIVE
        self.tracker.reported(row, record.requests_reported)

    def _new_row(self, record: WorkerRecord) -> int:
        if not self._free:
            first = self.columns.rows
            self.columns.grow()
            self._members.extend([None] * (self.columns.rows - first))
            self._free = list(range(self.columns.rows - 1, first - 1, -1))
        row = self._free.pop()
        self._members[row] = Member(row, record)
        self._rows[record.key] = row
        self.columns.spread_keys[row] = xxhash.xxh3_64_intdigest(str(record.key).encode())
        self.version += 1
        return row

    def _remove(self, key: WorkerKey) -> None:
        row = self._rows.pop(key)
        self._members[row] = None
        self.columns.present[row] = False
        self.columns.live[row] = False
        self.version += 1
        if self.columns.requests[row]:
            self._leaving.add(row)
        else:
            self._free_row(row)

    def _free_row(self, row: int) -> None:
        self.columns.clear(row)
        self._free.append(row)


def _urls(engine_url: str) -> dict[str, URL]:
    """The addresses asked at an engine; none for one that told no usable address."""
    try:
        base = URL(engine_url)
    except ValueError:
        return {}
    if base.scheme not in ("http", "https") or not base.host:
        return {}
    return {path: base.with_path(base.path.rstrip("/") + path) for path in _PATHS}
