"""Whatever processes learn, route and die, each knows the load of all: the sum of what is in flight.

The supervisor and the control sockets are played here: messages wait until they are delivered, in
order for each process. Three workers share two rows, so that some must wait for one.
"""

from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvatlas_client import WorkerKey, WorkerState
from kvatlas_frontend.fleet.columns import Columns
from kvatlas_frontend.fleet.load_tracker import Ticket
from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.fleet.worker import FleetChange, WorkerRecord
from kvatlas_frontend.processes.control import ClaimRow, GrantRow, ReleaseRow
from kvatlas_frontend.processes.memory import SharedMemory
from kvatlas_frontend.processes.rows import Grant, RowTable
from kvatlas_frontend.processes.shared_load import SharedLoadTracker

PROCESSES = 3
KEYS = [WorkerKey(number, number % 2) for number in range(3)]
ROWS = 2
LIVE = WorkerState.LIVE


@dataclass
class Request:
    ticket: Ticket
    key: WorkerKey
    prefill: int
    active: int


@dataclass
class Life:
    """One life of one process."""

    memory: SharedMemory
    process: int
    up: deque[ClaimRow | ReleaseRow] = field(default_factory=deque[ClaimRow | ReleaseRow])
    down: deque[GrantRow] = field(default_factory=deque[GrantRow])
    requests: list[Request] = field(default_factory=list[Request])

    def __post_init__(self) -> None:
        self.fleet = Fleet(self._tracker)

    def _tracker(self, columns: Columns) -> SharedLoadTracker:
        self.tracker = SharedLoadTracker(
            columns, memory=self.memory, process=self.process, ask=self.up.append
        )
        return self.tracker

    def in_flight(self, key: WorkerKey) -> np.ndarray:
        mine = [request for request in self.requests if request.key == key]
        return np.array(
            [len(mine), sum(r.prefill for r in mine), sum(r.active for r in mine)], dtype=np.int64
        )

    def seen(self, key: WorkerKey) -> np.ndarray:
        self.tracker.refresh()
        row, columns = self.fleet.rows[key], self.fleet.columns
        return np.array(
            [columns.requests[row], columns.prefill_tokens[row], columns.active_tokens[row]]
        )


class SharedLoad(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.memory = SharedMemory.create(PROCESSES)
        self.table = RowTable(ROWS)
        self.lives = [Life(self.memory, process) for process in range(PROCESSES)]

    def teardown(self) -> None:
        self.memory.close()

    processes = st.integers(0, PROCESSES - 1)
    keys = st.sampled_from(KEYS)

    @initialize(known=st.booleans())
    def all_know_of_all(self, known: bool) -> None:
        if known:
            for process in range(PROCESSES):
                for key in KEYS:
                    self.learn(process, key)
            self.settle()

    @rule(process=processes, key=keys)
    def learn(self, process: int, key: WorkerKey) -> None:
        record = WorkerRecord(key, LIVE, 1, f"http://engine-{key.worker_id}:1", None)
        self.lives[process].fleet.apply(FleetChange(full=False, workers=(record,), removed=()))

    @rule(process=processes, key=keys)
    def unlearn(self, process: int, key: WorkerKey) -> None:
        self.lives[process].fleet.apply(FleetChange(full=False, workers=(), removed=(key,)))

    @rule(process=processes, key=keys, tokens=st.integers(0, 1000), cached=st.integers(0, 1000))
    def begin(self, process: int, key: WorkerKey, tokens: int, cached: int) -> None:
        life = self.lives[process]
        if key not in life.fleet.rows and life.fleet.rows:
            key = min(life.fleet.rows)
        if key in life.fleet.rows:
            ticket = life.tracker.begin(
                life.fleet.rows[key], prompt_tokens=tokens, cached_tokens=cached
            )
            life.requests.append(Request(ticket, key, max(0, tokens - cached), tokens))

    @precondition(lambda self: any(life.requests for life in self.lives))
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        life = data.draw(st.sampled_from([life for life in self.lives if life.requests]))
        request = data.draw(st.sampled_from(life.requests))
        if data.draw(st.booleans()):
            request.ticket.first_byte()
            request.prefill = 0
        else:
            life.requests.remove(request)
            life.fleet.release(request.ticket)

    @rule(process=processes)
    def deliver_up(self, process: int) -> None:
        life = self.lives[process]
        if life.up:
            match life.up.popleft():
                case ClaimRow(number, worker_id, rank):
                    grants = self.table.claim((process, number), WorkerKey(worker_id, rank))
                case ReleaseRow(number):
                    grants = self.table.release((process, number))
            self.grant(grants)

    @rule(process=processes)
    def deliver_down(self, process: int) -> None:
        life = self.lives[process]
        if life.down:
            message = life.down.popleft()
            life.tracker.granted(message.number, message.row)

    @rule(process=processes, delivered=st.booleans())
    def die(self, process: int, delivered: bool) -> None:
        while delivered and self.lives[process].up:
            self.deliver_up(process)
        self.memory.clear(process)
        self.grant(self.table.ended(process))
        self.lives[process] = Life(self.memory, process)

    def grant(self, grants: list[Grant]) -> None:
        for grant in grants:
            process, number = grant.claim
            self.lives[process].down.append(GrantRow(number, grant.row))

    @rule()
    def settle(self) -> None:
        """With all messages delivered, each process sees exactly what is in flight."""
        while any(life.up or life.down for life in self.lives):
            for process in range(PROCESSES):
                self.deliver_up(process)
                self.deliver_down(process)
        holders = Counter(key for life in self.lives for key in life.fleet.rows)
        for life in self.lives:
            for key, row in life.fleet.rows.items():
                if row in life.tracker._unshared:  # pyright: ignore[reportPrivateUsage] - no one else knows
                    continue
                total = sum(other.in_flight(key) for other in self.lives)
                assert (life.seen(key) == total).all()
        with_row = len(KEYS) - self.table.waiting
        assert with_row >= min(ROWS, len(holders))

    @invariant()
    def nobody_sees_more_than_there_is(self) -> None:
        for life in self.lives:
            for key in life.fleet.rows:
                total = sum(other.in_flight(key) for other in self.lives)
                seen = life.seen(key)
                assert (seen <= total).all()
                assert (seen >= 0).all()


TestSharedLoad = SharedLoad.TestCase
TestSharedLoad.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # other work on the machine
)
