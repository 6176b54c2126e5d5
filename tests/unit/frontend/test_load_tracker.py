"""Requests in flight: the load tracker, and the worker table that gives it rows."""

import numpy as np

from kvatlas_client import Load, WorkerKey, WorkerState
from kvatlas_frontend.fleet.circuit_breaker import Trouble
from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.fleet.worker import FleetChange, WorkerRecord

LIVE = WorkerState.LIVE


def record(
    worker: int,
    rank: int = 0,
    *,
    state: WorkerState = LIVE,
    url: str = "http://engine:8000",
    requests: int | None = None,
    epoch: int = 1,
) -> WorkerRecord:
    load = None if requests is None else Load(requests, 0, 0.0)
    return WorkerRecord(WorkerKey(worker, rank), state, epoch, url, load)


def fleet(*records: WorkerRecord) -> Fleet:
    made = Fleet()
    made.apply(FleetChange(full=True, workers=records, removed=()))
    return made


def test_a_ticket_counts_until_it_ends() -> None:
    made = fleet(record(1))
    row = made.rows[WorkerKey(1, 0)]
    ticket = made.tracker.begin(row, prompt_tokens=100, cached_tokens=64)
    columns = made.columns
    assert (columns.requests[row], columns.prefill_tokens[row], columns.active_tokens[row]) == (
        1,
        36,
        100,
    )
    ticket.first_byte()
    assert (columns.requests[row], columns.prefill_tokens[row], columns.active_tokens[row]) == (
        1,
        0,
        100,
    )
    made.release(ticket)
    made.release(ticket)
    assert (columns.requests[row], columns.prefill_tokens[row], columns.active_tokens[row]) == (
        0,
        0,
        0,
    )


def test_what_an_engine_reports_beyond_ours_is_other_frontends() -> None:
    made = fleet(record(1))
    row = made.rows[WorkerKey(1, 0)]
    made.tracker.begin(row, prompt_tokens=1, cached_tokens=0)
    made.apply(FleetChange(full=False, workers=(record(1, requests=5),), removed=()))
    assert made.columns.requests_elsewhere[row] == 4
    made.apply(FleetChange(full=False, workers=(record(1, requests=0),), removed=()))
    assert made.columns.requests_elsewhere[row] == 0
    made.apply(FleetChange(full=False, workers=(record(1, requests=5),), removed=()))
    made.apply(FleetChange(full=False, workers=(record(1, requests=None),), removed=()))
    assert made.columns.requests_elsewhere[row] == 0


def test_a_full_change_forgets_the_others_and_a_partial_one_does_not() -> None:
    made = fleet(record(1), record(2))
    made.apply(FleetChange(full=False, workers=(record(3),), removed=(WorkerKey(1, 0),)))
    assert set(made.rows) == {WorkerKey(2, 0), WorkerKey(3, 0)}
    made.apply(FleetChange(full=True, workers=(record(3),), removed=()))
    assert set(made.rows) == {WorkerKey(3, 0)}


def test_a_row_is_not_given_away_while_requests_are_on_it() -> None:
    made = fleet(record(1))
    row = made.rows[WorkerKey(1, 0)]
    ticket = made.tracker.begin(row, prompt_tokens=10, cached_tokens=0)
    made.apply(FleetChange(full=True, workers=(record(2),), removed=()))
    other = made.rows[WorkerKey(2, 0)]
    assert other != row
    made.release(ticket)
    made.apply(FleetChange(full=False, workers=(record(3),), removed=()))
    assert made.rows[WorkerKey(3, 0)] == row
    assert made.columns.requests[row] == 0


def test_the_table_grows_and_keeps_what_it_holds() -> None:
    made = fleet(record(0))
    made.tracker.begin(made.rows[WorkerKey(0, 0)], prompt_tokens=10, cached_tokens=0)
    many = tuple(record(worker) for worker in range(100))
    made.apply(FleetChange(full=True, workers=many, removed=()))
    assert len(made) == 100
    assert made.columns.rows >= 100
    assert made.columns.requests[made.rows[WorkerKey(0, 0)]] == 1
    assert int(made.columns.present.sum()) == 100
    assert len(np.unique(made.columns.rendezvous_keys[made.columns.present])) == 100


def test_a_worker_without_a_usable_address_is_not_offered_requests() -> None:
    made = fleet(record(1, url=""), record(2, url="10.0.0.7:8000"), record(3, url="http://["))
    assert not made.columns.present.any()
    assert len(made) == 3


def test_a_path_in_an_engines_address_is_kept() -> None:
    made = fleet(record(1, url="http://gateway/engines/7/"))
    worker = made.worker(made.rows[WorkerKey(1, 0)])
    assert str(worker.urls["/v1/completions"]) == "http://gateway/engines/7/v1/completions"


def test_failures_in_a_row_take_a_worker_out_and_an_answer_brings_it_back() -> None:
    made = fleet(record(1))
    worker = made.worker(made.rows[WorkerKey(1, 0)])
    made.failed(worker, Trouble.UNREACHABLE, 100.0)
    assert made.is_any_available(100.0)
    made.failed(worker, Trouble.UNREACHABLE, 100.0)
    assert not made.is_any_available(101.9)
    assert made.is_any_available(102.0)
    made.failed(worker, Trouble.UNREACHABLE, 102.0)
    assert not made.is_any_available(105.9)
    for _ in range(100):
        made.failed(worker, Trouble.UNREACHABLE, 106.0)
    assert made.is_any_available(106.0 + 30.0)
    made.answered(worker)
    assert made.is_any_available(106.0)


def test_a_new_life_of_an_engine_is_tried_at_once() -> None:
    made = fleet(record(1))
    worker = made.worker(made.rows[WorkerKey(1, 0)])
    made.failed(worker, Trouble.UNREACHABLE, 100.0)
    made.failed(worker, Trouble.UNREACHABLE, 100.0)
    made.apply(FleetChange(full=False, workers=(record(1),), removed=()))
    assert not made.is_any_available(100.0)
    made.apply(FleetChange(full=False, workers=(record(1, epoch=2),), removed=()))
    assert made.is_any_available(100.0)


def test_a_failure_of_a_worker_that_left_harms_nobody() -> None:
    made = fleet(record(1))
    gone = made.worker(made.rows[WorkerKey(1, 0)])
    made.apply(FleetChange(full=True, workers=(record(2, url="http://other:8000"),), removed=()))
    made.failed(gone, Trouble.UNREACHABLE, 100.0)
    made.failed(gone, Trouble.UNREACHABLE, 100.0)
    assert made.is_any_available(100.0)


def test_the_ranks_of_one_engine_share_its_breaker() -> None:
    made = fleet(record(1, 0), record(1, 1), record(2, url="http://other:8000"))
    worker = made.worker(made.rows[WorkerKey(1, 0)])
    made.unreachable(worker, 100.0, refused=True)
    rows = [made.rows[WorkerKey(1, 0)], made.rows[WorkerKey(1, 1)]]
    assert (made.columns.unreachable_until_s[rows] == 102.0).all()
    assert made.columns.unreachable_until_s.sum() == 204.0
    made.reached(worker)
    assert not made.columns.unreachable_until_s.any()


def test_a_health_check_does_not_end_a_row_of_failed_requests() -> None:
    made = fleet(record(1))
    worker = made.worker(made.rows[WorkerKey(1, 0)])
    for _ in range(Trouble.FAILING.value.failures):
        made.reached(worker)
        made.failed(worker, Trouble.FAILING, 100.0)
    assert made.columns.failing_until_s[worker.row] == 102.0
    assert made.columns.failures[worker.row] == Trouble.FAILING.value.failures
    made.answered(worker)
    assert (made.columns.failing_until_s[worker.row], made.columns.failures[worker.row]) == (0, 0)


def test_a_half_open_breaker_lets_one_trial_pass() -> None:
    made = fleet(record(1))
    worker = made.worker(made.rows[WorkerKey(1, 0)])
    made.unreachable(worker, 100.0, refused=True)
    assert made.is_any_available(102.0)
    made.sent(worker, 102.0)
    assert not made.is_any_available(102.0)
    assert made.is_any_available(102.0 + Trouble.UNREACHABLE.value.trial_s)
