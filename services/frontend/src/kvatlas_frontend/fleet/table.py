"""The worker table: one row per worker, shared with routing's columns."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import xxhash
from yarl import URL

from kvatlas_client import WorkerKey, WorkerState
from kvatlas_frontend.fleet.circuit_breaker import EngineBreaker, Trouble
from kvatlas_frontend.fleet.columns import Columns
from kvatlas_frontend.fleet.load_tracker import LoadTracker, Ticket
from kvatlas_frontend.fleet.worker import FleetChange, WorkerRecord

log = logging.getLogger(__name__)

_PATHS: Final = (
    "",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/models",
    "/tokenize",
    "/health",
)


class EngineAddress(NamedTuple):
    """Where the data plane finds an engine."""

    host: str
    port: int
    base_path: str  # before the paths of the API; usually ""
    is_tls: bool


class Worker:
    """A worker of the table, with the strings and URLs that every request to it needs."""

    __slots__ = ("breaker", "engine", "key", "name", "rank", "record", "row", "urls")

    def __init__(self, row: int, record: WorkerRecord, breaker: EngineBreaker) -> None:
        self.breaker = breaker  # shared by the ranks of one engine
        self.row = row
        self.key = record.key
        self.name = str(record.key)  # for x-kvatlas-worker
        self.rank = str(record.key.dp_rank)  # for X-data-parallel-rank
        self.record = record
        self.locate()

    def locate(self) -> None:
        """Take the engine's address from the record; one that no request can go to is logged."""
        engine_url = self.record.engine_url
        self.urls = _urls(engine_url)
        if engine_url and not self.urls:
            log.warning(
                "worker %s: its engine address %r is neither http://host:port nor "
                "https://host:port, so it gets no requests",
                self.name,
                engine_url,
            )
        url = self.urls.get("")
        self.engine = (
            EngineAddress(
                url.raw_host or "",
                url.port or 0,  # yarl knows the default port of both schemes
                url.raw_path.rstrip("/"),
                is_tls=url.scheme == "https",
            )
            if url is not None
            else EngineAddress("", 0, "", is_tls=False)
        )


class Fleet:
    """The workers of the cell.

    A row is reused once its worker is gone and nothing is in flight on it. While no indexer
    answers, the last known workers stay.
    """

    def __init__(self, tracker: Callable[[Columns], LoadTracker] = LoadTracker) -> None:
        self.columns = Columns()
        self.tracker = tracker(self.columns)
        self.version = 0  # counts changes of the set of workers and of their addresses
        self._rows: dict[WorkerKey, int] = {}
        self._workers: list[Worker | None] = [None] * self.columns.rows
        self._free = list(range(self.columns.rows - 1, -1, -1))
        self._leaving: set[int] = set()
        # By engine URL. A worker keeps its breaker alive; the last one of an engine takes it along.
        self._breakers: WeakValueDictionary[str, EngineBreaker] = WeakValueDictionary()

    @property
    def rows(self) -> Mapping[WorkerKey, int]:
        """Row by worker."""
        return self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Worker]:
        for row in self._rows.values():
            worker = self._workers[row]
            if worker is not None:
                yield worker

    def worker(self, row: int) -> Worker:
        """The worker in `row`.

        Raises:
            LookupError: the row is empty.
        """
        worker = self._workers[row]
        if worker is None:
            raise LookupError(f"no worker in row {row}")
        return worker

    def apply(self, change: FleetChange) -> None:
        """Apply an indexer's change."""
        if change.full:
            present = {record.key for record in change.workers}
            for key in [key for key in self._rows if key not in present]:
                self._remove(key)
        for key in change.removed:
            if key in self._rows:
                self._remove(key)
        for record in change.workers:
            self._put(record)

    def failed(self, worker: Worker, trouble: Trouble, now_s: float) -> None:
        """Record that a request to the worker's engine failed."""
        worker.breaker[trouble].failed(now_s)
        self._show(worker)

    def unreachable(self, worker: Worker, now_s: float, *, refused: bool) -> None:
        """Record that a health check got no answer; `refused`: nobody listens there."""
        if refused:
            worker.breaker[Trouble.UNREACHABLE].trip(now_s)
        else:
            worker.breaker[Trouble.UNREACHABLE].failed(now_s)
        self._show(worker)

    def sent(self, worker: Worker, now_s: float) -> None:
        """Record that a request goes to the worker's engine."""
        if worker.breaker.failures:
            worker.breaker.sent(now_s)
            self._show(worker)

    def reached(self, worker: Worker) -> None:
        """Record that the worker's engine answered a health check."""
        if worker.breaker.failures:
            worker.breaker[Trouble.UNREACHABLE].succeeded()
            self._show(worker)

    def answered(self, worker: Worker) -> None:
        """Record that the worker's engine answered a request."""
        if worker.breaker.failures:
            worker.breaker.answered()
            self._show(worker)

    def is_any_available(self, now_s: float) -> bool:
        """Whether any worker can take a request now."""
        columns = self.columns
        return bool((columns.present & (columns.unreachable_until_s <= now_s)).any())

    def _show(self, worker: Worker) -> None:
        """Copy a breaker's state to the rows of its engine: one row for each rank."""
        breaker = worker.breaker
        for each in self:
            if each.breaker is breaker:
                columns, row = self.columns, each.row
                columns.unreachable_until_s[row] = breaker[Trouble.UNREACHABLE].open_until_s
                columns.failing_until_s[row] = breaker[Trouble.FAILING].open_until_s
                columns.failures[row] = breaker.failures

    def release(self, ticket: Ticket) -> None:
        """End a ticket; the last one of a worker that is gone frees its row."""
        ticket.end()
        if ticket.row in self._leaving and not self.tracker.requests_here(ticket.row):
            self._leaving.discard(ticket.row)
            self._free_row(ticket.row)

    def _put(self, record: WorkerRecord) -> None:
        row = self._rows.get(record.key)
        if row is None:
            row = self._new_row(record)
        worker = self.worker(row)
        before = worker.record
        if before.engine_url != record.engine_url:
            self.version += 1
        elif before.epoch != record.epoch:
            self.answered(worker)  # the engine restarted: earlier failures no longer count
        worker.record = record
        if before.engine_url != record.engine_url:
            worker.locate()
            worker.breaker = self._breaker(record.engine_url)
            self._show(worker)
        self.columns.present[row] = bool(worker.urls)
        self.columns.live[row] = record.state is WorkerState.LIVE
        self._describe(row, record)

    def _describe(self, row: int, record: WorkerRecord) -> None:
        """Copy what the record says about the worker itself."""
        columns, load = self.columns, record.load
        columns.role.put(row, record.role)
        columns.labels.put(row, record.labels)
        columns.capacity_blocks[row] = record.capacity_blocks
        columns.requests_running[row] = 0 if load is None else load.requests_running
        columns.requests_waiting[row] = 0 if load is None else load.requests_waiting
        columns.kv_usage[row] = 0.0 if load is None else load.kv_usage
        columns.load_told_s[row] = -math.inf if load is None else record.load_told_s
        requests = None if load is None else load.requests_running + load.requests_waiting
        self.tracker.reported(row, requests)

    def _new_row(self, record: WorkerRecord) -> int:
        if not self._free:
            first = self.columns.rows
            self.columns.grow()
            self._workers.extend([None] * (self.columns.rows - first))
            self._free = list(range(self.columns.rows - 1, first - 1, -1))
        row = self._free.pop()
        worker = self._workers[row] = Worker(row, record, self._breaker(record.engine_url))
        self._rows[record.key] = row
        self.tracker.took_row(row, record.key)
        self.columns.rendezvous_keys[row] = xxhash.xxh3_64_intdigest(str(record.key).encode())
        self.version += 1
        self._show(worker)
        return row

    def _breaker(self, engine_url: str) -> EngineBreaker:
        breaker = self._breakers.get(engine_url)
        if breaker is None:
            breaker = self._breakers[engine_url] = EngineBreaker()
        return breaker

    def _remove(self, key: WorkerKey) -> None:
        row = self._rows.pop(key)
        self._workers[row] = None
        self.columns.present[row] = False
        self.columns.live[row] = False
        self.version += 1
        if self.tracker.requests_here(row):
            self._leaving.add(row)
        else:
            self._free_row(row)

    def _free_row(self, row: int) -> None:
        self.tracker.left_row(row)
        self.columns.clear(row)
        self._free.append(row)


def _urls(engine_url: str) -> dict[str, URL]:
    """The URLs used at an engine; empty if its address cannot be used."""
    try:
        base = URL(engine_url)
    except ValueError:
        return {}
    if base.scheme not in {"http", "https"} or not base.host:
        return {}
    return {path: base.with_path(base.path.rstrip("/") + path) for path in _PATHS}
