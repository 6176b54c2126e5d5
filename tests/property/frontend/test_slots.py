"""Whatever happens to requests and workers, the columns say what a plain model says."""

from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from kvatlas_client import WorkerKey, WorkerState
from kvatlas_frontend.fleet.load_tracker import Ticket
from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.fleet.worker import FleetChange, WorkerRecord

KEYS = st.builds(WorkerKey, st.integers(0, 30), st.integers(0, 1))


@dataclass
class Request:
    ticket: Ticket
    key: WorkerKey
    life: int  # of the worker's stay in the table
    prefill: int
    active: int


class Slots(RuleBasedStateMachine):
    """The model: a dictionary of workers, and a list of requests in flight."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet()
        self.lives: dict[WorkerKey, int] = {}
        self.states: dict[WorkerKey, WorkerState] = {}
        self.in_flight: list[Request] = []
        self.stays = 0

    def put(self, keys: Iterable[WorkerKey], state: WorkerState) -> tuple[WorkerRecord, ...]:
        told = tuple(WorkerRecord(key, state, 1, "http://engine:1") for key in set(keys))
        for record in told:
            self.states[record.key] = state
            if record.key not in self.lives:
                self.stays += 1
                self.lives[record.key] = self.stays
        return told

    @rule(keys=st.lists(KEYS, max_size=40), state=st.sampled_from(WorkerState), full=st.booleans())
    def tell(self, keys: list[WorkerKey], state: WorkerState, full: bool) -> None:
        if full:
            self.lives = {key: life for key, life in self.lives.items() if key in set(keys)}
        told = self.put(keys, state)
        self.fleet.apply(FleetChange(full, told, ()))

    @rule(key=KEYS)
    def remove(self, key: WorkerKey) -> None:
        self.lives.pop(key, None)
        self.fleet.apply(FleetChange(full=False, workers=(), removed=(key,)))

    @rule(
        target=requests,
        pick=st.integers(0),
        tokens=st.integers(0, 1000),
        cached=st.integers(0, 1000),
    )
    def begin(self, pick: int, tokens: int, cached: int) -> Request | None:
        if not self.lives:
            return None
        key = sorted(self.lives)[pick % len(self.lives)]
        ticket = self.fleet.tracker.begin(
            self.fleet.rows[key], prompt_tokens=tokens, cached_tokens=cached
        )
        request = Request(ticket, key, self.lives[key], max(0, tokens - cached), tokens)
        self.in_flight.append(request)
        return request

    @rule(request=requests)
    def first_byte(self, request: Request | None) -> None:
        if request is not None and request in self.in_flight:
            request.ticket.first_byte()
            request.prefill = 0

    @rule(request=requests)
    def end(self, request: Request | None) -> None:
        if request is not None:
            self.fleet.release(request.ticket)
            if request in self.in_flight:
                self.in_flight.remove(request)

    @invariant()
    def the_columns_say_what_the_model_says(self) -> None:
        columns = self.fleet.columns
        assert set(self.fleet.rows) == set(self.lives)
        rows = list(self.fleet.rows.values())
        assert len(set(rows)) == len(rows)
        for key, row in self.fleet.rows.items():
            here = [r for r in self.in_flight if (r.key, r.life) == (key, self.lives[key])]
            assert columns.requests[row] == len(here)
            assert columns.prefill_tokens[row] == sum(r.prefill for r in here)
            assert columns.active_tokens[row] == sum(r.active for r in here)
            assert columns.present[row]
            assert columns.live[row] == (self.states[key] is WorkerState.LIVE)

    @invariant()
    def nothing_is_left_when_nothing_is_in_flight(self) -> None:
        columns = self.fleet.columns
        assert int(columns.requests.sum()) == len(self.in_flight)
        assert int(columns.present.sum()) == len(self.lives)
        assert (columns.prefill_tokens >= 0).all()

    @invariant()
    def rows_are_used_again(self) -> None:
        """At most 62 workers and what leaves with requests in flight: growth is bounded."""
        assert self.fleet.columns.rows <= 2 * (62 + len(self.in_flight) + 16)


TestSlots = Slots.TestCase
TestSlots.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
