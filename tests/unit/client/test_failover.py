"""How one deadline is shared, and what each failure means."""

import random

import pytest

from kvatlas_client import CallFailed, CellMismatch, CellTerms, QueryRejected
from kvatlas_client.failover import FAILED_PRECONDITION, INVALID_ARGUMENT, Attempts
from kvatlas_client.health import Replicas

TERMS = CellTerms("m", 16, "c")


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def attempts_of(count: int, clock: Clock) -> Attempts:
    fleet = Replicas([f"r{i}" for i in range(count)], random.Random(1))
    return Attempts(fleet, TERMS, 1.0, clock)


def test_a_lone_replica_has_the_whole_deadline() -> None:
    assert [attempt.timeout_s for attempt in attempts_of(1, Clock())] == [1.0]


def test_each_attempt_has_half_of_what_is_left_and_the_last_one_all() -> None:
    clock = Clock()
    shares: list[float] = []
    for attempt in attempts_of(3, clock):
        shares.append(attempt.timeout_s)
        clock.now_s += attempt.timeout_s
    assert shares == [0.5, 0.25, 0.25]


def test_a_quick_failure_leaves_the_others_more() -> None:
    clock = Clock()
    shares: list[float] = []
    for attempt in attempts_of(2, clock):
        shares.append(attempt.timeout_s)
        clock.now_s += 0.125
    assert shares == [0.5, 0.875]


def test_every_replica_is_tried_once() -> None:
    assert sorted(attempt.replica for attempt in attempts_of(4, Clock())) == [
        "r0",
        "r1",
        "r2",
        "r3",
    ]


def test_there_is_no_attempt_after_the_deadline() -> None:
    clock = Clock()
    count = 0
    for _ in attempts_of(3, clock):
        count += 1
        clock.now_s += 2.0
    assert count == 1


@pytest.mark.parametrize("code", [1, 2, 4, 8, 12, 13, 14])
def test_a_replicas_own_trouble_goes_on_to_the_next(code: int) -> None:
    attempts = attempts_of(2, Clock())
    for attempt in attempts:
        attempts.failed(CallFailed(attempt.replica, code, "why"))
    error = attempts.exhausted()
    assert [failure.code for failure in error.failures] == [code, code]
    assert "within 1000 ms" in str(error)
    assert "why" in str(error)


def test_what_is_wrong_with_the_query_is_raised_at_once() -> None:
    attempts = attempts_of(2, Clock())
    with pytest.raises(CellMismatch, match=r"r9: serves x \(asked for model 'm', block size 16"):
        attempts.failed(CallFailed("r9", FAILED_PRECONDITION, "serves x"))
    with pytest.raises(QueryRejected, match="too long"):
        attempts.failed(CallFailed("r9", INVALID_ARGUMENT, "too long"))
